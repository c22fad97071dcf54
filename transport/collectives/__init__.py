"""Collectives as plans, what runs any plan, and what they cost.

Imported by bounded, group and emulation; imports the contract of meshes alone.
Start at collective_plan.py, then rings.py and its record, collective_table.py, programs.py, execution.py and cost.py.
"""
