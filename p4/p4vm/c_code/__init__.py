"""The IR as C source, against the runtime in native/runtime.

Imported by native. Imports ir.
Start in c_program.py.
"""
