"""A switch that is stopped for longer than a lease, and goes on."""

import signal

from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, SwitchFault


class SwitchStop(SwitchFault):
    """SIGSTOP, and SIGCONT once all workers must have noticed: it wakes up with a job that is gone."""

    name = "switch-stop"
    summary = "SIGSTOP of a switch, SIGCONT more than a lease later"
    leases = (2.0, 3.0)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGSTOP)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_switch(event.place, signal.SIGCONT)
