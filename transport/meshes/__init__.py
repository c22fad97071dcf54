"""Meshes: whole messages, in order, between any two members of a job; losses are reported once.

Imported by group, collectives, ps, rdma and zeromq; a mesh imports links alone.
Start at mesh.py (the contract), then opening.py and tcp.py.
"""
