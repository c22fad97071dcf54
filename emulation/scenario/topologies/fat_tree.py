"""A fat tree: racks in pods, pods under a core; above the racks every switch has upward what it has downward.

A switch for each pod has the rate of all that it stands for; one core, too, and of several each an equal part. A fat
tree of k-port switches has k pods of k/2 racks; k is the smallest that has all racks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import ceil, sqrt

from emulation.scenario.topologies.racks import links_to, racks_of, tops_of
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink


def fat_tree(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    racks, cores = racks_of(fabric, workers, servers, settings), tops_of(fabric, "core")
    in_pod = ceil(sqrt(len(racks.leaves) / 2))
    uplinks: list[TopologyLink] = []
    pods: dict[str, list[TopologyLink]] = {}
    for first in range(0, len(racks.leaves), in_pod):
        pod, rates = f"pod{len(pods) + 1}", racks.uplinks[first : first + in_pod]
        leaves = racks.leaves[first : first + in_pod]
        uplinks += [TopologyLink(leaf, pod, uplink) for leaf, uplink in zip(leaves, rates, strict=True)]
        together = replace(settings, rate_bps=sum(uplink.rate_bps for uplink in rates))
        pods[pod] = links_to(cores, pod, together)
    switches, links = (*racks.leaves, *pods, *cores), (*racks.links, *uplinks, *chain(*pods.values()))
    return Topology(racks.workers, racks.servers, switches, cores[0], links, tops=cores)
