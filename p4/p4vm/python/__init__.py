"""The back end that is the oracle: the IR as readable Python source, one function per routine.

Imported by compile.py alone. Imports ir.
Start in python_engine.py; python_pipeline.py numbers what happens to a packet when.
"""
