"""Chaos: real training through real switches, which faults drawn from a seed meet; each sum, wait and leftover is
checked.

Imported by cli alone; imports testbed, workloads and transport.
Start at chaos_run.py, event_schedule.py and fault_kinds/fault_kind.py.
"""
