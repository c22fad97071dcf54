"""Does a TNA program fit a Tofino: a static check of the tree against published limits.

Imported by `p4vm fit`. Imports front and check.
Start in fit_program.py; chip_model.py has the limits.
"""
