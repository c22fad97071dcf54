"""How gradients reach the switch, or each other: links, meshes, collectives, schedules, PyTorch.

Imports switchagg; imported by emulation and by users. Its rooms form one direction (ARCHITECTURE.md has the picture).
Start at group/ (what every method offers to a program), worker/session.py (the switch) or torch/ (PyTorch).
"""
