"""The packet simulator in C (`emulation/sim/native`): its clock, links, and hosts in C and in Python on them.

Imported by network, whose constants it takes.
Start at packet_clock.py, then links.py.
"""
