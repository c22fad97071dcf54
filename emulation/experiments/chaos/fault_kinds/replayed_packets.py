"""Packets of the job, sent once more."""

from emulation.experiments.chaos.fault_kinds.fault_kind import PacketFault


class ReplayedPackets(PacketFault):
    """What the job's links have carried, as it was, later: a repeated packet changes nothing."""

    name = "replayed-packets"
    summary = "packets of the job sent again later"
