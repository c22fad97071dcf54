"""A topology's links as rates that calls share: an event for each call that begins or ends, none for packets.

A call in progress is a flow over all links that its ranks use, each by its part (`CallLoad`): at speed 1 it goes on as
if it were alone. Speeds are max–min fair, more urgent calls first, and computed anew only when the set of calls
changes; the same set has the same speeds again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import Hop, Topology
from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.fair import Floats, by_priority
from emulation.sim.network.virtual_clock import VirtualClock

DIGITS = 4
"""Links whose loads are equal to so many digits of the busiest one's count as one."""
SOON_NS = 0.5
"""A nearer event counts as now: times are whole nanoseconds."""


@dataclass(frozen=True)
class FlowRoute:
    """Links between two nodes, in order; pauses_ns: from a frame's last bit on each until it may leave the node behind
    it. frame_ns_per_byte: of all of them together."""

    links: tuple[int, ...]
    pauses_ns: tuple[int, ...]
    byte_ns: float

    def trip_ns(self, frame_bytes: int) -> float:
        """There and back, of a full frame and a small one."""
        return 2 * sum(self.pauses_ns) + frame_bytes * self.byte_ns


@dataclass(eq=False)
class Flow:
    """A call in progress. at_ns: how far it has come, in nanoseconds alone. reached(upto_ns): what happens there."""

    shape: CallLoad
    priority: int
    marks_ns: list[float]
    reached: Callable[[float], None]
    at_ns: float = 0.0
    speed: float = 0.0
    next_mark: int = 0


class FlowNetwork:
    """All jobs of a run have one. `time` is the clock of everything in it. latency_ns: of every switch.

    Links that all calls use alike are one class: `16,384` equal hosts cost as much as one. hosts_work: what transfers
    cost each host is shared as a link is, and stands behind the links of a shape.
    """

    def __init__(
        self, topology: Topology, latency_ns: int = 0, trace: bool = False, *, hosts_work: bool = False
    ) -> None:
        self.topology, self.latency_ns = topology, latency_ns
        self.time = VirtualClock(trace=trace)
        self.users: dict[int, str] = {}
        self.users_at: dict[int, str] = {}
        self.documents: list[Callable[[], dict[str, Any]]] = []
        self.number: dict[Hop, int] = {}
        rates: list[int] = []
        delays: list[int] = []
        for hop, settings in topology.hops:
            self.number[hop] = len(rates)
            rates.append(settings.rate_bps)
            delays.append(settings.delay_ns)
        self.links = len(rates)
        self.byte_ns: list[float] = [8e9 / rate for rate in rates]
        self.delays_ns = delays
        self._switches = frozenset(topology.switches)
        self._routes: dict[Hop, FlowRoute] = {}
        self.hosts = {host: number for number, host in enumerate(topology.members)} if hosts_work else {}
        self._kinds: NDArray[np.int64] = np.zeros(self.links + len(self.hosts), np.int64)  # the class of each link
        self._examples = np.zeros(1, np.int64)  # a link of each class
        self._use: dict[CallLoad, Floats] = {}
        self._known: dict[tuple[tuple[int, int], ...], Floats] = {}
        self._flows: list[Flow] = []
        self._since_ns = 0
        self._turn = 0
        self._stale = False

    def route(self, sender: str, to: str) -> FlowRoute:
        """From a node to another."""
        if (route := self._routes.get((sender, to))) is None:
            hops = [(sender, to)] if (sender, to) in self.number else self.topology.path(sender, to)
            links = tuple(self.number[hop] for hop in hops)
            pauses = [self.delays_ns[link] + self.latency_ns for link in links]
            if links and to not in self._switches:
                pauses[-1] -= self.latency_ns
            route = FlowRoute(links, tuple(pauses), sum(self.byte_ns[link] for link in links))
            self._routes[sender, to] = route
        return route

    def path(self, sender: str, to: str, _ends: object = None) -> list[Hop]:
        """As of `SwitchedNetwork`."""
        return self.topology.path(sender, to)

    def begin(self, shape: CallLoad, priority: int, marks_ns: list[float], reached: Callable[[float], None]) -> None:
        """A call of this shape begins now. reached(mark): it has come so far, of ascending marks_ns, each up to its
        body; what lies behind that is the caller's."""
        self._learn(shape)
        self._advance()
        self._flows.append(Flow(shape, priority, marks_ns, reached))
        self._changed()

    def _learn(self, shape: CallLoad) -> None:
        """Links are of one class as long as all shapes use them alike."""
        if shape in self._use:
            return
        most = shape.busy_ns.max(initial=0.0)
        part = np.round(shape.busy_ns / most, DIGITS) if most else np.zeros(len(self._kinds))
        _, examples, kinds = np.unique(
            np.stack([self._kinds.astype(float), part]), axis=1, return_index=True, return_inverse=True
        )
        if len(examples) > len(self._examples):
            self._kinds, self._examples = kinds.reshape(-1), examples
            self._known.clear()
            for known in self._use:
                self._use[known] = self._used(known)
        self._use[shape] = self._used(shape)

    def _used(self, shape: CallLoad) -> Floats:
        body_ns = max(shape.body_ns, shape.busy_ns.max(initial=0.0))
        return shape.busy_ns[self._examples] / body_ns if body_ns else np.zeros(len(self._examples))

    def _advance(self) -> None:
        now_ns = self.time.now_ns
        if (passed := now_ns - self._since_ns) > 0:
            for flow in self._flows:
                flow.at_ns += flow.speed * passed
        self._since_ns = now_ns

    def _changed(self) -> None:
        """Look again, once all that happens at this instant has happened."""
        self._turn += 1
        if not self._stale:
            self._stale = True
            self.time.schedule(self.time.now_ns, self._settle)

    def _settle(self, _frame: None, _sender: int, _to: int) -> None:
        self._stale = False
        self._share()
        self._wait()

    def _share(self) -> None:
        flows = self._flows
        names = tuple((id(flow.shape), flow.priority) for flow in flows)
        speeds = self._known.get(names)
        if speeds is None and flows:
            use = np.stack([self._use[flow.shape] for flow in flows])
            speeds = by_priority(use, np.ones(len(flows)), [flow.priority for flow in flows], use.shape[1])
            self._known[names] = speeds
        for place, flow in enumerate(flows):
            assert speeds is not None
            flow.speed = float(speeds[place])

    def _wait(self) -> None:
        nearest = min(
            ((flow.marks_ns[flow.next_mark] - flow.at_ns) / flow.speed for flow in self._flows if flow.speed > 0),
            default=None,
        )
        if nearest is not None:
            self._turn += 1
            self.time.schedule(self.time.now_ns + max(0, round(nearest)), self._due, None, self._turn)

    def _due(self, _frame: None, turn: int, _to: int) -> None:
        if turn != self._turn:
            return
        self._advance()
        reached: list[tuple[Flow, float]] = []
        for flow in self._flows:
            while flow.next_mark < len(flow.marks_ns) and (
                flow.marks_ns[flow.next_mark] - flow.at_ns <= SOON_NS * max(flow.speed, 1e-12)
            ):
                reached.append((flow, flow.marks_ns[flow.next_mark]))
                flow.next_mark += 1
        left = [flow for flow in self._flows if flow.next_mark < len(flow.marks_ns)]
        ended = len(left) < len(self._flows)
        self._flows = left
        for flow, mark in reached:
            flow.reached(mark)
        if ended:
            self._changed()
        elif not self._stale:
            self._wait()

    def faults(self) -> dict[str, int]:
        """Flows have no such events."""
        return dict.fromkeys(("drop_queue", "drop_first", "lost", "duplicated", "held_back", "corrupted"), 0)
