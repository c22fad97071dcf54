"""Leaf and spine: a leaf switch for each rack, and a spine switch that joins them.

Real ones have several spines, over which flows spread. This is the tree that a job uses: one spine, whose links have
the rate of all of a leaf's together.
"""

from __future__ import annotations

from emulation.topologies.racks import racks_of
from emulation.topologies.topology import Fabric, Link, LinkSettings, Topology


def leaf_spine(fabric: Fabric, workers: int, servers: int, settings: LinkSettings) -> Topology:
    racks, spine = racks_of(fabric, workers, servers, settings), "spine1"
    uplinks = [Link(leaf, spine, uplink) for leaf, uplink in zip(racks.leaves, racks.uplinks, strict=True)]
    return Topology(racks.workers, racks.servers, (*racks.leaves, spine), spine, (*racks.links, *uplinks))
