"""The type checker: names, types and constants resolved, or where and why a program is wrong.

Imported by compile.py and fit. Imports tree.
Start in check_program.py, then scope.py: the state that all parts share. Each kind of thing is checked in a file.
"""
