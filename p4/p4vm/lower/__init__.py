"""The checked program made small: instances specialised, calls taken out, everything known put in.

Imported by compile.py alone. Imports tree and ir.
Start in lower_program.py, then body.py: what all parts work in. One file per kind of thing that is lowered.
"""
