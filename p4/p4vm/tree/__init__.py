"""A program as its tree, before it is made small: nodes as written, types, and what the checker notes on them.

Imported by front, which makes the tree, check, which notes, lower and fit, which read. Imports none of them.
Start in nodes.py (imported as `tree`); checked.py is what check adds.
"""
