"""Experiments: compare, sweep, study, reproduce, whatif, bench; cells worked on by many processes or Ray (pool.py).

Imported by cli alone; imports every other room.
Start at compare.py.
"""
