"""Links: bundles of datagrams between a worker and a switch, without promises.

Imported by worker, switch, meshes and rdma; a link imports no other room, and table.py names what the others open.
Start at table.py (which links there are and what each can; kind.py), link.py (the contract), then udp.py.
"""
