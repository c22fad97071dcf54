"""Scenarios in real time: Mininet, its links shaped and read back, one process per rank.

Imported by experiments and cli; mininet itself is imported in emulated_network.py alone.
Start at mininet_run.py, then launch.py and emulated_network.py.
"""
