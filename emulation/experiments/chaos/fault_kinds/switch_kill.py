"""A switch that is killed, and started again."""

import random
import signal

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import SWITCH, Casualties, ChaosEvent, FaultKind, pick


class SwitchKill(FaultKind):
    """SIGKILL; a new one begins at the same addresses, and knows nothing of the job."""

    name = "switch-kill"
    summary = "SIGKILL of a switch, a new one at its addresses later"
    weight = 3
    needs_switch = True
    leases = (0.2, 3.0)
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.SAME_BITS)

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return f"{SWITCH} {pick(chance, options.switches)}", ""

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGKILL)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.start_switch(event.place)
