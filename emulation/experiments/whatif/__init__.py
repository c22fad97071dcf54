"""Forecasts of the gains of other methods, codecs and schedules for a recorded run, or a model known by numbers alone.

Imported by the command line; a layer above profiles, bounds and virtual time.
Start at gains.py; recorded_run.py has the run, forecast.py predicts its iterations.
"""
