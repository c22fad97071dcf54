"""A switch that is stopped for less than a lease."""

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import StopFault, SwitchFault


class SwitchPause(SwitchFault, StopFault):
    """SIGCONT comes before the lease ends: workers wait, and send again what nobody answered."""

    name = "switch-pause"
    summary = "SIGSTOP of a switch, SIGCONT within half a lease"
    leases = (0.1, 0.45)
    expected = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)
