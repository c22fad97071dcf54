"""The switch as a process: the daemon, and the loops that drive a data plane.

Imported by emulation; imports links, control, rdma and zeromq.
Start at daemon.py, then loop.py; impairments.py: rates, queues and faults of its links.
"""
