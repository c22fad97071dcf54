"""Sweeps: a scenario with several values for some of its keys, run with each combination, method and seed.

`emulation/scenario/sweep_axes.py` says which combinations there are; `sweep_run` runs a cell, and all those without a
stored result, `sweep_table` writes them as CSV and Parquet, `sweep_page` as figures and HTML. `switchagg sweep` is the
command.
"""
