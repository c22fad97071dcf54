"""A switch that is stopped for longer than a lease, and goes on."""

import random
import signal

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import SWITCH, Casualties, ChaosEvent, FaultKind, pick


class SwitchStop(FaultKind):
    """SIGSTOP, and SIGCONT once all workers must have noticed: it wakes up with a job that is gone."""

    name = "switch-stop"
    summary = "SIGSTOP of a switch, SIGCONT more than a lease later"
    needs_switch = True
    leases = (2.0, 3.0)
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.SAME_BITS)

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return f"{SWITCH} {pick(chance, options.switches)}", ""

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGSTOP)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGCONT)
