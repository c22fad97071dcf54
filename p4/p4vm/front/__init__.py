"""From text to tree: preprocessor, lexer, parser; positions in the source and messages of syntax errors.

Imported by compile.py and fit. Imports tree; Lark and pcpp are imported here and nowhere else.
Start in parse_program.py.
"""
