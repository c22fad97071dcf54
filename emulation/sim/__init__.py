"""Scenarios in virtual time: real training, simulated links.

Imported by testbed, report and experiments; imports scenario, results and workloads.
Start at simulated_run.py, then simulated_training.py; network/ holds the simulator.
"""
