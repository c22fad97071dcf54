"""The P4-16 engine: a program compiled, run on packets, and controlled, in Python or in C.

A distribution of its own (pyproject.toml beside it), which switchagg's extra p4 needs; it imports nothing of switchagg.
Start in compile.py; the way of a program: front -> check -> lower -> ir -> python or c_code + native.
"""
