"""The control plane over ZeroMQ: joins, leases, status.

Imported by worker and switch.
Start at messages.py (the messages), then server.py and client.py (the two ends).
"""
