"""A job in virtual time without packets: its calls are flows on shared links, of a shape that each method computes.

A call begins once all ranks have launched it: until the last one has, no sum is complete, and what the others could
send before is no more than what the last one still has to send. Sums of real arrays are computed then, by NumPy, in the
order of ranks; codecs' words are integers, so they have the packet engine's bits.
"""

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import SPRAY, Topology
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES
from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.call_values import carry_out
from emulation.sim.flow.flow_network import FlowNetwork
from emulation.sim.flow.formula import formula_shape
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.call_request import CallRequest
from switchagg.description import Kind
from switchagg.errors import JobError

EVERYONE = -1
"""In place of a rank: of calls that all launch at once."""


class NotDescribed(JobError):
    """A coarser fidelity level can't describe the call: one line, which says why."""


_PACKETS_ALONE: dict[str, Callable[[SimulationConfig], object]] = {
    "links lose, damage, repeat or reorder packets": lambda config: config.link.faulty,
    "delays of links have tails": lambda config: config.link.tail,
    "queues mark packets, and windows follow": lambda config: config.link.ecn_bytes is not None,
    "packets take their hosts' time ([hosts] packet_ns and related keys)": lambda config: config.packet_costs,
    "messages travel over TCP or RoCE with their congestion control": lambda config: config.tcp,
    "flows take one of several spines by a hash": lambda config: (
        config.fabric.spines > 1 and config.fabric.paths != SPRAY
    ),
    "hosts forward, and frames take any of the shortest ways": lambda config: TOPOLOGIES[config.fabric.kind].forwards,
}
"""A feature that depends on packets, whatever the method; "" if the job has none."""


@dataclass(eq=False)
class FlowCall:
    """A call of all ranks. lane: calls of a lane run one after the other; None: the call runs at the same time as all
    others."""

    name: Hashable
    lane: Hashable
    calls: dict[int, SimulatedCall] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)  # of random rounding, by rank


@dataclass(frozen=True)
class CompletionTimes:
    """When which ranks are done: at marks_ns[k] ranks[k]; None: all. Marks up to the body, then later ones."""

    body_ns: float
    marks_ns: tuple[float, ...]
    ranks: tuple[NDArray[np.int64] | None, ...]

    @classmethod
    def of(cls, shape: CallLoad) -> "CompletionTimes":
        if isinstance(shape.done_ns, float):
            return cls(shape.body_ns, (shape.done_ns,), (None,))
        marks, place = np.unique(np.round(shape.done_ns), return_inverse=True)
        return cls(shape.body_ns, (*map(float, marks),), (*(np.flatnonzero(place == k) for k in range(len(marks))),))


class FlowSimulation(Simulation):
    """The verbs of `Simulation`, and `launch_all`. Raises NotDescribed for what would be untrue.

    method: a name of SIMULATIONS. shared: a network with other jobs; None: its own, in which one spine stands for all.
    by_formula: calls have the α–β costs of `formula`, not a shape of their own.
    """

    def __init__(
        self,
        config: SimulationConfig,
        shared: FlowNetwork | None = None,
        *,
        method: str,
        servers: int = 0,
        by_formula: bool = False,
    ) -> None:
        self.config, self.method, self.by_formula = config, method, by_formula
        for fault, there in _PACKETS_ALONE.items():
            if there(config):
                raise NotDescribed(fault)
        if config.fabric.spines > 1 and config.place is None:
            self.config = replace(config, fabric=replace(config.fabric, spines=1))
        self.topology: Topology = self.config.built(servers)
        self.reliable = config.connection(config.reliable.window_bytes)
        self.flows = shared or FlowNetwork(
            self.topology, config.switch_latency_ns, config.trace, hosts_work=config.costs.transfer_ns > 0
        )
        self.shared = cast(Any, self.flows)
        self.network = self.flows.time
        self.first = 0
        self.flows.users[config.job_id] = config.user
        self._prepare_calls()
        self._together: dict[Hashable, FlowCall] = {}
        self._call_counts: Counter[Hashable] = Counter()  # calls without a key, by rank
        self._lanes: dict[Hashable, deque[FlowCall]] = {}
        self._shapes: dict[Hashable, tuple[CallLoad, CompletionTimes]] = {}
        members = len(self.topology.members)
        self._sent_bytes, self._received_bytes = np.zeros(members, np.int64), np.zeros(members, np.int64)

    # What a method says

    @abstractmethod
    def shape_of(self, call: SimulatedCall) -> CallLoad:
        """The load of a call alone on idle links."""

    def place(self, rank: int, call: SimulatedCall) -> tuple[Hashable, Hashable, int]:
        """(what all ranks' calls of this one have in common, lane, key of random rounding)."""
        if call.request.key is not None:
            return call.request.key, None, 0
        self._call_counts[rank] += 1
        return ("made", self._call_counts[rank]), None, 0

    def sum_up(self, together: FlowCall) -> None:
        """Do to the ranks' arrays what the call does."""
        calls = [together.calls[rank] for rank in range(self.config.workers)]
        request = calls[0].request
        carry_out(cast(Kind, request.kind), [call.array for call in calls], request.op, request.root)

    # Verbs

    def _launch(self, rank: int, array: NDArray[Any] | SizeOnlyArray, request: CallRequest, done: Done) -> None:
        """As of `Simulation`. A SizeOnlyArray has times and bytes alone, unless a codec needs zeros."""
        if isinstance(array, SizeOnlyArray) and self._compressions is None:
            self.begin(rank, SimulatedCall(cast(Any, array), request, done))
        else:
            super()._launch(rank, array, request, done)

    def launch_all(self, array: SizeOnlyArray, request: CallRequest, done: Done) -> None:
        """All ranks begin a collective now; `done` is called once, when the last one has its result."""

        def begin(ended: Done) -> None:
            self.begin(EVERYONE, SimulatedCall(cast(Any, array), request, ended))

        self._call_turns.enter(EVERYONE, request.key, request.priority, begin, done)

    def begin(self, rank: int, call: SimulatedCall) -> None:
        """See `Simulation`."""
        name, lane, key = self.place(rank, call)
        if rank == EVERYONE:
            self._enter_lane(FlowCall(name, lane, {EVERYONE: call}))
            return
        together = self._together.setdefault(name, FlowCall(name, lane))
        together.calls[rank], together.keys[rank] = call, key
        if len(together.calls) == self.config.workers:
            del self._together[name]
            self._enter_lane(together)

    def _enter_lane(self, together: FlowCall) -> None:
        if together.lane is not None:
            lane = self._lanes.setdefault(together.lane, deque())
            lane.append(together)
            if len(lane) > 1:
                return
        self._start(together)

    def _start(self, together: FlowCall) -> None:
        call = next(iter(together.calls.values()))
        array = call.array
        if not isinstance(array, SizeOnlyArray):
            self.sum_up(together)
        codec = call.coding.codec if call.coding is not None else None
        request = call.request
        name = (request.kind, request.op, array.size, array.dtype, request.root, codec, *self.variant(call))
        if name not in self._shapes:
            shape = self._with_hosts(self._costs(call) if self.by_formula else self.shape_of(call))
            self._shapes[name] = shape, CompletionTimes.of(shape)
        shape, ends = self._shapes[name]
        early = [mark for mark in ends.marks_ns if mark < ends.body_ns]
        at = partial(self._reached, together, shape, ends)
        self.flows.begin(shape, request.priority, [*early, ends.body_ns], at)

    def _costs(self, call: SimulatedCall) -> CallLoad:
        """By formula."""
        kind, array = cast(Kind, call.request.kind), call.array
        return formula_shape(self.method, self.config, kind, array.nbytes, array.dtype, self.flows.links)

    def _with_hosts(self, shape: CallLoad) -> CallLoad:
        """The hosts' work for the call, behind the links' work."""
        if not self.flows.hosts:
            return shape
        worked_ns = np.zeros(len(self.flows.hosts))
        worked_ns[[self.flows.hosts[name] for name in self.members]] = shape.worked_ns
        return replace(shape, busy_ns=np.concatenate([shape.busy_ns, worked_ns]))

    def variant(self, call: SimulatedCall) -> tuple[Hashable, ...]:
        """Further inputs of a call's load."""
        return ()

    def _reached(self, together: FlowCall, shape: CallLoad, ends: CompletionTimes, mark: float) -> None:
        if mark < ends.body_ns:
            self._end(together, shape, ends, ends.marks_ns.index(mark))
            return
        if together.lane is not None:
            lane = self._lanes[together.lane]
            lane.popleft()
            if lane:
                self._start(lane[0])
        now_ns = self.network.now_ns
        for place, later in enumerate(ends.marks_ns):
            if later >= ends.body_ns:
                then = partial(self._later, together, shape, ends)
                self.network.schedule(now_ns + round(later - ends.body_ns), then, None, place)

    def _later(
        self, together: FlowCall, shape: CallLoad, ends: CompletionTimes, _frame: None, place: int, _to: int
    ) -> None:
        self._end(together, shape, ends, place)

    def _end(self, together: FlowCall, shape: CallLoad, ends: CompletionTimes, place: int) -> None:
        """Some ranks are done; with the last of them go what servers sent."""
        ranks, last, workers = ends.ranks[place], place + 1 == len(ends.marks_ns), self.config.workers
        if together.calls.keys() == {EVERYONE}:
            if last:
                self._sent_bytes += shape.sent_bytes
                self._received_bytes += shape.received_bytes
                together.calls[EVERYONE].done()
            return
        sent_bytes, received_bytes = (
            np.broadcast_to(wire_bytes, self._sent_bytes.shape)
            for wire_bytes in (shape.sent_bytes, shape.received_bytes)
        )
        rows = np.arange(workers) if ranks is None else ranks
        counted = np.concatenate([rows, np.arange(workers, len(self._sent_bytes))]) if last else rows
        self._sent_bytes[counted] += sent_bytes[counted]
        self._received_bytes[counted] += received_bytes[counted]
        for rank in rows.tolist():
            together.calls[rank].done()

    def wire_bytes(self, member: int) -> tuple[int, int]:
        """As of `Simulation`, of calls that a rank has completed."""
        return int(self._sent_bytes[member]), int(self._received_bytes[member])

    def retransmissions(self) -> int:
        """Flows have no such events."""
        return 0

    def switch_counters(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def drop_checksum(self) -> int:
        """Flows have no such events."""
        return 0

    @cached_property
    def members(self) -> Sequence[str]:
        """Names of the hosts of all members."""
        return self.topology.members
