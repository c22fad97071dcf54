"""A worker that is killed."""

import signal

from emulation.experiments.chaos.chaos_options import FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import Casualties, ChaosEvent, FaultKind


class WorkerKill(FaultKind):
    """SIGKILL: the process is gone, and the kernel closes what it had."""

    name = "worker-kill"
    summary = "SIGKILL of a worker"
    weight = 3
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.ENDS, hosts=FaultOutcome.ENDS)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal_rank(event.place, signal.SIGKILL)
