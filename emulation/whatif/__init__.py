"""Forecasts of what other methods, codecs and schedules would gain a recorded run, or a model of which only numbers are
known.

Imported by the command line; a layer above profiles, bounds and virtual time.
Start at gains.py; recorded_run.py has the run, forecast.py predicts its iterations.
"""
