"""A star: every host has a link to one switch, which aggregates."""

from __future__ import annotations

from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink, host_names


def star(_fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    hosts, server_hosts = host_names(workers, servers)
    links = tuple(TopologyLink(host, "s1", settings) for host in hosts + server_hosts)
    return Topology(hosts, server_hosts, ("s1",), "s1", links)
