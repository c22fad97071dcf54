"""The simulator: links, queues, hosts and switches in virtual time.

Imported by sim, report and bench.
Start at virtual_clock.py (events), then simulated_link.py and simulation.py.
"""
