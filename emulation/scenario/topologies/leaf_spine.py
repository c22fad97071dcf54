"""Leaf and spine: a leaf switch for each rack, and spine switches, each of which joins them all.

A single spine models several spines over which traffic is spread perfectly: its links have the rate of all of a leaf's
together. Several spines divide that rate equally.
"""

from __future__ import annotations

from emulation.scenario.topologies.racks import links_to, racks_of, tops_of
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology


def leaf_spine(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    racks, spines = racks_of(fabric, workers, servers, settings), tops_of(fabric, "spine")
    links = [*racks.links]
    for leaf, uplink in zip(racks.leaves, racks.uplinks, strict=True):
        links += links_to(spines, leaf, uplink)
    return Topology(racks.workers, racks.servers, (*racks.leaves, *spines), spines[0], tuple(links), tops=spines)
