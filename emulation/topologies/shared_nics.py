"""Several ranks on each host, as GPUs of a server are: behind its one link, and joined inside by a faster one.

What joins a host's ranks (NVSwitch, PCIe) is a node like a switch, with a link to each rank and the host's link, its
NIC, upward. It forwards, so what leaves the host shares the NIC; with `inside_sums` it aggregates as well (NVLink
SHARP).
"""

from __future__ import annotations

from dataclasses import replace

from emulation.topologies.topology import Fabric, Link, LinkSettings, Topology, host_names


def hosts_of(fabric: Fabric, workers: int) -> int:
    """How many hosts the workers need; the last may have fewer ranks."""
    return -(-workers // fabric.ranks_per_host)


def with_ranks(network: Topology, fabric: Fabric, workers: int, settings: LinkSettings) -> Topology:
    """A network whose workers are hosts, each as a node with ranks below it. Ranks are numbered host by host."""
    ranks, servers = host_names(workers, len(network.servers))
    inside = tuple(f"n{number + 1}" for number in range(len(network.workers)))
    names = dict(zip(network.hosts, inside + servers, strict=True))
    links = tuple(Link(names.get(link.a, link.a), names.get(link.b, link.b), link.settings) for link in network.links)
    bus = replace(settings, rate_bps=fabric.inside_bps, delay_ns=0)
    below = tuple(Link(rank, inside[number // fabric.ranks_per_host], bus) for number, rank in enumerate(ranks))
    return replace(
        network,
        workers=ranks,
        servers=servers,
        switches=inside + network.switches,
        links=links + below,
        inside=inside,
        inside_sums=fabric.inside_sums,
    )
