"""A worker's end of the switch: joining a job, its calls, and the loop that drives its Endpoint.

Imported by group, torch and emulation; imports contracts, links, zeromq, rdma and control.
Start at session.py, then worker_loop.py; worker_endpoints.py: the worker's end of each link.
"""
