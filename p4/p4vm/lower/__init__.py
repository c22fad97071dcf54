"""The checked program made small: instances specialised, calls taken out, everything known put in.

Imported by compile.py alone. Imports check, front and ir.
Start in program.py.
"""
