"""A switch that is killed, and started again."""

import signal

from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, SwitchFault


class SwitchKill(SwitchFault):
    """SIGKILL; a new one begins at the same addresses, and knows nothing of the job."""

    name = "switch-kill"
    summary = "SIGKILL of a switch, a new one at its addresses later"
    weight = 3
    leases = (0.2, 3.0)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGKILL)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.start_switch(event.place)
