"""Training under FSDP2 in virtual time: parameters are gathered unit by unit, gradients reduce-scattered.

A rank runs a program (`ShardedRank._iteration`), in the order in which FSDP2 does it: a unit's parameters are
all-gathered before its forward and again before its backward pass, the next unit's while this one computes; after a
unit's backward pass its gradients are reduce-scattered, one unit after the other, while the backward pass goes on. The
root's parameters stay gathered. A rank steps its shards alone.

Gradients are real, and so is what a rank computes them with: what all-gathers brought it. They are computed when the
backward pass begins.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from emulation.results.timeline import COMPUTE, NETWORK, Span, is_recorded
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.sim.network.simulation import Simulation
from emulation.sim.simulated_training import Progress, RankClock, Training
from emulation.workloads.replicas import Replicas
from emulation.workloads.units import Array, Shards, UnitLayout, blocks_of
from switchagg.calls.call_request import own_shard
from switchagg.description import Kind

ROOT = "root"


@dataclass(frozen=True)
class ComputeSegment:
    """A piece of uninterrupted computing of a rank, in the order of the forward pass, within a unit. Shares are of both
    passes."""

    unit: str
    forward_share: float
    backward_share: float


@dataclass(frozen=True)
class Units:
    """parameters: indices of each unit's, by its name. segments: in the order of the forward pass."""

    parameters: dict[str, tuple[int, ...]]
    segments: tuple[ComputeSegment, ...]

    @classmethod
    def of(cls, replicas: Replicas) -> Units:
        """replicas: with a bucket for every parameter."""
        names = [name for name, _ in replicas.workloads[0].model.named_parameters()]
        blocks = list(blocks_of(replicas.workloads[0].model))

        def unit_of(name: str) -> str:
            return next((block for block in blocks if name == block or name.startswith(f"{block}.")), ROOT)

        parameters = {
            unit: tuple(index for index, name in enumerate(names) if unit_of(name) == unit) for unit in [ROOT, *blocks]
        }
        ready = {bucket.parameters[0]: bucket.ready_fraction for bucket in replicas.buckets}
        runs = [(unit, list(layers)) for unit, layers in groupby(replicas.layers, lambda layer: unit_of(layer.name))]
        segments: list[ComputeSegment] = []
        begin_share = 0.0  # of the backward pass
        for unit, layers in reversed(runs):
            until = max([begin_share, *(ready[index] for layer in layers for index in layer.parameters)])
            until = 1.0 if len(segments) + 1 == len(runs) else until
            forward = sum(layer.forward_share for layer in layers) * replicas.forward_fraction
            segments.append(ComputeSegment(unit, forward, (until - begin_share) * (1 - replicas.forward_fraction)))
            begin_share = until
        return cls({unit: tensors for unit, tensors in parameters.items() if tensors}, tuple(reversed(segments)))


class UnitTransfer:
    """A collective under way on one rank, on an array that lasts until its end."""

    def __init__(self, kind: Kind, unit: str, array: Array, begun_ns: int) -> None:
        self.kind, self.unit, self.array, self.begun_ns = kind, unit, array, begun_ns
        self.ended = False


Step = int | UnitTransfer
"""The event that a rank's program waits for: a duration in ns, or the end of a transfer."""


class ShardedTraining(Training):
    """A training run under FSDP2. replicas: with a bucket for every parameter."""

    first_layer_bytes = 0

    def __init__(
        self, scenario: Scenario, simulation: Simulation, replicas: Replicas, compute: ComputeTimes, progress: Progress
    ) -> None:
        super().__init__(scenario, simulation, replicas, compute, progress)
        self.first_layer_bytes = 0
        self.units = Units.of(replicas)
        shapes = [parameter.shape for parameter in replicas.workloads[0].model.parameters()]
        self.layouts = {
            unit: UnitLayout([shapes[index] for index in parameters], self.workers)
            for unit, parameters in self.units.parameters.items()
        }
        self.ranks = [ShardedRank(self, rank) for rank in range(self.workers)]
        self.clocks = self.ranks

    @property
    def collective_bytes(self) -> dict[Kind, int]:
        """See the module: the root is gathered once in an iteration, every other unit twice."""
        sizes = self._unit_bytes()
        return {
            "all_gather": 2 * sum(sizes.values()) - sizes.get(ROOT, 0),
            "reduce_scatter": sum(sizes.values()),
        }

    def _evaluates(self, rank: int, iteration: int) -> bool:
        return self._finished[iteration] == self.workers

    def _evaluate(self, iteration: int) -> None:
        """The model is evaluated on all ranks' shards, without sending them; after the last iteration they are
        gathered, and hashed."""
        for unit in self.units.parameters:
            unit_values = np.concatenate([rank.shards.arrays[unit] for rank in self.ranks])
            self.ranks[0].fill(unit, unit_values)
        super()._evaluate(iteration)

    def _end(self) -> None:
        for rank in self.ranks:
            rank.gather_all()

    def gathered(self) -> None:
        """A rank has all parameters, in the end."""
        if all(rank.complete for rank in self.ranks):
            self.simulation.network.stop()

    def _layout(self) -> dict[str, Any]:
        return {"unit_bytes": self._unit_bytes()}

    def _unit_bytes(self) -> dict[str, int]:
        return {unit: 4 * layout.elements for unit, layout in self.layouts.items()}


class ProgramRank(RankClock):
    """A rank's run through the iterations: a program that waits for time to pass and for transfers to end."""

    def __init__(self, training: Training, rank: int) -> None:
        super().__init__(training, rank)
        self.complete = False  # it has ended for good
        self._program: Generator[Step, None, None]
        self._waits_for: UnitTransfer | None = None
        self._moved: list[tuple[int, int]] = []

    def begin(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Start the next iteration."""
        if self.iteration == self._training.warmup_iterations:
            self._count_wire()
        self._begin_ns, self._moved = self._network.now_ns, []
        self._compute_ns = self._training.compute.ns(self._rank, self.iteration)
        self._program = self._iteration()
        self._go()

    def _iteration(self) -> Generator[Step, None, None]:
        """The rank's program, up to the step of the optimiser."""
        raise NotImplementedError

    def _computing(self, name: str, share: float) -> int:
        duration_ns = round(self._compute_ns * share)
        if is_recorded(self.iteration, self._training.warmup_iterations, self._rank) and duration_ns:
            begin_ns = self._network.now_ns - self._training.begun_ns
            self.spans.append(Span(self._rank, COMPUTE, name, self.iteration, begin_ns, begin_ns + duration_ns))
        return duration_ns

    def _start(self, kind: Kind, unit: str, array: Array) -> UnitTransfer:
        transfer = UnitTransfer(kind, unit, array, self._network.now_ns)
        simulation = self._training.simulation
        op = "avg" if kind == "reduce_scatter" and simulation.divides else "sum"
        simulation.launch(self._rank, array, op, partial(self._ended, transfer), kind=kind)
        return transfer

    def _ended(self, transfer: UnitTransfer) -> None:
        training, now_ns = self._training, self._network.now_ns
        training.report_progress()
        transfer.ended = True
        self._moved.append((transfer.begun_ns, now_ns))
        if is_recorded(self.iteration, training.warmup_iterations, self._rank):
            name, begun_ns = f"{transfer.kind.replace('_', '-')} {transfer.unit}", training.begun_ns
            at_ns = transfer.begun_ns - begun_ns, now_ns - begun_ns
            self.spans.append(Span(self._rank, NETWORK, name, self.iteration, *at_ns, transfer.array.nbytes))
        if self._waits_for is transfer:
            self._waits_for = None
            self._network.schedule(now_ns, self._go)

    def _go(self, *_: object) -> None:
        """Go on with the program until it waits."""
        for step in self._program:
            if isinstance(step, int):
                self._network.schedule(self._network.now_ns + step, self._go)
                return
            if not step.ended:
                self._waits_for = step
                return
        if not self.complete:
            self._step()
            self._end_iteration(self._moved)


class ShardedRank(ProgramRank):
    """A rank under FSDP2."""

    def __init__(self, training: ShardedTraining, rank: int) -> None:
        super().__init__(training, rank)
        self._sharded = training
        self._weights = training.replicas.weights_of(rank)
        shards = {
            unit: own_shard(self._packed(unit, self._weights), rank, training.workers).copy()
            for unit in training.units.parameters
        }
        self.shards = Shards(training.replicas.workloads[rank], shards, training.layouts, rank)

    def _packed(self, unit: str, arrays: Sequence[Array] | dict[int, Array]) -> Array:
        """The entries of a list with one entry per parameter of the model."""
        return self._sharded.layouts[unit].pack([arrays[index] for index in self._sharded.units.parameters[unit]])

    def fill(self, unit: str, array: Array) -> None:
        """Let the model compute with these parameters of a unit."""
        weights = [self._weights[index] for index in self._sharded.units.parameters[unit]]
        self._sharded.layouts[unit].unpack(array, weights)

    def _iteration(self) -> Generator[Step, None, None]:
        """See the module."""
        segments, replicas = self._sharded.units.segments, self._training.replicas
        gathers: dict[str, UnitTransfer] = {}

        def gathered(unit: str) -> Iterator[Step]:
            transfer = gathers.get(unit) or self._gather(unit)
            yield transfer
            self.fill(unit, transfer.array)

        # Forward. The root's parameters come first, whatever is computed first: FSDP2 begins with them.
        order = [ROOT, *(segment.unit for segment in segments if segment.unit != ROOT)]
        order = [unit for unit in order if unit in self._sharded.units.parameters]
        following = dict(pairwise(order))
        yield from gathered(order[0])
        for segment in segments:
            if segment.unit != order[0]:
                yield from gathered(segment.unit)
            if (after := following.pop(segment.unit, None)) is not None:
                gathers[after] = self._gather(after)
            yield self._computing(f"forward {segment.unit}", segment.forward_share)
        gradients = dict(
            zip(
                (bucket.parameters[0] for bucket in replicas.buckets),
                replicas.gradients_of(self._rank, self.iteration),
                strict=True,
            )
        )
        self.losses.append(replicas.losses[self._rank])

        # Backward
        gathers = {}
        reduced: UnitTransfer | None = None
        left = [segment.unit for segment in segments]
        while left:
            unit = left.pop()
            if unit != ROOT:
                yield from gathered(unit)
                before = next((unit_name for unit_name in reversed(left) if unit_name != ROOT), None)
                if before is not None:
                    gathers[before] = self._gather(before)
            share = segments[len(left)].backward_share
            yield self._computing(f"backward {unit}", share)
            if unit in left or unit not in self._sharded.units.parameters:
                continue  # the rest of its gradients comes later
            if reduced is not None:
                yield reduced
                self._keep_reduced(reduced)
            reduced = self._start("reduce_scatter", unit, self._packed(unit, gradients))
        if reduced is not None:
            yield reduced
            self._keep_reduced(reduced)

    def _keep_reduced(self, transfer: UnitTransfer) -> None:
        gradient = own_shard(transfer.array, self._rank, self._training.workers)
        if not self._training.simulation.divides:
            gradient /= self._training.workers
        self.shards.set_gradient(transfer.unit, gradient)

    def _gather(self, unit: str) -> UnitTransfer:
        """Start to gather a unit's parameters from all ranks' shards."""
        array = np.zeros(self._sharded.layouts[unit].elements, np.float32)
        np.copyto(own_shard(array, self._rank, self._training.workers), self.shards.arrays[unit])
        return self._start("all_gather", unit, array)

    def _step(self) -> None:
        self.shards.step(self.iteration)

    def gather_all(self) -> None:
        """In the end: all parameters, as a forward pass would gather them."""
        self._program = self._gathering()
        self._go()

    def _gathering(self) -> Generator[Step, None, None]:
        for unit in self._sharded.units.parameters:
            transfer = self._gather(unit)
            yield transfer
            self.fill(unit, transfer.array)
        self.complete = True
        self._sharded.gathered()
