"""One walk over the IR of a routine that writes it as code, whatever the language.

Imported by python and c_code. Imports ir.
Start in code_writer.py.
"""
