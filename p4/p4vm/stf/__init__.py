"""Tests in STF: packets in, tables filled, packets out compared.

Imported by `p4vm test`. Imports control and commands.
Start in run.py, whose docstring is the format.
"""
