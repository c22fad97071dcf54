"""A rank that synchronises by a training method (`[workload] synchronisation`), in place of DDP's sums.

DDP still wraps the model, and sums in the method's synchronous steps. A sum that travels while ranks compute belongs to
the iteration that waits for it, which is the same on all ranks.
"""

import time
from typing import Any

from emulation.testbed.trainers.ddp_trainer import Trainer, TrainingClock
from emulation.testbed.trainers.trainer_messages import TrainerConfig, TransferTimes
from emulation.workloads.workload import RankWorkload
from transport.torch.training.training_method import AttachedMethod
from transport.torch.training.training_methods import attach, parse_method


class SynchronisedTrainer(Trainer):
    """See the module."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config)
        self._method = parse_method(config.scenario.workload.synchronisation)
        self._attached: AttachedMethod
        self._calls: list[TransferTimes] = []  # of the method's own, that weren't reported yet
        self._waited_ns = self._reported = 0
        self._moved: list[int] = []  # bytes summed in each iteration

    def _attach(self, workload: RankWorkload) -> None:
        super()._attach(workload)
        self._attached = attach(self._model, workload.optimizer, self._method)
        self._attached.observe(self._called)

    def _called(self, size_bytes: int, work: Any) -> None:
        call = TransferTimes(size_bytes, time.monotonic_ns())
        self._calls.append(call)

        def returned(_: Any) -> None:
            call.end_ns = time.monotonic_ns()

        if hasattr(work, "get_future"):  # a coded sum goes on when it is waited for, and ends then
            work.get_future().then(returned)

    def _returned(self) -> list[TransferTimes]:
        count = self._attached.waited_calls - self._reported
        back, self._calls, self._reported = self._calls[:count], self._calls[count:], self._reported + count
        for call in back:
            call.end_ns = call.end_ns or time.monotonic_ns()  # its callback is late
        spans = [*back, *super()._returned()]
        self._moved.append(sum(span.size_bytes for span in spans))
        return spans

    def _waited_in_step_ns(self) -> int:
        before_ns, self._waited_ns = self._waited_ns, self._attached.waited_ns
        return self._waited_ns - before_ns

    def _evaluate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        if iteration + 1 == self.config.scenario.workload.iterations:
            since_ns = time.monotonic_ns()
            self._attached.finish()
            clock.leave_out(since_ns)
        super()._evaluate(workload, iteration, clock)

    def _gradient_bytes(self, workload: RankWorkload) -> int:
        """The mean over whole rounds after the warm-up."""
        counted = self._moved[self.config.scenario.workload.warmup_iterations :]
        rounds = counted[: len(counted) // self._method.round_steps * self._method.round_steps] or counted
        return round(sum(rounds) / len(rounds))

    def _facts(self) -> dict[str, Any]:
        return {"synchronisation": str(self._method), "round_iterations": self._method.round_steps}

    def _notes(self) -> list[str]:
        return [
            f"Ranks synchronise by {self._method.label} ({self._method}): {self._method.summary}. Before the end "
            "rank 0's own parameters are evaluated; the end, in which all get the same, counts as no iteration.",
            f"Times and bytes of an iteration are means over {self._method.round_steps} in a row, a round.",
        ]
