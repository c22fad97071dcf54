"""RDMA in the shape of verbs: over UDP in user space, or on a NIC; what uses it.

Imported by worker, switch and meshes where RDMA is asked for.
Start at verbs.py, then soft.py; mesh.py (RC), worker.py and switch.py (UC).
"""
