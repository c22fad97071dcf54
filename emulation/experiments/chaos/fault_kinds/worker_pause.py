"""A worker that is stopped for less than a lease."""

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import StopFault


class WorkerPause(StopFault):
    """SIGCONT comes before the lease ends: it is slow, not dead."""

    name = "worker-pause"
    summary = "SIGSTOP of a worker, SIGCONT within half a lease"
    leases = (0.1, 0.45)
    expected = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)
