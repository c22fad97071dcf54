"""The control plane over ZeroMQ: joins, leases, status, switches below others.

Imported by worker, switch, testing and emulation; imports contracts, links, rdma and zeromq.
Start at control_messages.py, then control_server.py and control_client.py (the two ends), leaf.py (a switch's end).
"""
