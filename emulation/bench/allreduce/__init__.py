"""Allreduce cells: one method, size and rate over Mininet links, a process per rank.

Imported by suite.
Start at cells.py, then ranks.py and rank.py.
"""
