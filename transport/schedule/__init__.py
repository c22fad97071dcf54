"""Schedules: which transfer starts when; pure.

Imported by group, torch and emulation; imports no other room of transport.
Start at policy.py and schedule_table.py, then schedule_plan.py and scheduler.py.
"""
