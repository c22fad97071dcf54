"""Packets of the job, changed."""

import random

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind


class ForgedPackets(FaultKind):
    """Headers of real packets with another generation, and other bits changed, from the member's own address."""

    name = "forged-packets"
    summary = "packets of the job with another generation and other changes"
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
