"""Scenarios in virtual time: real training, simulated links.

Imported by compare and bench; imports training and network.
Start at run.py, then training.py; network/ holds the simulator.
"""
