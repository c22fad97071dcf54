"""The packet simulator in C (`switchagg/native/sim`) behind the classes of `network`, event for event the same.

Imported by network; imports its classes, which it stands in for.
Start at compiled_network.py; choice.py says when it is taken.
"""
