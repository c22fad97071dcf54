"""Experiments: scenarios in Mininet and in virtual time, training, certificates, reports, the benchmark, the command.

Imports all other packages; imported by nothing.
Start at scenario.py (what goes in) and results.py (what comes out), then compare.py.
"""
