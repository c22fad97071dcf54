"""The type checker: names, types and constants resolved, or where and why a program is wrong.

Imported by lower and fit. Imports front.
Start in program.py; checked.py is what it makes, types.py the types in it.
"""
