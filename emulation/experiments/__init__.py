"""Experiments: compare, sweep, study, reproduce, whatif, chaos, bench; cells.py has what decides a
cell, keeps its result and runs those that aren't there, by many processes or Ray (pool.py).

Imported by cli alone; imports every other room.
Start at compare.py.
"""
