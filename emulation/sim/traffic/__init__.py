"""Other traffic in virtual time: TCP as Linux speaks it, flows that use it, and how links were shared.

Imported by sim; imports network.
Start at sender.py (a connection's sender), then controls.py; connection.py puts them on links.
"""
