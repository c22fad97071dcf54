"""The switch as a process: the daemon, and the loops that drive a data plane.

Imported by testing and emulation; imports contracts, links, zeromq, rdma and control.
Start at daemon.py, then switch_loop.py; switch_endpoints.py: the switch's end of each link; impairments.py: rates,
queues and faults of its links.
"""
