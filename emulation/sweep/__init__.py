"""Sweeps: a scenario with several values for some of its keys, run with each combination, method and seed.

`axes` says which combinations there are, `cells` runs one and keeps it, `run` all that aren't there yet, `table` writes
them as CSV and Parquet, `page` as figures and HTML. `switchagg sweep` is the command. `scenario` imports `axes`.
"""
