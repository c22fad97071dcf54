"""The command line of bmv2's runtime CLI: one line in, text out.

Imported by host, stf and `switchagg p4`. Imports control.
Start in line.py.
"""
