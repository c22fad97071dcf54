"""The packet simulator in C (`emulation/sim/native`) behind the classes of `network`, event for event the same.

Imported by network; imports its classes, and replaces them.
Start at compiled_network.py; engine_choice.py says when it is used.
"""
