"""RDMA in the shape of verbs: over UDP in user space, or on a NIC; a mesh over its reliable connections.

Imported by control, switch and worker, whose rdma_switch.py and rdma_worker.py are the two ends of the link `rdma`;
imports links and meshes. Start at verbs.py, then soft.py and rdma_mesh.py.
"""
