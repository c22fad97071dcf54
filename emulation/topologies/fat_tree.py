"""A fat tree: racks in pods, pods under a core; above the racks every switch has upward what it has downward.

The tree that a job uses of one: a switch for each pod, and one core, each with the rate of all that it stands for. A
fat tree of k-port switches has k pods of k/2 racks; k is the smallest that has all racks.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt

from emulation.topologies.racks import racks_of
from emulation.topologies.topology import Fabric, Link, LinkSettings, Topology


def fat_tree(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    racks, core = racks_of(fabric, workers, servers, settings), "core1"
    in_pod = ceil(sqrt(len(racks.leaves) / 2))
    uplinks: list[Link] = []
    pods: list[Link] = []
    for first in range(0, len(racks.leaves), in_pod):
        pod, rates = f"pod{len(pods) + 1}", racks.uplinks[first : first + in_pod]
        leaves = racks.leaves[first : first + in_pod]
        uplinks += [Link(leaf, pod, uplink) for leaf, uplink in zip(leaves, rates, strict=True)]
        pods.append(Link(pod, core, replace(settings, rate_bps=sum(uplink.rate_bps for uplink in rates))))
    switches = (*racks.leaves, *(link.a for link in pods), core)
    return Topology(racks.workers, racks.servers, switches, core, (*racks.links, *uplinks, *pods))
