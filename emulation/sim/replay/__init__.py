"""Models as numbers in virtual time: iterations that compute nothing, and send what the model would.

Imported by emulation/sim/run.py; needs no PyTorch.
Start at hollow_replicas.py, then graph_training.py.
"""
