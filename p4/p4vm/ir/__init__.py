"""The small program that back ends and control plane read: its nodes, ways through it, what of it can be left out.

Imported by every room but front, tree and check. Imports none.
Start in nodes.py (imported as `ir`): its docstring says what holds of every program. externs.py: all externs.
"""
