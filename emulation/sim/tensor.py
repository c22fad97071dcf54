"""Training with tensor parallelism in virtual time: layers are cut between the ranks, activations are allreduced.

Every rank computes its share for real, as far as the next allreduce; computing takes time as the scenario says, as much
before each. Nothing goes on while an allreduce does.
"""

from __future__ import annotations

from collections.abc import Generator

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.sim.network.simulation import Simulation
from emulation.sim.sharded import ProgramRank, Step
from emulation.sim.simulated_training import Progress, Training
from emulation.workloads.replicas import Replicas
from emulation.workloads.tensor_ranks import STOPS_PER_BLOCK, TensorReplicas
from switchagg.description import Kind


class TensorTraining(Training):
    """A training run with tensor parallelism. replicas: of it."""

    def __init__(
        self, scenario: Scenario, simulation: Simulation, replicas: Replicas, compute: ComputeTimes, progress: Progress
    ) -> None:
        super().__init__(scenario, simulation, replicas, compute, progress)
        assert isinstance(replicas, TensorReplicas)
        self.first_layer_bytes = 0
        self.moved_bytes = 0  # of rank 0's arrays in one iteration
        self.clocks: list[TensorClock] = [TensorClock(self, replicas, rank) for rank in range(self.workers)]

    def run(self) -> None:
        try:
            super().run()
        finally:
            for clock in self.clocks:
                clock.close()

    @property
    def gradient_bytes(self) -> int:
        """Here, of activations and of their gradients."""
        return self.moved_bytes

    @property
    def collective_bytes(self) -> dict[Kind, int]:
        return {"allreduce": self.moved_bytes}

    def _evaluates(self, rank: int, iteration: int) -> bool:
        return self._finished[iteration] == self.workers


class TensorClock(ProgramRank):
    """A rank that computes with its part of the tensors."""

    def __init__(self, training: TensorTraining, replicas: TensorReplicas, rank: int) -> None:
        super().__init__(training, rank)
        self._tensor = training
        self._replica = replicas.ranks[rank]
        self._stops = STOPS_PER_BLOCK * replicas.blocks

    def _iteration(self) -> Generator[Step, None, None]:
        forward, moved = self._training.replicas.forward_fraction, 0
        half = self._stops // 2
        shares = [forward / (half + 1), (1 - forward) / (half + 1)]
        for number, array in enumerate(self._replica.iterate(self.iteration)):
            backward = number >= half
            name = "backward" if backward else "forward"
            if number == half:
                yield self._computing("forward", shares[0])  # after the last of its allreduces
            yield self._computing(name, shares[backward])
            moved += array.nbytes
            yield self._start("allreduce", str(number), array)
        yield self._computing("backward", shares[1])
        self.losses.append(self._replica.loss)
        self._tensor.moved_bytes = moved

    def close(self) -> None:
        """End the thread that computes, if the run has ended early."""
        if self.iteration or self._moved or self._waits_for:
            self._program.close()

    def _step(self) -> None:
        self._replica.workload.step(self.iteration)
