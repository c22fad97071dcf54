"""A switch that is asked to end, and started again at once."""

import random

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import SWITCH, Casualties, ChaosEvent, FaultKind, pick


class SwitchRestart(FaultKind):
    """SIGTERM, as systemd restarts a service: the switch lets its jobs leave, then ends."""

    name = "switch-restart"
    summary = "SIGTERM of a switch, a new one at its addresses once it has ended"
    needs_switch = True
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.SAME_BITS)

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return f"{SWITCH} {pick(chance, options.switches)}", ""

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.restart_switch(event.place)
