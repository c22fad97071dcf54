"""Hosts with more than a rank and a link: several ranks, as GPUs of a server are, and several NICs, between which they
forward.

The bus that joins a host's ranks (NVSwitch, PCIe) and its NICs is a node like a switch. It forwards, so what leaves the
host shares the NIC; with `inside_sums` it aggregates as well (NVLink SHARP).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink, host_names


def hosts_of(fabric: Fabric, workers: int) -> int:
    """How many hosts the workers need; the last may have fewer ranks."""
    return -(-workers // fabric.ranks_per_host)


def with_ranks(network: Topology, fabric: Fabric, workers: int, settings: LinkSettings) -> Topology:
    """A network whose workers are hosts, each as a node with ranks below it. Ranks are numbered host by host."""
    ranks, servers = host_names(workers, len(network.servers))
    inside = tuple(f"n{number + 1}" for number in range(len(network.workers)))
    names = dict(zip(network.hosts, inside + servers, strict=True))
    links = tuple(
        TopologyLink(names.get(link.a, link.a), names.get(link.b, link.b), link.settings) for link in network.links
    )
    below = _to_ranks(ranks, inside, fabric.ranks_per_host, replace(settings, rate_bps=fabric.inside_bps))
    return replace(
        network,
        workers=ranks,
        servers=servers,
        switches=inside + network.switches,
        links=links + below,
        inside=inside,
        inside_sums=fabric.inside_sums,
    )


def forwarding_hosts(
    joined: Sequence[tuple[str, str]],
    switches: tuple[str, ...],
    fabric: Fabric,
    ends: tuple[int, int],
    settings: LinkSettings,
) -> Topology:
    """A network where hosts are on the way between others: nodes n1 … of hosts, and switches, and which are joined.

    ends: how many workers and servers. A rank alone on its host has all its NICs' rate to that. Raises ValueError for
    servers, or hosts of others, which have no place in it.
    """
    workers, servers = ends
    if servers:
        raise ValueError(f"it has no place for {servers} more hosts, of servers, [[jobs]] or [[flows]]; allowed: none")
    inside = tuple(f"n{number + 1}" for number in range(hosts_of(fabric, workers)))
    nics = sum(inside[0] in pair for pair in joined)
    ranks, _ = host_names(workers, 0)
    bus = replace(settings, rate_bps=fabric.inside_bps or nics * settings.rate_bps)
    links = tuple(TopologyLink(a, b, settings) for a, b in joined) + _to_ranks(
        ranks, inside, fabric.ranks_per_host, bus
    )
    return Topology(ranks, (), inside + switches, inside[0], links, inside=inside, graph=True)


def _to_ranks(
    ranks: Sequence[str], inside: Sequence[str], ranks_per_host: int, bus: LinkSettings
) -> tuple[TopologyLink, ...]:
    settings = replace(bus, delay_ns=0)
    return tuple(TopologyLink(rank, inside[number // ranks_per_host], settings) for number, rank in enumerate(ranks))
