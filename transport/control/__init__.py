"""The control plane over ZeroMQ: joins, leases, status, switches below others.

Imported by worker and switch.
Start at messages.py (the messages), then server.py and client.py (the two ends), leaf.py (a switch's end).
"""
