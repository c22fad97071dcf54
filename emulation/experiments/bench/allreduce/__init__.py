"""Allreduce cells: one method, size and rate over Mininet links, a process per rank.

Imported by suite.
Start at allreduce_cells.py, then ranks.py and allreduce_rank.py.
"""
