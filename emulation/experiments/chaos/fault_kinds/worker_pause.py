"""A worker that is stopped for less than a lease."""

import signal

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind


class WorkerPause(FaultKind):
    """SIGSTOP, and SIGCONT before the lease ends: it is slow, not dead."""

    name = "worker-pause"
    summary = "SIGSTOP of a worker, SIGCONT within half a lease"
    leases = (0.1, 0.45)
    expected = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_rank(event.place, signal.SIGSTOP)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_rank(event.place, signal.SIGCONT)
