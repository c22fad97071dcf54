"""BCube (Guo et al., SIGCOMM 2009): hosts with a link to a switch in each of k + 1 levels, which forward between these.

A host is a number of k + 1 digits, 0 … ports - 1; a switch of level l joins those that differ in digit l alone. Hosts
are numbered as their digits read, the last being digit 0.
"""

from __future__ import annotations

from emulation.scenario.topologies.shared_nics import forwarding_hosts, hosts_of
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology


def levels_of(ports: int, hosts: int) -> int:
    """k + 1. Raises ValueError if no number of levels has so many hosts."""
    levels = 1
    while ports > 1 and ports**levels < hosts:
        levels += 1
    if ports < 2 or ports**levels != hosts:
        words = "missing" if not ports else f"{ports} for {hosts} hosts"
        raise ValueError(f"ports: {words}; allowed: 2 or more, of which the number of hosts is a power")
    return levels


def bcube(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    ports, hosts = fabric.ports, hosts_of(fabric, workers)
    joined, switches = [], dict[str, None]()
    for level in range(levels_of(ports, hosts)):
        for host in range(hosts):
            above, below = divmod(host, ports ** (level + 1))
            switch = f"b{level}x{above * ports**level + below % ports**level}"
            switches[switch] = None
            joined.append((f"n{host + 1}", switch))
    return forwarding_hosts(joined, tuple(switches), fabric, (workers, servers), settings)
