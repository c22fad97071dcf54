"""The back end that is the oracle: the IR as readable Python source, one function per routine.

Imported by compile.py alone. Imports ir.
Start in engine.py; pipeline.py numbers what happens to a packet when.
"""
