"""Iterations of a workload graph in virtual time: each rank does its operations as soon as it may.

A processor of a rank computes one thing at a time, of those that may begin the one listed first. Groups that are not
all ranks are jobs of their own on the shared network, and so are pairs of ranks that send to each other, as hosts do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, cast

from emulation.results.results import MethodResult
from emulation.results.timeline import COMPUTE as COMPUTE_TRACK
from emulation.results.timeline import NETWORK, Span, is_recorded
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.profiles.graph import COMPUTE, SEND, WORLD, GraphOperation, ProgramOrder, WorkloadGraph
from emulation.scenario.scenario import Scenario
from emulation.scenario.topologies.topology_kinds import seen_by
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.replay.size_only_replicas import SizeOnlyReplicas
from emulation.sim.simulated_training import Progress, RankClock, Training
from emulation.sim.size_only import SizeOnlyArray
from switchagg.description import Kind, shard_range
from transport.group.method_name import METHODS, MethodName

POINT_TO_POINT = "direct"  # the method of what no switch can do: each to each
BOUNDED: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "all_gather")
"""Kinds of collectives of all ranks that a run's bound counts."""
SLOTS_MOST = 65_536

MakeSimulation = Callable[[SimulationConfig], Simulation]
Beside = Callable[[str, SimulationConfig, Any], Simulation]


class Groups:
    """A simulation for each set of ranks of a graph, all on the network of the first, which has all ranks."""

    def __init__(
        self, graph: WorkloadGraph, config: SimulationConfig, method: str, make: MakeSimulation, beside: Beside
    ) -> None:
        summing = {operation.group for program in graph.programs for operation in program if operation.launched}
        wanted = [members for name, members in graph.used_groups() if name in summing]
        summed = sum(len(members) < graph.ranks for members in wanted)
        if METHODS[method].packets:
            window = max(1, min(*config.windows, SLOTS_MOST // (config.streams * (1 + summed))))
            slots = config.streams * window
            config = replace(config, window_slots=window, pool_slots=slots * (1 + summed))
        self.world = make(config)
        self._config, self._beside = self.world.config, beside
        self._jobs, self._in_packets = 1, 0  # the second beside the first of the job
        self.of_members = {members: self._job(members, method) for members in wanted if len(members) < graph.ranks}
        self.of_members[tuple(range(graph.ranks))] = self.world
        # Messages take no turns: one that waited might be what a peer waits for
        self._config = replace(self._config, costs=replace(self._config.costs, calls_at_once=0, call_ns=0))
        self.pairs = {pair: self._job(pair, POINT_TO_POINT) for pair in graph.pairs()}

    def _job(self, members: tuple[int, ...], method: str) -> Simulation:
        config, number = self._config, self._jobs
        self._jobs += 1
        hosts = tuple(self.world.topology.workers[rank] for rank in members)
        place = seen_by(self.world.topology, hosts, config.fabric.placement)
        slots = config.requested_slots
        self._in_packets += METHODS[method].packets
        first_slot = self._in_packets * slots if METHODS[method].packets else 0
        changed = replace(config, workers=len(members), servers=0, place=place, job_id=config.job_id + number)
        return self._beside(method, replace(changed, first_slot=first_slot), self.world.shared)

    @property
    def all(self) -> list[Simulation]:
        """The simulations, without repetitions."""
        simulations = [self.world, *self.of_members.values(), *self.pairs.values()]
        return list({id(simulation): simulation for simulation in simulations}.values())


class GraphTraining(Training):
    """made(config): the simulation of all ranks.
    beside(method, config, shared): another one on that network."""

    def __init__(
        self,
        scenario: Scenario,
        graph: WorkloadGraph,
        config: SimulationConfig,
        method: str,
        make: MakeSimulation,
        beside: Beside,
        compute: ComputeTimes,
        progress: Progress,
    ) -> None:
        self.groups = Groups(graph, config, method, make, beside)
        nothing = SizeOnlyReplicas([[]], graph.ranks)
        super().__init__(scenario, self.groups.world, cast(Any, nothing), compute, progress)
        self.graph = graph
        self.orders = [ProgramOrder.of(program) for program in graph.programs]
        self.clocks = [GraphRank(self, rank) for rank in range(self.workers)]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all arrays that rank 0 sends or receives, whatever their content."""
        return sum(self.graph.moved(0).values())

    @property
    def collective_bytes(self) -> dict[Kind, int]:
        """Bytes of collectives of all ranks; a run's bound counts these."""
        totals: dict[Kind, int] = dict.fromkeys(BOUNDED, 0)
        for operation in self.graph.program(0):
            if operation.group == WORLD and operation.kind in BOUNDED:
                totals[operation.kind] += 4 * operation.elements
        return {kind: size for kind, size in totals.items() if size} or {"allreduce": 0}

    def _layout(self) -> dict[str, Any]:
        """How much there is of each kind."""
        counted = Counter(operation.kind for rank in range(self.workers) for operation in self.graph.program(rank))
        return {"operations": dict(sorted(counted.items())), "groups": len(self.groups.of_members)}

    def result(self, method: MethodName, notes: list[str]) -> MethodResult:  # type: ignore[override]
        """As of any training; what is sent again is of all groups together."""
        result = super().result(method, notes)
        return replace(result, retransmissions=sum(simulation.retransmissions() for simulation in self.groups.all))


class GraphRank(RankClock):
    """A rank's repeated run through its program."""

    def __init__(self, training: GraphTraining, rank: int) -> None:
        super().__init__(training, rank)
        self._graph_training = training
        graph = training.graph
        self._program = graph.program(rank)
        self._order = training.orders[graph.program_of[rank]]
        self._own_ns = graph.compute_ns(rank)
        self._members = {
            operation.group: graph.members(operation.group, rank) for operation in self._program if operation.collective
        }
        self._waits: list[int] = []
        self._left = 0
        self._may_compute: dict[int, list[int]] = {operation.unit: [] for operation in self._program}
        self._computing: set[int] = set()
        self._moved: list[tuple[int, int]] = []
        self._messages: Counter[tuple[int, int, int]] = Counter()
        tags = sorted({operation.tag for program in graph.programs for operation in program})
        self._tags = {tag: number for number, tag in enumerate(tags)}

    def begin(self, _frame: None = None, _sender: int = 0, _to: int = 0) -> None:
        """Start the next iteration."""
        if self.iteration == self._training.warmup_iterations:
            self._count_wire()
        self._begin_ns, self._moved = self._network.now_ns, []
        self._compute_ns = self._training.compute.ns(self._rank, self.iteration)
        self._waits, self._left = list(self._order.waits), len(self._program)
        if not self._left:
            self._finish()
        self._start([place for place, count in enumerate(self._waits) if not count])

    def _start(self, places: list[int]) -> None:
        """Begin these, and those that waited for just that, in the order of the program."""
        heap: list[int] = []
        for place in places:
            heappush(heap, place)
        while heap:
            place = heappop(heap)
            for other in self._freed(self._order.at_begin[place]):
                heappush(heap, other)
            if self._program[place].kind == COMPUTE:
                heappush(self._may_compute[self._program[place].unit], place)
            else:
                self._move(place)
        for unit in self._may_compute:
            self._compute(unit)

    def _freed(self, places: tuple[int, ...]) -> list[int]:
        """The operations that wait for nothing more."""
        for place in places:
            self._waits[place] -= 1
        return [place for place in places if not self._waits[place]]

    def _compute(self, unit: int) -> None:
        if unit in self._computing or not self._may_compute[unit]:
            return
        self._computing.add(unit)
        place = heappop(self._may_compute[unit])
        operation, now_ns = self._program[place], self._network.now_ns
        duration_ns = operation.duration_ns * self._compute_ns // self._own_ns if self._own_ns else 0
        if duration_ns:
            self._keep(COMPUTE_TRACK, operation.name, now_ns, now_ns + duration_ns)
        self._network.schedule(now_ns + duration_ns, self._computed, None, place)

    def _computed(self, _frame: None, place: int, _to: int) -> None:
        self._computing.remove(self._program[place].unit)
        self._ended(place)

    def _move(self, place: int) -> None:
        """Begin a transfer. A group of one has nothing to move."""
        operation, groups = self._program[place], self._graph_training.groups
        array, done = SizeOnlyArray(operation.elements, "float32"), partial(self._arrived, place, self._network.now_ns)
        if not operation.collective:
            self._message(operation, array, done)
            return
        members = self._members[operation.group]
        if len(members) == 1:
            self._network.schedule(self._network.now_ns, lambda *_: self._ended(place))
        elif operation.launched:
            simulation = groups.of_members[members]
            op = simulation.mean_op if operation.kind == "allreduce" else "sum"
            simulation.launch(members.index(self._rank), array, op, done, kind=cast(Kind, operation.kind))
        else:
            self._exchange(operation, members, done)

    def _message(self, operation: GraphOperation, array: SizeOnlyArray, done: Callable[[], None]) -> None:
        """Send or receive: a broadcast among two."""
        sends = operation.kind == SEND
        pair = (self._rank, self._rank + operation.peer) if sends else (self._rank + operation.peer, self._rank)
        self._launch_pair(pair, self._tags[operation.tag], array, done)

    def _exchange(self, operation: GraphOperation, members: tuple[int, ...], done: Callable[[], None]) -> None:
        """An all-to-all: each sends each other its shard."""
        place, count = members.index(self._rank), len(members)
        local_shard, *other_shards = (
            (shard_range(operation.elements, (place + step) % count, count), step) for step in range(count)
        )
        pairs = [((self._rank, members[(place + step) % count]), high - low) for (low, high), step in other_shards]
        low, high = local_shard[0]
        pairs += [((members[(place - step) % count], self._rank), high - low) for _, step in other_shards]
        moving = [(pair, size) for pair, size in pairs if size]
        left = len(moving)

        def arrived() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        if not moving:
            self._network.schedule(self._network.now_ns, lambda *_: done())
        for pair, size in moving:
            self._launch_pair(pair, len(self._tags), SizeOnlyArray(size, "float32"), arrived)

    def _launch_pair(self, pair: tuple[int, int], tag: int, array: SizeOnlyArray, done: Callable[[], None]) -> None:
        """Begin to send, or to receive, the next of a tag."""
        way = (*pair, tag)
        key = tag << 40 | self._messages[way]
        self._messages[way] += 1
        simulation = self._graph_training.groups.pairs[pair]
        simulation.launch(pair.index(self._rank), array, "sum", done, key=key, kind="broadcast")

    def _arrived(self, place: int, begun_ns: int) -> None:
        operation, now_ns = self._program[place], self._network.now_ns
        self._moved.append((begun_ns, now_ns))
        self._keep(NETWORK, operation.name or operation.kind, begun_ns, now_ns, 4 * operation.elements)
        self._network.schedule(now_ns, lambda *_: self._ended(place))

    def _ended(self, place: int) -> None:
        self._training.report_progress()
        self._left -= 1
        self._start(self._freed(self._order.at_end[place]))
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        self.losses.append(math.nan)
        self._end_iteration(self._moved)

    def _keep(self, track: str, name: str, begin_ns: int, end_ns: int, size_bytes: int = 0) -> None:
        if is_recorded(self.iteration, self._training.warmup_iterations, self._rank):
            at_ns = begin_ns - self._training.begun_ns, end_ns - self._training.begun_ns
            self.spans.append(Span(self._rank, track, name, self.iteration, *at_ns, size_bytes))
