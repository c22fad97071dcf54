"""Lossless Ethernet in virtual time: links that can be paused by class, switches that pause them, DCQCN.

Imported by sim; imports network.
Start at pausing.py; deadlock.py finds deadlocks, before and during a run.
"""
