"""The kinds of faults: fault_kind.py has their contract, fault_table.py has all of them.

Imported by the rooms of chaos.
Start at fault_kind.py.
"""
