"""Does a TNA program fit a Tofino: a static check of the tree against published limits.

Imported by `p4vm fit`. Imports front and check.
Start in program.py; model.py has the limits.
"""
