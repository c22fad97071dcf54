"""Packets of random bytes."""

from emulation.experiments.chaos.fault_kinds.fault_kind import PacketFault


class RandomPackets(PacketFault):
    """Random bytes of random length, to the data ports of switch and ranks, from a host that is no member."""

    name = "random-packets"
    summary = "random bytes to the data ports"
