"""A worker's end of the switch: joining a job, its calls, and the loop that drives its Endpoint.

Imported by group, torch and emulation; imports links, control and rdma.
Start at session.py, then loop.py.
"""
