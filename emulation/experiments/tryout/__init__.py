"""`switchagg try`: a user's script as it is, recorded, forecast, and run with Gloo and with the switch in turn.

The command line imports it; a rank of the script is a process of its own, try_rank.py.
Start at try_run.py.
"""
