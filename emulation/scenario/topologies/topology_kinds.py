"""The topologies, an entry each: a new one is a file with a function that builds it, and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from emulation.scenario.topologies.bcube import bcube
from emulation.scenario.topologies.fat_tree import fat_tree
from emulation.scenario.topologies.leaf_spine import leaf_spine
from emulation.scenario.topologies.placement import PLACEMENTS
from emulation.scenario.topologies.shared_nics import hosts_of, with_ranks
from emulation.scenario.topologies.star import star
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink
from emulation.scenario.topologies.torus import torus


@dataclass(frozen=True)
class TopologyKind:
    """A topology's entry in the table: its builder and its properties.

    build(fabric, workers, servers, settings): with at least one worker; settings: of every host's link, and what other
    links derive theirs from. ValueError, in one line for the user, for numbers that it can't have. summary: in reports,
    a sentence without its full stop; "": the usual one, not worth a word. racks: it has some, so a fabric says which.
    keys: of a fabric, that it alone has. forwards: its hosts do, so nothing aggregates, and `build` is told of ranks.
    """

    name: str
    build: Callable[[Fabric, int, int, LinkSettings], Topology]
    summary: str = ""
    racks: bool = False
    keys: tuple[str, ...] = ()
    forwards: bool = False


TOPOLOGIES: dict[str, TopologyKind] = {
    kind.name: kind
    for kind in (
        TopologyKind("star", star),
        TopologyKind("leaf_spine", leaf_spine, "racks with a leaf switch each, joined by a spine switch", racks=True),
        TopologyKind(
            "fat_tree", fat_tree, "racks with a leaf switch each, in pods with a switch each, under a core", racks=True
        ),
        TopologyKind("torus", torus, "a torus of hosts, which forward", keys=("sides",), forwards=True),
        TopologyKind(
            "bcube",
            bcube,
            "BCube, each host with a switch in every level and forwarding between them",
            keys=("ports",),
            forwards=True,
        ),
    )
}


def topology_names() -> tuple[str, ...]:
    return tuple(TOPOLOGIES)


@lru_cache
def topology(fabric: Fabric, workers: int, servers: int, settings: LinkSettings, other_hosts: int = 0) -> Topology:
    """The nodes and links of one network, and which switches aggregate. Raises ValueError.

    others: hosts of other jobs and flows, where those of further servers would be.
    """
    kind = TOPOLOGIES[fabric.kind]
    if kind.racks and not fabric.racks:
        raise ValueError("racks: missing; allowed: how many, or a list of the workers in each")
    if not kind.racks and (fabric.racks or fabric.oversubscription != 1 or fabric.spines > 1):
        key = "racks" if fabric.racks else "spines" if fabric.spines > 1 else "oversubscription"
        racked = [name for name in TOPOLOGIES if has_racks(name)]
        raise ValueError(f"{key}: it has no racks; leave {key} out, or take kind = {' or '.join(racked)}")
    if fabric.ranks_per_host > 1 and not fabric.inside_bps:
        raise ValueError("inside_bps: missing; allowed: the rate of a rank's link to the others of its host")
    if fabric.ranks_per_host == 1 and (fabric.inside_bps or fabric.inside_sums):
        key = "inside_bps" if fabric.inside_bps else "inside_sums"
        raise ValueError(f"{key}: with ranks_per_host = 1 nothing is inside a host; allowed: 0, or 2 ranks or more")
    for key in [key for other in TOPOLOGIES.values() for key in other.keys]:
        if getattr(fabric, key) and key not in kind.keys:
            having = " or ".join(other.name for other in TOPOLOGIES.values() if key in other.keys)
            raise ValueError(f"{key}: it has none; leave {key} out, or take kind = {having}")
    built = kind.build(fabric, workers if kind.forwards else hosts_of(fabric, workers), servers + other_hosts, settings)
    if fabric.ranks_per_host > 1 and not kind.forwards:
        built = with_ranks(built, fabric, workers, settings)
    built = replace(built, servers=built.servers[:servers], other_hosts=built.servers[servers:])
    built = replace(built, links=_with_rates(built, fabric.link_bps))
    return replace(built, aggregators=PLACEMENTS[fabric.placement](built))


def _with_rates(built: Topology, link_bps: tuple[tuple[str, int], ...]) -> tuple[TopologyLink, ...]:
    """The links, some with a rate of their own; where several names have one, the last one counts."""
    links = list(built.links)
    for name, rate_bps in link_bps:
        ends = set(name.split("-"))
        named = [place for place, link in enumerate(links) if ends <= {link.a, link.b}]
        if not named:
            raise ValueError(f"link_bps: {name}: no node or link has this name; allowed: like h1, or {_some(built)}")
        for place in named:
            links[place] = replace(links[place], settings=replace(links[place].settings, rate_bps=rate_bps))
    return tuple(links)


def _some(built: Topology) -> str:
    last = built.links[-1]
    return f"{last.a}-{last.b}"


def seen_by(network: Topology, workers: tuple[str, ...], placement: str, servers: tuple[str, ...] = ()) -> Topology:
    """A network as another job has it, whose workers and servers are on these hosts."""
    other_hosts = tuple(host for host in network.hosts if host not in workers + servers)
    job = replace(network, workers=workers, servers=servers, other_hosts=other_hosts, aggregators=())
    return replace(job, aggregators=PLACEMENTS[placement](job))


def over_each_top(network: Topology, placement: str) -> tuple[Topology, ...]:
    """A network as a job has it whose ways lead over its first top, its second …"""
    return tuple(view.over(view.top, PLACEMENTS[placement](view)) for view in network.views)


def trees(network: Topology, placement: str, most: int = 0, first: int = 0) -> tuple[Topology, ...]:
    """The trees by which a job may sum, over a network's tops in turn, from number first on. most: of them; 0: as many
    as there are tops. The roots differ: where no top is a root, as for workers of one rack, there is one tree."""
    every = over_each_top(network, placement)
    turns = [every[(first + number) % len(every)] for number in range(min(most or len(every), len(every)))]
    return tuple({tree.root: tree for tree in reversed(turns)}.values())[::-1]


def has_racks(kind: str) -> bool:
    return TOPOLOGIES[kind].racks
