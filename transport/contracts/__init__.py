"""Contracts: what rooms ask of each other, as protocols and small records; nothing here runs by itself.

Imported by every room of transport, by emulation and by users; imports no other room of transport.
Start at group_contract.py (what every method offers to a program), then switch_host.py (a switch's loop, as its control
plane sees it).
"""
