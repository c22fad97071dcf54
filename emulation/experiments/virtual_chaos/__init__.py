"""Chaos in virtual time: the schedule of `chaos` on virtual ranks and switches.

All that happens is a function of seed and options.

Imported by cli alone; imports chaos and sim. Start at virtual_run.py.
"""
