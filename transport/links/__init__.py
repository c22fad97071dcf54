"""Links: bundles of datagrams between a worker and a switch, without promises.

Imported by worker, switch, meshes and rdma; a link imports no other room.
Start at link.py (the contract), then udp.py.
"""
