"""Methods `atp` and `esa` in virtual time: methods that share a switch without slots of a job's own.

Imported by sim/network/simulations.py alone, where a method's name finds it.
Start at aggregators.py (the rule), then atp_simulation.py.
"""
