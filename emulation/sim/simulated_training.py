"""Training in virtual time: what each rank does when, iteration after iteration, in DDP's way.

Every rank has a replica of the model and computes real gradients. Buckets become ready during the backward pass in
DDP's order and are allreduced while it goes on; once all are back, the averaged gradients are applied and the rank
begins its next iteration. Ranks run on their own: nothing but the allreduce makes them wait for each other.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulation.results.results import Evaluation, IterationRecord, MethodResult
from emulation.results.timeline import COMPUTE, NETWORK, Intervals, Span, communication_ns, is_recorded, with_median
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import RDMA_CONTROLS
from emulation.sim.network.simulation import Simulation
from switchagg.description import Kind
from transport.group.method_name import METHODS, MethodName

if TYPE_CHECKING:
    from emulation.workloads.replicas import Replicas

Progress = Callable[[int, int, str], None]
SILENT_S = 10
"""At most about so long nothing is said of a run, but where a single collective takes longer."""


class Clock(ABC):
    """A rank's run through the iterations, and the records of its result. Lists have an entry per iteration.

    skipped: iterations without computing, whose result was there.
    wire_bytes: (sent, received) at the start and at the end of what is counted.
    """

    def __init__(self, training: Training, rank: int) -> None:
        self.iteration = 0
        self.ends_ns: list[int] = []
        self.transfers: list[Intervals] = []
        self.losses: list[float] = []
        self.first_layers_ns: list[int] = []
        self.spans: list[Span] = []
        self.skipped: set[int] = set()
        self.wire_bytes: list[tuple[int, int]] = []
        self._training = training
        self._network = training.simulation.network
        self._rank = rank

    @abstractmethod
    def begin(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Start the next iteration."""

    def _count_wire(self) -> None:
        self.wire_bytes.append(self._training.simulation.wire_bytes(self._rank))


class RankClock(Clock):
    """A rank's events in virtual time and their durations."""

    def __init__(self, training: Training, rank: int) -> None:
        super().__init__(training, rank)
        self._begin_ns = 0
        self._compute_ns = 0  # of this iteration
        self._complete = False
        self._buckets: list[np.ndarray] = []
        self._under_way: dict[int, tuple[int, int]] = {}  # bucket -> (start, end), once it is back
        self._launched_ns: dict[int, int] = {}

    def begin(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Start the next iteration: compute the gradients, and plan when each bucket is ready."""
        training, network = self._training, self._network
        if self.iteration == training.warmup_iterations:
            self._count_wire()
        self._begin_ns = network.now_ns
        self._buckets = training.replicas.gradients_of(self._rank, self.iteration)
        self.losses.append(training.replicas.losses[self._rank])
        self._under_way = {}
        self._complete = False
        if training.simulation.finished_without(self._rank, [len(bucket) for bucket in self._buckets]):
            self.skipped.add(self.iteration)  # not computed: the step alone, and on to the newest round
            for bucket in self._buckets:
                bucket[:] = 0
        self._compute_ns = 0 if self.iteration in self.skipped else training.compute.ns(self._rank, self.iteration)
        for index, ready_ns in enumerate(training.replicas.ready_ns(self._compute_ns)):
            network.schedule(self._begin_ns + ready_ns, self._launch, None, index)
        network.schedule(self._begin_ns + self._compute_ns, self._computed)

    def _launch(self, _frame: None, index: int, _to: int) -> None:
        self._launched_ns[index] = self._network.now_ns
        self._send(index)

    def _send(self, index: int) -> None:
        simulation, done = self._training.simulation, functools.partial(self._returned, index)
        tensors = self._training.replicas.tensors[index] if simulation.config.codec else None
        named: dict[str, Any] = {}
        if simulation.names_calls:  # the last bucket to be ready holds the first layer
            named = {"key": index, "priority": len(self._buckets) - 1 - index}
        simulation.launch(self._rank, self._buckets[index], simulation.mean_op, done, tensors=tensors, **named)

    def _returned(self, index: int) -> None:
        self._training.report_progress()
        self._under_way[index] = (self._launched_ns.pop(index), self._network.now_ns)
        self._finish_if_complete()

    def _computed(self, _frame: None, _sender: int, _to: int) -> None:
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        """All buckets are back and the backward pass is over: one step of the optimiser, and on."""
        training, now_ns = self._training, self._network.now_ns
        if len(self._under_way) < len(self._buckets) or now_ns < self._begin_ns + self._compute_ns:
            return
        if self._complete:
            return  # the last bucket came back in the very nanosecond in which the backward pass ended
        self._complete = True
        self._step()
        self.ends_ns.append(now_ns - training.begun_ns)
        self.transfers.append([*self._under_way.values()])
        start_ns, end_ns = self._under_way[len(self._buckets) - 1]  # the last to be ready holds the first layer
        self.first_layers_ns.append(end_ns - start_ns)
        if is_recorded(self.iteration, training.warmup_iterations, self._rank):
            self._keep_spans()
        self.iteration += 1
        training.finished(self._rank, self.iteration - 1)
        if self.iteration < training.iterations:
            self._go_on()
        else:
            self._count_wire()

    def _end_iteration(self, moved: Intervals) -> None:
        """An iteration of a program is over, whose transfers were these; on to the next."""
        training = self._training
        self.ends_ns.append(self._network.now_ns - training.begun_ns)
        self.transfers.append(moved)
        self.iteration += 1
        if self.iteration == training.iterations:
            self._count_wire()
        training.finished(self._rank, self.iteration - 1)
        if self.iteration < training.iterations:
            self._go_on()

    def _step(self) -> None:
        """All buckets are back."""
        for bucket in self._buckets:
            bucket /= self._training.divisor
        self._training.replicas.apply_to(self._rank, self.iteration, self._buckets)

    def _go_on(self) -> None:
        self._network.schedule(self._network.now_ns, self.begin)

    def _keep_spans(self) -> None:
        training, begun_ns = self._training, self._training.begun_ns
        begin_ns = self._begin_ns - begun_ns
        forward_ns = round(self._compute_ns * training.replicas.forward_fraction)
        computed = ((0, forward_ns, "forward"), (forward_ns, self._compute_ns, "backward"))
        for low_ns, high_ns, name in computed:
            self.spans.append(Span(self._rank, COMPUTE, name, self.iteration, begin_ns + low_ns, begin_ns + high_ns))
        for index, (start_ns, end_ns) in sorted(self._under_way.items()):
            at_ns = start_ns - begun_ns, end_ns - begun_ns
            size_bytes = self._buckets[index].nbytes
            self.spans.append(Span(self._rank, NETWORK, f"bucket {index}", self.iteration, *at_ns, size_bytes))


class Training:
    """A training run in virtual time. `run` it, then ask for its `result`."""

    def __init__(
        self, scenario: Scenario, simulation: Simulation, replicas: Replicas, compute: ComputeTimes, progress: Progress
    ) -> None:
        self.simulation = simulation
        self.replicas = replicas
        self.compute = compute
        self.begun_ns = 0  # of the network's time
        self.workers = scenario.topology.workers
        self.divisor = self.workers if simulation.mean_op == "sum" else 1
        self.iterations = scenario.workload.iterations
        self.warmup_iterations = scenario.workload.warmup_iterations
        self._evaluate_every = scenario.workload.evaluate_every
        self._progress = progress
        self.clocks: Sequence[Clock] = [RankClock(self, rank) for rank in range(self.workers)]
        self.first_layer_bytes = 4 * replicas.buckets[-1].elements  # the last bucket to be ready holds that gradient
        self._scores: list[tuple[int, float, float]] = []
        self._finished = [0] * self.iterations  # ranks that are through with an iteration
        self._reported_s = time.monotonic()
        self._servers_wire: list[list[tuple[int, int]]] = []  # as a rank's wire_bytes, for each server

    def run(self) -> None:
        """Train to the end. AggregationFailed if a call is given up."""
        for clock in self.clocks:
            self.simulation.network.schedule(0, clock.begin)
        self.simulation.run(f"{self.iterations} iterations of training")

    def finished(self, rank: int, iteration: int) -> None:
        """A rank has applied its gradients. Rank 0 is the one that evaluates; that takes no virtual time."""
        last = iteration + 1 == self.iterations
        self._finished[iteration] += 1
        if self._evaluates(rank, iteration) and (last or (iteration + 1) % self._evaluate_every == 0):
            self._evaluate(iteration)
        if self._finished[iteration] == self.workers:
            if iteration + 1 in (self.warmup_iterations, self.iterations):
                members = range(self.workers, len(self.simulation.topology.members))
                self._servers_wire.append([self.simulation.wire_bytes(member) for member in members])
            self._tell(iteration + 1)
            if last:
                self._end()

    def report_progress(self) -> None:
        """Something has ended, long after the last word, in an iteration that takes long: say how far it is."""
        if time.monotonic() - self._reported_s >= SILENT_S:
            done = next((k for k, ranks in enumerate(self._finished) if ranks < self.workers), self.iterations)
            self._tell(done)

    def _tell(self, done: int) -> None:
        self._reported_s = time.monotonic()
        virtual_s = self.simulation.network.now_ns / 1e9
        self._progress(done, self.iterations, f"{virtual_s:.6g} s of virtual time")

    def _evaluates(self, rank: int, iteration: int) -> bool:
        """Whether the weights after an iteration are there, now that this rank has them."""
        return rank == 0

    def _evaluate(self, iteration: int) -> None:
        score = self.replicas.evaluate()
        if score is not None:  # size-only replicas learn nothing
            self._scores.append((iteration, score.accuracy, score.loss))

    def _evaluated_ns(self, iteration: int, records: Sequence[IterationRecord]) -> int:
        return records[iteration].start_ns + records[iteration].duration_ns

    def _end(self) -> None:
        """All ranks are through."""
        self.simulation.network.stop()

    @property
    def gradient_bytes(self) -> int:
        """Summed over ranks in an iteration."""
        return self.replicas.gradient_bytes

    @property
    def collective_bytes(self) -> dict[Kind, int]:
        """Bytes of the arrays of each kind of collective in an iteration, where not all are allreduces."""
        return {}

    @property
    def call_bytes(self) -> tuple[int, ...]:
        """Bytes of each allreduce of gradients in an iteration; (): there are calls of several kinds."""
        return () if self.collective_bytes else tuple(4 * bucket.elements for bucket in self.replicas.buckets)

    def facts(self) -> dict[str, Any]:
        """Facts about the schedule; DDP's default has none."""
        return {}

    def _layout(self) -> dict[str, Any]:
        """The groups of gradients that are reduced together, and their times."""
        return {
            "bucket_ready_ns": self.replicas.ready_ns(self.compute.planned_ns),
            "bucket_elements": [bucket.elements for bucket in self.replicas.buckets],
        }

    def result(self, method: MethodName, notes: Sequence[str]) -> MethodResult:
        """The run's measurements; parameters of all ranks are hashed now."""
        records = self.records()
        wire = [(end[0] - start[0], end[1] - start[1]) for start, end in (clock.wire_bytes for clock in self.clocks)]
        return MethodResult(
            method=method,
            backend="sim",
            workers=self.workers,
            iterations=records,
            evaluations=[
                Evaluation(iteration, self._evaluated_ns(iteration, records), accuracy, loss)
                for iteration, accuracy, loss in self._scores
            ],
            parameters=self.replicas.parameters,
            gradient_bytes=self.gradient_bytes,
            collective_bytes=self.collective_bytes,
            wire_tx_bytes_per_rank=[sent_bytes for sent_bytes, _ in wire],
            wire_rx_bytes_per_rank=[received for _, received in wire],
            wire_tx_bytes_per_server=[after[0] - before[0] for before, after in zip(*self._servers_wire, strict=True)],
            wire_rx_bytes_per_server=[after[1] - before[1] for before, after in zip(*self._servers_wire, strict=True)],
            wire_iterations=self.iterations - self.warmup_iterations,
            retransmissions=self.simulation.retransmissions(),
            switch_counters=self.simulation.switch_counters(),
            gradient_loss=self.simulation.gradient_loss(),
            partial_sums=self.simulation.partial_sums(),
            parameter_hash_per_rank=self.replicas.parameter_hashes(),
            certificate=None,
            notes=[
                *notes,
                *self.simulation.notes(),
                "Retransmissions and counters cover the whole run, warm-up included.",
            ],
            environment=self._environment(method),
            first_layer_bytes=self.first_layer_bytes,
            call_bytes=self.call_bytes,
            timeline=with_median(
                (span for clock in self.clocks for span in clock.spans),
                {record.iteration: record.duration_ns for record in records},
                self.warmup_iterations,
            ),
        )

    def records(self) -> list[IterationRecord]:
        """An iteration lasts from the end of the one before to its own end, both on the slowest rank.

        The time is that of the slowest rank that a sum waits for. Backup workers take rounds in bursts, without
        waiting.
        """
        spare = self.simulation.backups
        ends_ns = [
            sorted(clock.ends_ns[k] for clock in self.clocks)[self.workers - 1 - spare] for k in range(self.iterations)
        ]
        starts_ns = [0, *ends_ns[:-1]]
        return [
            IterationRecord(
                iteration=k,
                start_ns=starts_ns[k],
                duration_ns=ends_ns[k] - starts_ns[k],
                compute_ns=sorted(
                    0 if k in clock.skipped else self.compute.ns(rank, k) for rank, clock in enumerate(self.clocks)
                )[self.workers - 1 - spare],
                communication_ns=communication_ns([clock.transfers[k] for clock in self.clocks], spare),
                loss=sum(clock.losses[k] for clock in self.clocks) / self.workers,
                first_layer_ns=max(
                    (ns for clock in self.clocks for ns in clock.first_layers_ns[k : k + 1]), default=None
                ),
            )
            for k in range(self.iterations)
        ]

    def _environment(self, method: MethodName) -> dict[str, Any]:
        """The network's facts and its links' fault counters; all of it follows from scenario and code."""
        config = self.simulation.config
        environment: dict[str, Any] = {
            "link": {"rate_bps": config.link.rate_bps, "delay_ns": config.link.delay_ns},
            "queue_bytes": config.link.queue_bytes,
            "switch_latency_ns": config.switch_latency_ns,
            "rto_min_ns": config.rto_min_ns,
            "rto_initial_ns": config.rto_initial_ns,
            "rto_max_ns": config.rto_max_ns,
            "compute_ns": self.compute.means_ns(),
            **self._layout(),
            "link_faults": self.simulation.faults(),
            "checksum_failures": self.simulation.drop_checksum(),
            **self.facts(),
        }
        if method.is_switch:
            environment["dataplane"] = config.dataplane
        elif not method.in_packets:
            reliable = self.simulation.reliable
            if config.tcp:
                rdma = config.tcp in RDMA_CONTROLS
                environment["rdma_congestion_control" if rdma else "tcp_congestion_control"] = config.tcp
            else:
                follows = METHODS[method.method].loses
                environment["congestion_control"] = (
                    "friendly: windows follow marks" if follows else "none: the window alone bounds what is in flight"
                )
                environment["window_bytes"] = reliable.window_bytes
            environment["ack_every_segments"] = reliable.ack_every_segments
            environment["segment_bytes"] = reliable.segment_bytes
        return environment
