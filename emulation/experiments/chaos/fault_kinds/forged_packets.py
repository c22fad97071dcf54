"""Packets of the job, changed."""

from emulation.experiments.chaos.fault_kinds.fault_kind import PacketFault


class ForgedPackets(PacketFault):
    """Headers of real packets with another generation, and other bits changed, from the member's own address."""

    name = "forged-packets"
    summary = "packets of the job with another generation and other changes"
