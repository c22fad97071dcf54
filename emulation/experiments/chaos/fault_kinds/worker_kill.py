"""A worker that is killed."""

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import KillFault


class WorkerKill(KillFault):
    """SIGKILL. In an elastic job it starts again alone; else all ranks do, once they have ended."""

    name = "worker-kill"
    summary = "SIGKILL of a worker"
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.ENDS, hosts=FaultOutcome.ENDS)

    def span(self, options: ChaosOptions) -> tuple[float, float]:
        return self.leases if options.elastic else (0.0, 0.0)
