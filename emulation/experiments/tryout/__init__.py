"""`switchagg try`: a user's script as it is, recorded, forecast, and run with Gloo and with the switch in turn.

Start at try_run.py.
"""
