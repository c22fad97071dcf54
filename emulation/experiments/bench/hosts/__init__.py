"""`switchagg bench hosts`: collectives on a user's own machines, with nccl-tests' flags and columns, beside Gloo.

Imported by cli.
Start at hosts_plan.py, then hosts_rank.py.
"""
