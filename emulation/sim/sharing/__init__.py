"""Several jobs on one network in virtual time: how they share a switch's slots, and what each link carried.

Imported by sim; imports network.
Start at background_jobs.py, then slot_division.py; loads.py samples links.
"""
