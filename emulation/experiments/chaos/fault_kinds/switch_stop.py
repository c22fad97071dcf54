"""A switch that is stopped for longer than a lease, and goes on."""

from emulation.experiments.chaos.fault_kinds.fault_kind import StopFault, SwitchFault


class SwitchStop(SwitchFault, StopFault):
    """SIGCONT comes once all workers must have noticed: it wakes up with a job that is gone."""

    name = "switch-stop"
    summary = "SIGSTOP of a switch, SIGCONT more than a lease later"
