"""Collectives as plans, what runs any plan, and what they cost.

Imported by group and emulation; imports meshes alone.
Start at plan.py, then rings.py and its record, table.py, execution.py and cost.py.
"""
