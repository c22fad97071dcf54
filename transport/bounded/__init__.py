"""Allreduces that may lose gradients for good, within bounds: the methods `mlt`, `dgt`, `ltp` and `optireduce`.

Pure state machines of packets and time, which `emulation.sim.network` drives in virtual time. Start reading at
`party.py` (what a member does), then `rules.py` (what the methods have of their own).
"""
