"""The simulator: links, queues, hosts and switches in virtual time.

Imported by sim, report and bench.
Start at network.py (events), then link.py and simulation.py.
"""
