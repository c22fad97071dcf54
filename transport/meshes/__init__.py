"""Meshes: whole messages, in order, between any two members of a job; losses are reported once.

Imported by collectives, ps, bounded, group, zeromq and rdma; imports links alone.
Start at mesh.py (the contract), then gathering.py and mesh_base.py (alike on every link) and tcp_mesh.py.
"""
