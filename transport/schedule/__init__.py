"""Schedules: which transfer starts when; pure.

Imported by torch, group and emulation; imports nothing of transport.
Start at policy.py and table.py, then plan.py and scheduler.py.
"""
