"""Training in virtual time against servers that keep the weights: the twin of `transport.torch.ps.PsOptimizer`.

Every parameter's gradient is pushed as soon as the backward pass has made it, the first layer's most urgently, and
answered with weights, at once or when the mode lets its rank go on. A rank begins its next iteration when it has all
answers, whatever the others do: gradients are real, at weights as old as they would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from emulation.results.results import IterationRecord, gradient_delays
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.simulated_training import Progress, RankClock, Training
from switchagg.calls.call_request import CallRequest

if TYPE_CHECKING:
    from emulation.workloads.replicas import Replicas


class AsynchronousTraining(Training):
    """A training run on a star whose servers keep the weights. replicas: with a bucket for every parameter.

    Time counts from when all ranks have rank 0's weights. All ranks wait for each other once, at the end of the
    warm-up, so that as many iterations of each are counted. Rank 0's weights are evaluated as they are at the end of
    its iteration; in the end, once every gradient is applied, all ranks pull the servers' and those are evaluated.
    """

    def __init__(
        self,
        scenario: Scenario,
        simulation: PsSimulation,
        replicas: Replicas,
        compute: ComputeTimes,
        progress: Progress,
    ) -> None:
        super().__init__(scenario, simulation, replicas, compute, progress)
        self.servers = simulation
        self.clocks = [AsynchronousRank(self, rank) for rank in range(self.workers)]

    def run(self) -> None:
        self._of_all("init", self._begin)
        self.simulation.run(f"{self.iterations} iterations of training")

    def finished(self, rank: int, iteration: int) -> None:
        super().finished(rank, iteration)
        if iteration + 1 == self.warmup_iterations and self._finished[iteration] == self.workers:
            self._go_on()

    def _begin(self) -> None:
        self.begun_ns = self.simulation.network.now_ns
        self._go_on()

    def _go_on(self) -> None:
        for clock in self.clocks:
            self.simulation.network.schedule(self.simulation.network.now_ns, clock.begin)

    def _of_all(self, kind: str, done: Any) -> None:
        """A call of every rank for every parameter, in place; `done` after the last."""
        weights = [self.replicas.weights_of(rank) for rank in range(self.workers)]
        left = {(rank, key) for rank, arrays in enumerate(weights) for key in range(len(arrays))}

        def ended(rank: int, key: int) -> None:
            left.remove((rank, key))
            if not left:
                done()

        for rank, key in sorted(left):
            request = CallRequest(kind, key=key, priority=key)
            self.servers.begin(rank, SimulatedCall(weights[rank][key], request, partial(ended, rank, key)))

    def _evaluate(self, iteration: int) -> None:
        if iteration + 1 < self.iterations:
            super()._evaluate(iteration)

    def _evaluated_ns(self, iteration: int, records: Sequence[IterationRecord]) -> int:
        if iteration + 1 < self.iterations:
            return self.clocks[0].ends_ns[iteration]
        return super()._evaluated_ns(iteration, records)

    def _end(self) -> None:
        self._of_all("pull", self._pulled)

    def _pulled(self) -> None:
        super()._evaluate(self.iterations - 1)
        self.simulation.network.stop()

    def facts(self) -> dict[str, Any]:
        """How late gradients were."""
        return gradient_delays([worker.counters for worker in self.servers.workers])


class AsynchronousRank(RankClock):
    """A rank whose buckets are gradients on their way out, and weights when they are back."""

    def __init__(self, training: AsynchronousTraining, rank: int) -> None:
        super().__init__(training, rank)
        self._servers = training.servers
        self._weights = training.replicas.weights_of(rank)
        self._keys = [bucket.parameters[0] for bucket in training.replicas.buckets]

    def _send(self, index: int) -> None:
        key = self._keys[index]
        request = CallRequest("push_pull", key=key, priority=key, target=self._weights[key])
        call = SimulatedCall(self._buckets[index], request, partial(self._returned, index))
        self._servers.begin(self._rank, call)

    def _go_on(self) -> None:
        if self.iteration != self._training.warmup_iterations:
            super()._go_on()

    def _step(self) -> None:
        """The servers have made it: weights came back into the model."""
