"""The benchmark: planes, numbers, links and allreduce; README.md says what each column means.

Imported by cli.
Start at suite.py.
"""
