"""Racks: the workers of each behind a leaf switch of their own, whose up-link may be oversubscribed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from emulation.scenario.topologies.topology import Fabric, LinkSettings, TopologyLink, host_names


@dataclass(frozen=True)
class Racks:
    """leaves: a switch for each rack. uplinks: what joins it to the rest. links: those of hosts."""

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    leaves: tuple[str, ...]
    uplinks: tuple[LinkSettings, ...]
    links: tuple[TopologyLink, ...]


def workers_by_rack(fabric: Fabric, workers: int) -> tuple[int, ...]:
    """How many workers each rack has: of consecutive ranks, so that a ring of all ranks enters every rack once.

    A number of racks divides the workers as equally as it goes. ValueError unless each has one and none is left over.
    """
    racks = fabric.racks
    if isinstance(racks, int):
        if not 1 <= racks <= workers:
            raise ValueError(f"racks: {racks} for {workers} workers; allowed: 1 … {workers}, at least a worker in each")
        return tuple(len(range(rack, workers, racks)) for rack in range(racks))
    if 0 in racks:
        raise ValueError(f"racks: rack {racks.index(0) + 1} has no worker; allowed: 1 or more in each; leave it out")
    if sum(racks) != workers:
        whose = (
            "hosts in all, but there are" if fabric.ranks_per_host > 1 else "workers in all, but [topology] workers ="
        )
        raise ValueError(f"racks: {sum(racks)} {whose} {workers}; allowed: the same")
    return racks


def racks_of(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Racks:
    """Hosts by rack, servers in turn. Up-links have their workers' rate over the oversubscription, and else what a
    host's link has; servers don't count, so that all methods have the same network. Raises ValueError."""
    sizes = workers_by_rack(fabric, workers)
    hosts, server_hosts = host_names(workers, servers)
    leaves = tuple(f"leaf{number + 1}" for number in range(len(sizes)))
    homes = [leaf for leaf, size in zip(leaves, sizes, strict=True) for _ in range(size)]
    homes += [leaves[server % len(leaves)] for server in range(servers)]
    uplinks = tuple(
        replace(settings, rate_bps=round(size * settings.rate_bps / fabric.oversubscription)) for size in sizes
    )
    links = tuple(TopologyLink(host, leaf, settings) for host, leaf in zip(hosts + server_hosts, homes, strict=True))
    return Racks(hosts, server_hosts, leaves, uplinks, links)


def tops_of(fabric: Fabric, name: str) -> tuple[str, ...]:
    """The switches that join all racks."""
    return tuple(f"{name}{number + 1}" for number in range(fabric.spines))


def links_to(tops: tuple[str, ...], below: str, settings: LinkSettings) -> list[TopologyLink]:
    """A switch's link to each of them: equal parts of a rate, each with a queue of its own."""
    part = replace(settings, rate_bps=max(1, settings.rate_bps // len(tops)))
    return [TopologyLink(below, top, part) for top in tops]
