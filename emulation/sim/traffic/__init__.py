"""Other traffic in virtual time: TCP as Linux speaks it, flows that use it, and what sharing a link came to.

Imported by sim; imports network.
Start at sender.py (a connection's sender), then controls.py; tcp_host.py puts them on links.
"""
