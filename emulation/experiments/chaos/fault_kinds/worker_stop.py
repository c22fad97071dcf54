"""A worker that is stopped for longer than a lease, and goes on."""

import signal

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind, rank_words


class WorkerStop(FaultKind):
    """SIGSTOP, and SIGCONT once the others must have noticed: it hears that it was taken for dead."""

    name = "worker-stop"
    summary = "SIGSTOP of a worker, SIGCONT more than a lease later"
    leases = (2.0, 3.0)
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.EITHER, hosts=FaultOutcome.EITHER)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_rank(event.place, signal.SIGSTOP)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_rank(event.place, signal.SIGCONT)

    def names(self, event: ChaosEvent, rank: int) -> str:
        return "taken for dead" if rank == event.place else rank_words(event.place)
