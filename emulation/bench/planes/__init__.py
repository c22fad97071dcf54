"""Data planes, numbers and P4 programs in memory; P4 on veth.

Imported by suite and cli.
Start at planes.py.
"""
