"""Methods `atp` and `esa` in virtual time: ways to share a switch beside slots that jobs own.

Imported by sim/network/simulations.py alone, where a method's name finds it.
Start at aggregators.py (the rule), then simulation.py.
"""
