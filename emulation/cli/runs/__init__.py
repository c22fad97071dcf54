"""Commands about users' own training runs: recording one, and asking what others' methods would gain it.

Imported by the command line alone.
Start at whatif.py.
"""
