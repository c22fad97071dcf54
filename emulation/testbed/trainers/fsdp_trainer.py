"""A rank of a run under FSDP2: `fully_shard` on every block and on the model, and the times of each collective.

On an accelerator FSDP2 computes while its streams communicate. A CPU has no streams, so the same is done through its
public hooks, for all methods alike: all-gathers are asynchronous, with the next block's prefetched, and reduce-scatters
go on while the backward pass does, one after the other, as with FSDP2's single input buffer; the step waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from emulation.testbed.children import send_report
from emulation.testbed.trainers.ddp_trainer import Trainer, TrainingClock, join_process_group
from emulation.testbed.trainers.trainer_messages import IterationReport, TransferTimes
from emulation.workloads.units import blocks_of
from emulation.workloads.workload import RankWorkload
from switchagg.description import Kind

# Renamed in PyTorch 2.13.
_all_gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


KINDS: tuple[Kind, Kind] = ("all_gather", "reduce_scatter")


class TimedCollectives:
    """Collectives in flight, and their times. waited_ns: of the thread that computes. moved_bytes: by kind."""

    def __init__(self) -> None:
        self.reset()
        # Threads of ours wait, since what a Work reports of its end differs between backends; in order of starting.
        self._waiting = {kind: ThreadPoolExecutor(1, f"waits for {kind}") for kind in KINDS}
        self._reduced: Future[None] | None = None

    def begin(self, kind: Kind, unit: str, array: torch.Tensor, start: Callable[[], dist.Work]) -> Future[None]:
        """Start one on a unit's array."""
        span = TransferTimes(array.nbytes, time.monotonic_ns(), name=f"{kind.replace('_', '-')} {unit}")
        self.spans.append(span)
        self.moved_bytes[kind] += array.nbytes
        work = start()

        def end() -> None:
            work.wait()
            span.end_ns = time.monotonic_ns()

        return self._waiting[kind].submit(end)

    def reduce(self, unit: str, array: torch.Tensor, start: Callable[[], dist.Work]) -> None:
        """Start a reduce-scatter when the one before has ended."""
        self.finish()
        self._reduced = self.begin("reduce_scatter", unit, array, start)

    def finish(self) -> None:
        """Wait for the reduce-scatter that is under way. They start and end in order."""
        if self._reduced is not None:
            self.wait(self._reduced)
            self._reduced = None

    def wait(self, ended: Future[None]) -> None:
        """Raises what the collective raised."""
        since_ns = time.monotonic_ns()
        ended.result()
        self.waited_ns += time.monotonic_ns() - since_ns

    def reset(self) -> None:
        """Forget what ended."""
        self.spans: list[TransferTimes] = []
        self.moved_bytes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.waited_ns = 0


class AllGatherWork(dist.Work):
    """An all-gather that FSDP2 waits for when it needs the parameters."""

    def __init__(self, collectives: TimedCollectives, ended: Future[None]) -> None:
        super().__init__()
        self._collectives, self._ended = collectives, ended

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._collectives.wait(self._ended)
        return True


class UnitCollectives:
    """The custom all-gather or reduce-scatter of a unit, which FSDP2 calls through its public interface."""

    def __init__(self, collectives: TimedCollectives, unit: str) -> None:
        self._collectives, self._unit = collectives, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class UnitAllGather(UnitCollectives):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        def start() -> dist.Work:
            return _all_gather(output_tensor, input_tensor, group=group, async_op=True)

        return AllGatherWork(self._collectives, self._collectives.begin("all_gather", self._unit, output_tensor, start))


class UnitReduceScatter(UnitCollectives):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        def start() -> dist.Work:
            return _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=True)

        self._collectives.reduce(self._unit, input_tensor, start)


class FsdpTrainer(Trainer):
    """See the module. The parameters of all ranks are gathered once, when all is over, for the evaluation and the
    check that they are the same everywhere."""

    _model: Any
    _collectives: Any

    def _attach(self, workload: RankWorkload) -> None:
        join_process_group(self.config)
        self._collectives = TimedCollectives()
        model = workload.model
        self._units: dict[str, Any] = {**blocks_of(model), "root": model}
        for unit in self._units.values():
            fully_shard(unit)
        for name, unit in self._units.items():
            unit.set_custom_all_gather(UnitAllGather(self._collectives, name))
            unit.set_custom_reduce_scatter(UnitReduceScatter(self._collectives, name))
        order = [model, *list(self._units.values())[:-1]]
        for unit, following in pairwise(order):
            unit.set_modules_to_forward_prefetch([following])
        workload.optimizer = workload.optimizer_of(model.parameters())
        self._model = model
        dist.all_reduce(torch.zeros(1))  # whatever makes its threads at the first call makes them now
        self._check_path()

    def _notes(self) -> list[str]:
        sizes = [sum(parameter.numel() for parameter in unit.parameters()) for unit in self._units.values()]
        blocks = len(sizes) - 1
        return [
            f"FSDP2: {blocks} blocks are units of their own, all-gathered before their forward and again before their "
            "backward pass, and reduce-scattered after it; the rest is gathered once. The next unit's all-gather is "
            "prefetched and reduce-scatters overlap with the backward pass, with every method. Parameters are gathered "
            "for an evaluation only at the end."
        ]

    def _evaluates_after(self, iteration: int) -> bool:
        return iteration + 1 == self.config.scenario.workload.iterations

    def _evaluate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        """At the end: gather, into a model of its own on every rank."""
        if self.config.hold_at_end:
            self._hold(clock, workload)
        self._moved_bytes = dict(self._collectives.moved_bytes)  # without those of what follows
        model = workload.task.build_model()
        with torch.no_grad():
            for target, gathered in zip(model.parameters(), self._gathered(), strict=True):
                target.copy_(gathered)
        workload.model = model
        super()._evaluate(workload, iteration, clock)

    def _gathered(self) -> list[torch.Tensor]:
        """All parameters, by the method's own all-gathers: what a forward pass would compute with."""
        for unit in self._units.values():
            unit.unshard()
        return list(self._model.parameters())

    def _loss(self, workload: RankWorkload, iteration: int) -> torch.Tensor:
        return workload.loss(self._model, iteration)

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def _iterate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        collectives = self._collectives
        collectives.reset()
        start_ns = time.monotonic_ns()
        loss = self._loss(workload, iteration)
        forward_end_ns = time.monotonic_ns()
        self._backward(loss)
        collectives.finish()
        backward_end_ns = time.monotonic_ns()
        workload.step(iteration)
        send_report(
            IterationReport.of(
                (start_ns, forward_end_ns, backward_end_ns, time.monotonic_ns()),
                collectives.spans,
                collectives.waited_ns,
                iteration=iteration,
                start_ns=clock.at(start_ns),
                loss=loss.item(),
                retransmissions=self._counters().get("retransmitted", 0),
            )
        )

    def _collective_bytes(self) -> dict[Kind, int]:
        """The bytes of the last iteration: FSDP2 pads shards to equal length."""
        return self._moved_bytes
