"""A workload graph of sends and receives beside the measured job, again and again: what a GOAL file says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from emulation.scenario.profiles.graph import ProgramOrder, WorkloadGraph
from emulation.scenario.scenario_tables import JobOptions
from emulation.sim.network.simulation import Simulation
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.replay.graph_training import POINT_TO_POINT, GraphRank, GraphTraining, Groups

ENDLESS = 1 << 60
JOB_IDS = 1_000
"""The largest number of a tenant's pairs that send to each other."""


class ReplayedJob:
    """An entry of `[[jobs]]` with a profile: in place of `OtherJob`. simulation: its hosts, of method `direct`.

    A sum is an iteration of the graph; durations_ns are rank 0's. `ended` is called when the last is over on all ranks.
    """

    wrong_elements = 0
    begun_ns = 0
    warmup_iterations = ENDLESS  # no spans are kept

    def __init__(
        self, options: JobOptions, simulation: Simulation, graph: WorkloadGraph, ended: Callable[[], None]
    ) -> None:
        self.options, self.simulation, self.graph = options, simulation, graph
        self.compute = self
        self.durations_ns: list[int] = []
        self.ended_ns: int | None = None
        self.iterations = options.sums or ENDLESS
        self.orders = [ProgramOrder.of(program) for program in graph.programs]
        self.groups = Groups(graph, simulation.config, POINT_TO_POINT, lambda _: simulation, _beside)
        self._ended, self._since_ns = ended, 0
        training = cast(GraphTraining, self)  # as far as a rank knows it
        self._ranks = [GraphRank(training, rank) for rank in range(graph.ranks)]

    def ns(self, rank: int, _iteration: int) -> int:
        """A rank's compute time."""
        return self.graph.compute_ns(rank)

    def report_progress(self) -> None:
        """The measured job says how far it is."""

    def start(self) -> None:
        """Begin now."""
        self._since_ns = self.simulation.network.now_ns
        for rank in self._ranks:
            self.simulation.network.schedule(self._since_ns, rank.begin)

    def finished(self, rank: int, _iteration: int) -> None:
        """A rank is through with an iteration; after stop_ns all go on to the last that any has begun."""
        now_ns, stop_ns = self.simulation.network.now_ns, self.options.stop_ns
        if not rank:
            self.durations_ns.append(now_ns - self._since_ns)
            self._since_ns = now_ns
        if self.iterations == ENDLESS and stop_ns and now_ns >= stop_ns:
            self.iterations = max(clock.iteration + (clock is not self._ranks[rank]) for clock in self._ranks)
        if self.ended_ns is None and all(clock.iteration >= self.iterations for clock in self._ranks):
            self.ended_ns = now_ns
            self._ended()


def _beside(method: str, config: Any, shared: Any) -> Simulation:
    return SIMULATIONS[method](config, shared)
