"""Scenarios in virtual time: real training, simulated links.

Imported by compare and bench; imports training and network.
Start at simulated_run.py, then simulated_training.py; network/ holds the simulator.
"""
