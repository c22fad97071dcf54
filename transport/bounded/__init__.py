"""Allreduces that may lose gradients for good, within bounds: the methods `mlt`, `dgt`, `ltp` and `optireduce`.

Pure state machines of packets and time. Imported by group, torch and emulation; imports collectives and the contract of
meshes. Start at bounded_party.py (what a member does), then rules.py (what each method adds).
"""
