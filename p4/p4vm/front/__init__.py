"""From text to tree: preprocessor, lexer, parser; positions in the source and messages of syntax errors.

Imported by check, lower and fit (tree.py), and by compile.py. Imports Lark and pcpp, which nothing else does.
Start in parse.py; tree.py is what it makes.
"""
