"""Packets of the job, sent once more."""

import random

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind


class ReplayedPackets(FaultKind):
    """What the job's links have carried, as it was, later: a repeated packet changes nothing."""

    name = "replayed-packets"
    summary = "packets of the job sent again later"
    needs_switch = True
    needs_network = True
    leases = (0.5, 1.5)
    expected = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return "", ""

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.send_packets(event)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.stop_packets()
