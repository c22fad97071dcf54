"""Packets of random bytes."""

import random

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind


class RandomPackets(FaultKind):
    """Random bytes of random length, to the data ports of switch and ranks, from a host that is no member."""

    name = "random-packets"
    summary = "random bytes to the data ports"
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
