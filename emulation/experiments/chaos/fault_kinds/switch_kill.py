"""A switch that is killed, and started again."""

from emulation.experiments.chaos.fault_kinds.fault_kind import KillFault, SwitchFault


class SwitchKill(SwitchFault, KillFault):
    """The new one begins at the same addresses, and knows nothing of the job."""

    name = "switch-kill"
    summary = "SIGKILL of a switch, a new one at its addresses later"
