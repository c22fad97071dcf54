"""The kinds of faults: one class in one file each, and a line in fault_table.py.

Imported by the rooms of chaos.
Start at fault_kind.py.
"""
