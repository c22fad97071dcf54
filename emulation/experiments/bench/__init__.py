"""The benchmark: planes, numbers, links and allreduce; README.md defines each column.

Imported by cli.
Start at bench_run.py.
"""
