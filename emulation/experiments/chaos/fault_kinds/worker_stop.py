"""A worker that is stopped for longer than a lease, and goes on."""

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, StopFault, rank_words


class WorkerStop(StopFault):
    """SIGCONT comes once the others must have noticed: it hears that it was taken for dead."""

    name = "worker-stop"
    summary = "SIGSTOP of a worker, SIGCONT more than a lease later"
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.EITHER, hosts=FaultOutcome.EITHER)

    def names(self, event: ChaosEvent, rank: int) -> str:
        return "taken for dead" if rank == event.place else rank_words(event.place)
