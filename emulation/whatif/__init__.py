"""What other methods, codecs and schedules would gain a run that somebody recorded, or a model of which only numbers
are known.

Imported by the command line; a layer above profiles, bounds and virtual time.
Start at gains.py; run.py is what a run comes to, forecast.py predicts it.
"""
