"""Data planes, numbers, P4 programs and packet engines in memory; P4 on veth.

Imported by suite and cli.
Start at planes.py.
"""
