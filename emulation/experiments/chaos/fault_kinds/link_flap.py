"""A link that is down for less than a lease."""

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.link_cut import LinkCut


class LinkFlap(LinkCut):
    """`ip link set down`, and up again half a second before the lease ends, at the latest."""

    name = "link-flap"
    summary = "the link of a worker or switch down for less than half a lease"
    leases = (0.05, 0.45)
    expected = expected_of_workers = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)
