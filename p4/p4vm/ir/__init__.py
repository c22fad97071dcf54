"""The small program that back ends and control plane read, and its text (`switchagg p4 check --ir`).

Imported by every room but front and check. Imports none.
Start in nodes.py: its docstring says what holds of every program.
"""
