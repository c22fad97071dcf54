"""Nodes for `mn --custom`: a switch with a data plane, links, and exercises of the P4 tutorials.

Imported by emulation/mn_custom.py and examples alone.
Start at mn_nodes.py.
"""
