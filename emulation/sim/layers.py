"""Training with a schedule in virtual time: the next forward pass begins before all sums of the last one are back.

A layer's forward pass begins when the one before it is done and its own parameters' sums are here; gradients come to
exist during the backward pass, tensor by tensor; the schedule (`transport.schedule.scheduler`, the code of real time)
says what leaves when. Gradients are real. They are computed when the backward pass begins, since by then every
parameter has its sum: so results are those of plain synchronous training, whatever the schedule.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulation.results.timeline import COMPUTE, NETWORK, Span, is_recorded
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.sim.network.simulation import Simulation
from emulation.sim.simulated_training import Clock, Progress, Training
from emulation.sim.size_only import joined
from switchagg.codecs.array_codec import Tensor
from switchagg.priority import CLASSES
from transport.schedule.schedule_model import Prediction
from transport.schedule.scheduler import (
    Lanes,
    Policy,
    Profile,
    Scheduler,
    TensorRange,
    Transfer,
    class_lanes,
    classes_of,
    describe,
)

if TYPE_CHECKING:
    from emulation.workloads.replicas import Replicas


@dataclass(frozen=True)
class Schedule:
    """A plan for one method. by_order: its calls are matched by their order within a class (the switch), else by key.

    prediction: what the model predicts for it.
    """

    policy: Policy
    profile: Profile
    transfers: tuple[Transfer, ...]
    by_order: bool
    prediction: Prediction

    @property
    def classes(self) -> tuple[int, ...]:
        """The priority class of each transfer, where there are only so many."""
        return classes_of(self.transfers, CLASSES)

    @property
    def urgencies(self) -> bool:
        """Whether some transfers are more urgent than others."""
        return len({transfer.priority for transfer in self.transfers}) > 1

    @property
    def lanes(self) -> Lanes | None:
        return class_lanes(self.transfers, CLASSES) if self.by_order else None

    @property
    def first_layer_bytes(self) -> int:
        """The transfers that hold gradients of the first layer."""
        tensors = self.profile.tensors
        return sum(t.size_bytes for t in self.transfers if any(tensors[part.tensor].layer == 0 for part in t.parts))


class LayeredTraining(Training):
    """A training run under a schedule."""

    def __init__(
        self,
        scenario: Scenario,
        simulation: Simulation,
        replicas: Replicas,
        compute: ComputeTimes,
        progress: Progress,
        schedule: Schedule,
    ) -> None:
        super().__init__(scenario, simulation, replicas, compute, progress)
        self.schedule = schedule
        self.profile, self.transfers = schedule.profile, schedule.transfers
        self.first_layer_bytes = schedule.first_layer_bytes
        self.tensors: list[list[Tensor] | None] = [
            [self._tensor(part) for part in transfer.parts] if simulation.config.codec else None
            for transfer in self.transfers
        ]
        self.clocks = [LayeredRank(self, rank) for rank in range(self.workers)]

    def _tensor(self, part: TensorRange) -> Tensor:
        """The tensor of a part, as a codec sees it."""
        (tensor,) = self.replicas.tensors[part.tensor]
        size = part.high - part.low
        return tensor if size == math.prod(tensor.shape) else Tensor(f"{tensor.name}[{part.low}:{part.high}]", (size,))

    @property
    def call_bytes(self) -> tuple[int, ...]:
        """As its schedule cuts and joins gradients."""
        return tuple(transfer.size_bytes for transfer in self.transfers)

    def facts(self) -> dict[str, Any]:
        return {
            "schedule": describe(self.schedule.policy),
            "transfers": len(self.transfers),
            "priority_classes": len(set(self.schedule.classes)),
            "predicted_iteration_ns": round(self.schedule.prediction.iteration_ns),
            "predicted_first_layer_wait_ns": round(self.schedule.prediction.waits_ns[0]),
        }


class LayeredRank(Clock):
    """A rank whose iterations begin with the forward pass of their first layer."""

    _training: LayeredTraining

    def __init__(self, training: LayeredTraining, rank: int) -> None:
        super().__init__(training, rank)
        self._layer = 0
        self._computing = False
        self._waiting_for = [0] * len(training.profile.layers)  # transfers in flight or to come, by layer
        self._gradients: list[NDArray[np.float32]] = []
        self._scheduler = Scheduler(
            training.transfers,
            lanes=training.schedule.lanes,
            cycle_ns=training.schedule.policy.cycle_ns,
        )
        self._classes = training.schedule.classes
        self._under_way: list[tuple[int, int]] = []
        self._layers_of = [
            sorted({training.profile.tensors[part.tensor].layer for part in transfer.parts})
            for transfer in training.transfers
        ]
        self._left = 0  # transfers of the iteration before that are not complete

    # Forward: layer by layer, as sums return

    def begin(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Go on with the forward pass as far as sums allow."""
        training = self._training
        if self._computing:
            return
        if self._layer == len(training.profile.layers):
            self._begin_backward()
            return
        if self._waiting_for[self._layer]:
            return  # `_returned` calls again
        if self._layer == 0 and self.iteration:
            self.ends_ns.append(self._network.now_ns)
        self._computing = True
        layer = training.profile.layers[self._layer]
        forward_ns = self._lasts_ns(layer.forward_ns)
        self._span(COMPUTE, layer.name, forward_ns)
        self._network.schedule(self._network.now_ns + forward_ns, self._layer_done)

    def _lasts_ns(self, profile_ns: int) -> int:
        """The duration on this rank in this iteration of work that lasts so long in the profile."""
        compute = self._training.compute
        return profile_ns * compute.ns(self._rank, self.iteration) // max(1, compute.planned_ns)

    def _layer_done(self, _frame: None, _sender: int, _to: int) -> None:
        self._computing = False
        self._layer += 1
        self.begin()

    # Backward: gradients come to exist, transfers leave

    def _begin_backward(self) -> None:
        training, network, profile = self._training, self._network, self._training.profile
        assert not self._left, "a layer went on without its sums"
        self._computing = True
        self._gradients = training.replicas.gradients_of(self._rank, self.iteration)
        self.losses.append(training.replicas.losses[self._rank])
        self._left = len(training.transfers)
        self._under_way = []
        for layers in self._layers_of:
            for layer in layers:
                self._waiting_for[layer] += 1
        backward_ns = self._lasts_ns(profile.backward_ns)
        self._span(COMPUTE, "backward", backward_ns)
        for index, tensor in enumerate(profile.tensors):
            network.schedule(network.now_ns + self._lasts_ns(tensor.ready_ns), self._ready, None, index)
        network.schedule(network.now_ns + backward_ns, self._backward_done)

    def _ready(self, _frame: None, index: int, _to: int) -> None:
        if index in self._scheduler.unready:
            self._scheduler.ready(index, self._network.now_ns)
            self._launch()

    def _backward_done(self, _frame: None, _sender: int, _to: int) -> None:
        self._scheduler.backward_done(self._network.now_ns)
        self._launch()
        self._computing = False
        self._layer = 0
        self.iteration += 1
        if self.iteration < self._training.iterations:
            self.begin()

    def _launch(self, *_: object) -> None:
        training, now_ns = self._training, self._network.now_ns
        for transfer in self._scheduler.launches(now_ns):
            array = self._packed(transfer)
            priority = None
            if training.schedule.urgencies:
                priority = self._classes[transfer.key] if training.schedule.by_order else transfer.priority
            training.simulation.launch(
                self._rank,
                array,
                training.simulation.mean_op,
                functools.partial(self._returned, transfer, array, now_ns),
                priority,
                self._number_of(transfer),
                tensors=training.tensors[transfer.key],
            )
        deadline_ns = self._scheduler.next_deadline_ns()
        if deadline_ns is not None:
            self._network.schedule(max(deadline_ns, now_ns), self._launch)

    def _number_of(self, transfer: Transfer) -> int:
        """The same on all ranks: the scheduler's own count of iterations lags behind ours within a forward pass."""
        return self._scheduler.iteration * len(self._training.transfers) + transfer.key

    def _packed(self, transfer: Transfer) -> NDArray[np.float32]:
        return joined([self._gradients[part.tensor][part.low : part.high] for part in transfer.parts])

    def _returned(self, transfer: Transfer, array: NDArray[np.float32], launched_ns: int) -> None:
        training, now_ns = self._training, self._network.now_ns
        training.report_progress()
        if len(transfer.parts) > 1:
            low = 0
            for part in transfer.parts:
                size = part.high - part.low
                self._gradients[part.tensor][part.low : part.high] = array[low : low + size]
                low += size
        self._under_way.append((launched_ns, now_ns))
        iteration = self._scheduler.iteration
        self._scheduler.completed(transfer, now_ns)
        self._keep(transfer, iteration, launched_ns)
        for layer in self._layers_of[transfer.key]:
            self._waiting_for[layer] -= 1
        self._left -= 1
        if not self._left:
            self._step(iteration)  # before the last layer goes on
        self._launch()  # a lane may go on
        if self.iteration < training.iterations and self.iteration > iteration:
            self.begin()

    def _step(self, iteration: int) -> None:
        """All sums of an iteration are here."""
        training = self._training
        timings = self._scheduler.take_timings()
        first = {index for index, tensor in enumerate(training.profile.tensors) if tensor.layer == 0}
        of_first = [t for t in timings if any(p.tensor in first for p in training.transfers[t.key].parts)]
        ready_ns, back_ns = max(t.ready_ns for t in of_first), max(t.completed_ns for t in of_first)
        self.first_layers_ns.append(back_ns - ready_ns)
        self.transfers.append(self._under_way)
        for gradient in self._gradients:
            gradient /= training.divisor
        training.replicas.apply_to(self._rank, iteration, self._gradients)
        if iteration + 1 == training.warmup_iterations:
            self._count_wire()  # all of these iterations' bytes were sent, and none of the next one's
        if iteration + 1 == training.iterations:
            self.ends_ns.append(self._network.now_ns)
            self._count_wire()
        training.finished(self._rank, iteration)

    def _span(self, track: str, name: str, duration_ns: int) -> None:
        if is_recorded(self.iteration, self._training.warmup_iterations, self._rank):
            now_ns = self._network.now_ns
            self.spans.append(Span(self._rank, track, name, self.iteration, now_ns, now_ns + duration_ns))

    def _keep(self, transfer: Transfer, iteration: int, launched_ns: int) -> None:
        training = self._training
        if is_recorded(iteration, training.warmup_iterations, self._rank):
            names = [training.profile.tensors[part.tensor].name for part in transfer.parts]
            name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            self.spans.append(
                Span(
                    self._rank,
                    NETWORK,
                    name,
                    iteration,
                    launched_ns,
                    self._network.now_ns,
                    transfer.size_bytes,
                    transfer.priority,
                )
            )
