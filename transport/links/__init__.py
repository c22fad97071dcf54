"""Links: bundles of datagrams between a worker and a switch, without promises.

Imported by every room above it; imports no other room, and link_kinds.py names what the others open.
Start at link_kinds.py (which links there are; link_kind.py: what each can), link.py (the contract), then udp_link.py.
"""
