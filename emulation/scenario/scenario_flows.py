"""The flows of a scenario, in both backends: which hosts and links they have, when each begins, and how large it is.

Standard library only: `mn_custom.py` comes here under the system's Python, and each end of real flows is a process.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from emulation.scenario.scenario_tables import FlowOptions
    from emulation.scenario.topologies.topology import Hop, Topology

SHORT, INCAST = "short", "incast"
# The web search of DCTCP (Alizadeh 2010, figure 4): bytes, and which part of the flows is no larger.
WEB_SEARCH = (
    (0, 0.0),
    (10_000, 0.15),
    (20_000, 0.20),
    (30_000, 0.30),
    (50_000, 0.40),
    (80_000, 0.53),
    (200_000, 0.60),
    (1_000_000, 0.70),
    (2_000_000, 0.80),
    (5_000_000, 0.90),
    (10_000_000, 0.97),
    (30_000_000, 1.0),
)


class FlowPlace(NamedTuple):
    """Hosts by number: the workers' by rank, then those of parameter servers, then the flows' own."""

    sources: tuple[int, ...]
    to: int


def places(flows: Sequence[FlowOptions], first: int) -> list[FlowPlace]:
    """The hosts of each entry of `[[flows]]`; first: the number of the first host that is no job's."""
    placed = []
    for flow in flows:
        sources: tuple[int, ...] = (flow.from_rank,)
        if flow.from_rank < 0:
            sources = tuple(range(first, first + flow.count))
            first += flow.count
        to = flow.to_rank
        if to < 0:
            to, first = first, first + 1
        placed.append(FlowPlace(sources, to))
    return placed


def own_hosts(flows: Sequence[FlowOptions]) -> int:
    """How many hosts flows have for themselves."""
    return sum(flow.count * (flow.from_rank < 0) + (flow.to_rank < 0) for flow in flows)


def user_of(flows: Sequence[FlowOptions], place: int, number: int) -> str:
    """A flow's name as a user of links: flows that end are named by their kind, others by kind and number."""
    kind = flows[place].kind
    if not flows[place].endless:
        return kind
    return f"{kind} {1 + number + sum(flow.count for flow in flows[:place] if flow.kind == kind)}"


class FlowPath(NamedTuple):
    """The path of a flow without end, or of all flows that an entry has from one source, as a user of links."""

    place: int  # of the entry
    number: int  # of the flow, or of the source
    user: str
    hops: tuple[Hop, ...]


def flow_paths(flows: Sequence[FlowOptions], links: Topology, hosts: Sequence[str], members: int) -> list[FlowPath]:
    """The paths of all flows; an entry's flows are in the order of their numbers. hosts: by number, the first `members`
    are the job's.

    Flows take the sources of their entry in turn. Hops: those of all ways, where these may lead over any of several
    tops.
    """
    paths = []
    for place, (options, (sources, to)) in enumerate(zip(flows, places(flows, members), strict=True)):
        for number in range(options.count if options.endless else len(sources)):
            ends = hosts[sources[number % len(sources)]], hosts[to]
            hops = dict.fromkeys(hop for view in links.views for hop in view.path(*ends))
            paths.append(FlowPath(place, number, user_of(flows, place, number), tuple(hops)))
    return paths


def job_hops(links: Topology, members: Sequence[str]) -> set[Hop]:
    """Directions of links that a job among these hosts crosses, or may, with several tops."""
    ends = links.tops if len(links.tops) > 1 else (links.root,)
    up = {hop for host in members for end in ends for hop in links.path(host, end)}
    return up | {(b, a) for a, b in up}


class SharedHop(NamedTuple):
    """A direction of a link that data of flows cross and the job does, too. equals: those of whom each should have the
    same, once all have begun, at from_ns: the job and flows without end."""

    hop: Hop
    paths: list[FlowPath]
    equals: tuple[str, ...]
    from_ns: int


def shared_hops(
    flows: Sequence[FlowOptions], paths: Sequence[FlowPath], of_job: set[Hop], job: str
) -> Iterator[SharedHop]:
    """All of them, by name. of_job: as `job_hops` says; job: the job's name as a user."""
    for hop in sorted(of_job.intersection(hop for path in paths for hop in path.hops)):
        crossing = [path for path in paths if hop in path.hops]
        endless = [path for path in crossing if flows[path.place].endless]
        from_ns = max((flows[path.place].start_ns for path in endless), default=0)
        yield SharedHop(hop, crossing, (job, *sorted(path.user for path in endless)), from_ns)


def web_size_bytes(chance: float, most_bytes: int) -> int:
    """A size whose place among all of at most most_bytes is chance, 0 … 1; between the given points a line."""
    sizes, parts = zip(*WEB_SEARCH, strict=True)

    def at(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
        place = min(max(1, bisect.bisect_left(xs, x)), len(xs) - 1)
        part = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
        return ys[place - 1] + part * (ys[place] - ys[place - 1])

    largest = at(min(most_bytes, sizes[-1]), sizes, parts)
    return max(1, int(at(chance * largest, parts, sizes)))


def mean_web_bytes(most_bytes: int, steps: int = 1_000) -> float:
    """The mean of the sizes that `web_size_bytes` gives."""
    return sum(web_size_bytes((step + 0.5) / steps, most_bytes) for step in range(steps)) / steps


class Arrival(NamedTuple):
    """A flow that begins. source: its place among those of the entry. size_bytes: 0 of a flow without end."""

    at_ns: int
    source: int
    size_bytes: int


@dataclass(frozen=True)
class Arrivals:
    """Iterates over the flows of an entry of `[[flows]]` in the order in which they begin; times from the run's start.

    "short" flows arrive at random (Poisson), per_s in the mean, with web-like sizes up to most_bytes; of "incast"
    `count` of size_bytes begin at once, every period_ns; of all others `count`, without end. stop_ns: none begins from
    then on; 0: they never cease. seed: for what is drawn.
    """

    kind: str
    count: int
    sources: int
    start_ns: int
    stop_ns: int
    size_bytes: int
    period_ns: int
    most_bytes: int
    per_s: float
    seed: str

    @classmethod
    def of(cls, options: FlowOptions, sources: int, rate_bps: int, seed: int, place: int) -> Arrivals:
        """rate_bps: of the link that `load` is of. place: of the entry."""
        return cls(
            options.kind,
            options.count,
            sources,
            options.start_ns,
            options.stop_ns,
            options.size_bytes,
            options.period_ns,
            options.most_bytes,
            rate_bps * options.load / 8 / mean_web_bytes(options.most_bytes),
            f"{seed} short {place}",
        )

    @property
    def endless(self) -> bool:
        """Whether its flows last as long as the run."""
        return self.kind not in (SHORT, INCAST)

    def __iter__(self) -> Iterator[Arrival]:
        """Never ends, but with stop_ns, or where flows are without end."""
        if self.kind == SHORT:
            yield from self._short()
            return
        at_ns = self.start_ns
        while not 0 < self.stop_ns <= at_ns:
            for number in range(self.count):
                yield Arrival(at_ns, number % self.sources, 0 if self.endless else self.size_bytes)
            if self.endless:
                return
            at_ns += self.period_ns

    def _short(self) -> Iterator[Arrival]:
        chance, at_ns = random.Random(self.seed).random, self.start_ns
        while True:
            at_ns += int(-math.log(1 - chance()) / self.per_s * 1e9)
            if 0 < self.stop_ns <= at_ns:
                return
            source = int(chance() * self.sources)
            yield Arrival(at_ns, source, web_size_bytes(chance(), self.most_bytes))


def flows_fault(flows: Sequence[FlowOptions], workers: int, mininet: bool) -> str:
    """The fault of flows, as text behind the file's name; "" if there is none."""
    for flow in flows:
        for key in ("to_rank", "from_rank"):
            if getattr(flow, key) >= workers:
                return f"[[flows]] {key}: {getattr(flow, key)} is out of range; allowed: -1 … {workers - 1}"
        if 0 <= flow.to_rank == flow.from_rank:
            return f"[[flows]] from_rank: {flow.from_rank} is where they go to; allowed: another rank, or -1"
        if flow.stop_ns and flow.stop_ns <= flow.start_ns:
            return f"[[flows]] stop_ns: {flow.stop_ns} is not after start_ns = {flow.start_ns}; allowed: later, or 0"
    if mininet:
        return _fault_in_mininet(flows)
    return ""


def _fault_in_mininet(flows: Sequence[FlowOptions]) -> str:
    """Whether connections ask for marks is a setting of their host's namespace."""
    for flow in flows:
        if flow.rdma:
            control = flow.kind if flow.endless else flow.congestion
            return (
                f"[[flows]] kind: '{control}' is in virtual time alone; allowed: [methods] mininet = [], and --on sim"
            )
    for rank in {flow.from_rank for flow in flows if flow.from_rank >= 0}:
        if len({flow.ecn for flow in flows if flow.from_rank == rank}) > 1:
            return f"[[flows]] ecn: 0 and 1 of flows from rank {rank}; allowed in Mininet: the same, or from_rank = -1"
    return ""
