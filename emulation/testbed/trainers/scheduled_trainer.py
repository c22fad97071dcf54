"""A rank of a run with a schedule: `transport.torch.priority.handle` instead of DDP, so that iterations overlap.

An iteration lasts from the beginning of its forward pass to that of the next one; the last one until all sums are back.
The forward pass waits, layer by layer, for sums of the iteration before. An iteration's transfers are over when the
next forward pass is, so the iteration is reported only then, or when no other follows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from emulation.sim.prediction import predicted
from emulation.testbed.children import send_report
from emulation.testbed.trainers.ddp_trainer import Trainer, TrainingClock, host_group, join_options, rendezvous
from emulation.testbed.trainers.trainer_messages import (
    GROUP_JOB,
    IterationReport,
    ModuleWait,
    TrainerConfig,
    TransferTimes,
)
from emulation.workloads.workload import RankWorkload
from switchagg.priority import CLASSES
from transport.contracts.group_contract import AllreduceGroup
from transport.schedule.schedule_table import POLICIES
from transport.schedule.scheduler import describe
from transport.torch.priority import handle as priority
from transport.torch.priority.handle import AttachOptions, ForwardWait, PriorityHandle, Records
from transport.worker.session import SwitchSession


@dataclass
class UnreportedIteration:
    """An iteration whose computing is over, but whose transfers may not be. Times are CLOCK_MONOTONIC."""

    number: int
    loss: float
    start_ns: int  # of the training's time
    times: tuple[int, int, int, int]  # its begin, and the ends of its passes
    waits: list[ForwardWait]  # for sums of the iteration before


class ScheduledTrainer(Trainer):
    """See the module. The process group (Gloo) is for the rendezvous and for barriers, except with method gloo."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config)
        self._handle: PriorityHandle
        self._unreported: UnreportedIteration | None = None
        self._records = Records([], [])

    def _attach(self, workload: RankWorkload) -> None:
        rendezvous(self.config, "gloo")
        self._group = self._open()
        self._handle = priority.attach(
            workload.model,
            workload.optimizer,
            self._group,
            self.name.schedule,
            options=AttachOptions(find_unused_parameters=False, share_parameters=False),
        )

    def _open(self) -> AllreduceGroup | None:
        """The group to reduce over; None for torch's own."""
        config, name = self.config, self.name
        if name.method == "gloo":
            return None
        classes = tuple(range(CLASSES)) if POLICIES[name.policy].urgent else ()
        if name.is_switch:
            options = join_options(config, classes)
            return SwitchSession.join(str(config.switch), GROUP_JOB, config.rank, config.workers, options)
        # Servers that run in separate processes have no classes.
        apart = config.scenario.topology.priority_queues and not config.servers
        return host_group(config, classes if apart else ())

    def _detach(self) -> None:
        self._handle.close()
        super()._detach()

    def _facts(self) -> dict[str, Any]:
        """The schedule model's prediction from the profile that rank 0 measured on this machine."""
        profile = self._handle.profile
        if profile is None:
            return {}
        prediction = predicted(self.config.scenario, self.name, self._handle.policy, profile)
        return {
            "schedule": describe(self._handle.policy),
            "predicted_iteration_ns": round(prediction.iteration_ns),
            "predicted_first_layer_wait_ns": round(prediction.waits_ns[0]),
        }

    def _core(self) -> str | None:
        return self._group.core if self._group is not None and self.name.is_switch else None

    def _notes(self) -> list[str]:
        return [
            "With a schedule iterations overlap: one begins with its forward pass, while sums of the one before may "
            "still be on their way."
        ]

    def _without_exchange(self, model: Any) -> Any:
        return model

    def _iterate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        begin_ns = time.monotonic_ns()
        start_ns = clock.at(begin_ns)
        loss = workload.loss(workload.model, iteration)
        forward_end_ns = time.monotonic_ns()
        self._take()
        waits = list(self._records.waits)
        self._records.waits.clear()
        if self._unreported is not None:
            self._report(self._unreported, start_ns)
        loss.backward()
        backward_end_ns = time.monotonic_ns()
        workload.step(iteration)
        times = (begin_ns, forward_end_ns, backward_end_ns, time.monotonic_ns())
        self._unreported = UnreportedIteration(iteration, loss.item(), start_ns, times, waits)
        reports_now = iteration + 1 in (*self.config.holds, self.config.scenario.workload.iterations)
        if reports_now or self._evaluates_after(iteration):
            self._handle.wait()  # it is this iteration that takes this time, not the evaluation
        if reports_now:
            self._take()
            self._report(self._unreported, clock.at(time.monotonic_ns()))
            self._unreported = None

    def _take(self) -> None:
        records = self._handle.records()
        self._records.transfers.extend(records.transfers)
        self._records.waits.extend(records.waits)

    def _report(self, running: UnreportedIteration, next_start_ns: int) -> None:
        """An iteration, now that the next one has begun at next_start_ns of the training, or there is none."""
        records = [record for record in self._records.transfers if record.iteration == running.number]
        self._records.transfers[:] = [record for record in self._records.transfers if record.iteration > running.number]
        spans = [
            TransferTimes(record.size_bytes, record.launched_ns, record.completed_ns, record.name, record.priority)
            for record in records
        ]
        urgent = POLICIES[self.name.policy].urgent
        first = [record for record in records if record.priority == 0] if urgent else records[-1:]
        duration_ns = next_start_ns - running.start_ns
        waited_ns = sum(wait.end_ns - wait.begin_ns for wait in running.waits)
        send_report(
            IterationReport.of(
                running.times,
                sorted(spans, key=lambda span: span.start_ns),
                waited_ns,
                TransferTimes(
                    sum(record.size_bytes for record in first),
                    max((record.ready_ns for record in first), default=0),
                    max((record.completed_ns for record in first), default=0),
                ),
                iteration=running.number,
                start_ns=running.start_ns,
                duration_ns=duration_ns,
                compute_ns=min(duration_ns, running.times[-1] - running.times[0] - waited_ns),
                loss=running.loss,
                retransmissions=self._counters().get("retransmitted", 0),
                waits=[ModuleWait(wait.module, wait.begin_ns, wait.end_ns) for wait in running.waits],
            )
        )
