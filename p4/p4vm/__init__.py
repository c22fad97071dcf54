"""The P4-16 engine: a program compiled, run on packets, and controlled, in Python or in C.

May be imported by transport and emulation; imports nothing of theirs, and of switchagg only in `planes`.
Start in compile.py; the way of a program: front -> check -> lower -> ir -> python or c_code + native.
"""
