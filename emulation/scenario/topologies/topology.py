"""The contract of a topology: nodes, full-duplex links, switches that aggregate, and the way between any two nodes.

Links form a tree, or one for each of several switches at its top, which stand beside each other. So there is one way
between two nodes over each top, and the switches that aggregate for a job form a tree, too. Or they form any *graph*:
then all shortest ways between two nodes are taken alike, and nothing aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

Hop = tuple[str, str]
"""A direction of a link: the nodes that frames come from and go to."""
EVERY, SINGLE = "every", "one"  # of `placement`
HASH, SPRAY = "hash", "spray"
PATHS = (SPRAY, HASH)
"""How a switch with several links on the way divides what it forwards: frame by frame, or by flow; see
`emulation.sim.spines.paths`."""


@dataclass(frozen=True)
class Fabric:
    """The network that joins hosts. kind: a name of `topology_kinds`.

    racks: how many, or how many workers each has, where the kind has racks. oversubscription: the rate of a rack's
    workers together over that of its up-link, 1 or more. placement: which switches aggregate, a name of `placement`.
    spines: switches at the top, each with an equal part of that rate; paths: how frames are spread over them.
    ranks_per_host, inside_bps, inside_sums: see `shared_nics`. sides, ports: of `torus`, `bcube`. link_bps: rates of
    some links, by name: of one, its nodes' names joined by "-", or of all of a node's.
    """

    kind: str = "star"
    racks: int | tuple[int, ...] = 0
    oversubscription: float = 1.0
    placement: str = EVERY
    spines: int = 1
    paths: str = SPRAY
    ranks_per_host: int = 1
    inside_bps: int = 0
    inside_sums: bool = False
    sides: int | tuple[int, ...] = ()
    ports: int = 0
    link_bps: tuple[tuple[str, int], ...] = ()

    def group(self, workers: int) -> int:
        """Ranks of a group of `hierarchical`, or a row of `multi_ring`: of a host, else of a row; 0: as they choose."""
        row = self.sides[-1] if isinstance(self.sides, tuple) and self.sides else self.ports
        group = row if self.ranks_per_host == 1 else self.ranks_per_host
        return 0 if group < 2 or workers % group else group


STAR = Fabric()


@dataclass(frozen=True)
class LinkSettings:
    """The settings of both directions of a link. rate_bps: of Ethernet frames; delay_ns: one way; queue_bytes: at
    either end."""

    rate_bps: int
    delay_ns: int = 0
    queue_bytes: int = 1_000_000


@dataclass(frozen=True)
class TopologyLink:
    """A full-duplex link between two nodes. A node's ports have the order in which its links are listed."""

    a: str
    b: str
    settings: LinkSettings


@dataclass(frozen=True)
class Topology:
    """Names of nodes are unique, at most 8 letters and digits: interfaces are named after them.

    workers: hosts by rank. servers: hosts of parameter servers, the members after the workers. others: hosts of other
    jobs and flows, for which a job's view of a shared network has no use. top: the switch that all
    others are below; tops: those that could be, if there are several, top among them. Ways here lead over `top`: `over`
    is the same network with another. aggregators: those that sum, as a placement says; all others only forward. inside:
    those of the switches that are parts of hosts, between ranks and NIC; inside_sums: whether they may sum. graph:
    links need not form a tree; `top` is any of the nodes. Raises ValueError if a host has not exactly one link, links
    form no tree for each top, or no aggregator is above all others and all workers.
    """

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    switches: tuple[str, ...]
    top: str
    links: tuple[TopologyLink, ...]
    aggregators: tuple[str, ...] = ()
    other_hosts: tuple[str, ...] = ()
    tops: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    inside_sums: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        nodes = self.nodes
        if len(set(nodes)) != len(nodes) or any(not name.isalnum() or len(name) > 8 for name in nodes):
            raise ValueError("names of nodes must be unique, 1 to 8 letters and digits")
        for name in (self.top, *self.tops, *self.aggregators):
            if name not in self.switches:
                raise ValueError(f"{name} aggregates or is on top, but is no switch of the topology")
        if not {end for link in self.links for end in (link.a, link.b)} <= set(nodes):
            raise ValueError("a link ends at a node that the topology does not have")
        for host in self.hosts:
            if len(self.neighbours[host]) != 1:
                raise ValueError(f"host {host} has {len(self.neighbours[host])} links, not 1")
        if self.top not in (self.tops or (self.top,)):
            raise ValueError(f"{self.top} is on top, but not one of tops: {', '.join(self.tops)}")
        for top in self.tops or (self.top,):
            if not self.graph and not self._is_tree(set(self.tops) - {top}):
                raise ValueError("links must form a tree over all nodes" + f" below {top}" * bool(self.tops))
        without = [name for name in self.aggregators + self.workers if self.parent(name) is None]
        if self.aggregators and without[1:]:
            raise ValueError(f"{without[0]} and {without[1]} have no aggregating switch in common")

    def _is_tree(self, without: set[str]) -> bool:
        """Whether the links between all other nodes form one."""
        (first, *_), links = self.hosts, [link for link in self.links if not without & {link.a, link.b}]
        reached, seen = [first], {first, *without}
        for node in reached:
            new = [neighbour for neighbour in self.neighbours[node] if neighbour not in seen]
            reached += new
            seen.update(new)
        return len(links) == len(reached) - 1 and seen == set(self.nodes)

    def over(self, top: str, aggregators: tuple[str, ...] = ()) -> Topology:
        """The same network, whose ways lead over another of its tops. aggregators: of a job that has its root there."""
        return replace(self, top=top, aggregators=aggregators)

    @property
    def views(self) -> tuple[Topology, ...]:
        """The network over each of its tops, without a job's aggregators."""
        return tuple(map(self.over, self.tops or (self.top,)))

    @property
    def members(self) -> tuple[str, ...]:
        """The job's hosts: workers by rank, then servers."""
        return self.workers + self.servers

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them."""
        return self.members + self.other_hosts

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.hosts + self.switches

    def nic(self, host: str) -> str:
        """The node whose links with the network are a host's: itself, or what joins its ranks."""
        above = self.neighbours[host][0]
        return above if above in self.inside else host

    @property
    def hops(self) -> Iterator[tuple[Hop, LinkSettings]]:
        """The two directions of every link, in the order of the links."""
        for link in self.links:
            yield (link.a, link.b), link.settings
            yield (link.b, link.a), link.settings

    def parent(self, node: str) -> str | None:
        """Where an aggregating switch, or a worker, sends its sums or values: the next aggregator on the way up; None
        for the root, which has the result."""
        return next((switch for _, switch in self.path(node, self.top) if switch in self.aggregators), None)

    @cached_property
    def root(self) -> str:
        """The aggregator above all others; of a graph, its top."""
        return next((name for name in self.aggregators if self.parent(name) is None), self.top)

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """By aggregator: workers and aggregators whose parent it is, in the order of their ranks there."""
        by_parent: dict[str, list[str]] = {name: [] for name in self.aggregators}
        for node in self.workers + self.aggregators:
            parent = self.parent(node)
            if parent is not None:
                by_parent[parent].append(node)
        return {name: tuple(nodes) for name, nodes in by_parent.items()}

    def next_hops(self, node: str, to: str) -> tuple[str, ...]:
        """The neighbours to which a node may send what is for another node, all of them as near to that as any."""
        if to in self._switch_of:  # its switch's routes, with a step more: there are far fewer of them
            switch = self._switch_of[to]
            return (to,) if node == switch else self.next_hops(node, switch)
        if node in self._switch_of:
            return (self._switch_of[node],)
        if to not in self._routes:
            steps, nearer = {to: 0}, dict[str, list[str]]()
            reached = [to]
            for there in reached:
                for neighbour in self.neighbours[there]:
                    if neighbour in self._switch_of:
                        continue
                    if neighbour not in steps:
                        steps[neighbour] = steps[there] + 1
                        reached.append(neighbour)
                    if steps[neighbour] > steps[there]:
                        nearer.setdefault(neighbour, []).append(there)
            self._routes[to] = {there: tuple(hops) for there, hops in nearer.items()}
        return self._routes[to][node]

    def next_hop(self, node: str, to: str) -> str:
        """The neighbour to which a node sends what is for another node: the top, if it may be any of several; of a
        graph, the first of them."""
        hops = self.next_hops(node, to)
        return self.top if self.top in hops and not self.graph else hops[0]

    def layers(self, sender: str, to: str) -> list[dict[Hop, Fraction]]:
        """The directions of links that frames cross, step by step, on all shortest ways, each with its part of them if
        every node divides what it forwards equally."""
        levels, there = [], {sender: Fraction(1)}
        while to not in there:
            crossed: dict[Hop, Fraction] = {}
            for node, part in there.items():
                hops = self.next_hops(node, to)
                crossed.update({(node, hop): part / len(hops) for hop in hops})
            there = {}
            for (_, hop), part in crossed.items():
                there[hop] = there.get(hop, Fraction(0)) + part
            levels.append(crossed)
        return levels

    def path(self, sender: str, to: str) -> list[Hop]:
        """The directions of links that a frame crosses, in order."""
        nodes = [sender]
        while nodes[-1] != to:
            nodes.append(self.next_hop(nodes[-1], to))
        return list(pairwise(nodes))

    def settings(self, hop: Hop) -> LinkSettings:
        """The settings of the link that a direction belongs to."""
        return self._settings[hop]

    @cached_property
    def _settings(self) -> dict[Hop, LinkSettings]:
        return dict(self.hops)

    @cached_property
    def _switch_of(self) -> dict[str, str]:
        """By host."""
        return {host: self.neighbours[host][0] for host in self.hosts}

    @cached_property
    def neighbours(self) -> dict[str, list[str]]:
        """By node, in the order of its ports."""
        by_node: dict[str, list[str]] = {name: [] for name in self.nodes}
        for a, b in (hop for hop, _ in self.hops):
            by_node[a].append(b)
        return by_node

    @cached_property
    def _routes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        return {}


def host_names(workers: int, servers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The usual names: h1 … of workers, by rank; those of the servers' hosts follow."""
    names = tuple(f"h{number + 1}" for number in range(workers + servers))
    return names[:workers], names[workers:]
