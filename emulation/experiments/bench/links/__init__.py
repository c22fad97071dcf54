"""Links one way beside plain pyzmq and plain UDP, and RDMA beside plain UDP.

Imported by cli and bench.
Start at one_way.py.
"""
