"""A switch that is asked to end, and started again at once."""

from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, SwitchFault


class SwitchRestart(SwitchFault):
    """SIGTERM, as systemd restarts a service: the switch lets its jobs leave, then ends."""

    name = "switch-restart"
    summary = "SIGTERM of a switch, a new one at its addresses once it has ended"

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.restart_switch(event.place)
