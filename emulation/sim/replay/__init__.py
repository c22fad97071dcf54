"""Models as numbers in virtual time: iterations that compute nothing, and send as many bytes as the model would.

Imported by emulation/sim/simulated_run.py; needs no PyTorch.
Start at size_only_replicas.py, then graph_training.py.
"""
