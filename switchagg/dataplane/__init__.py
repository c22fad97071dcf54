"""Data planes: implementations of the switch behind one small contract, and the table of them.

Imported by everything that hosts a switch: loops, the simulator, tests; imports the root of switchagg and native.
Start at contract.py and plane_kinds.py, then reference.py; self_test.py: which one `auto` takes.
"""
