"""The policies that choose the switches which aggregate for a job, an entry each. A new one is a function and an
entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from emulation.scenario.topologies.topology import EVERY, SINGLE, Topology


def every_joining_switch(topology: Topology) -> tuple[str, ...]:
    """Every switch with workers in two branches or more: what only passes a sum on would gain nothing."""
    if topology.graph:
        return ()
    (root,), branches = lowest_common_switch(topology), _branches(topology)
    joining = (name for name in topology.switches if name == root or len(branches[name]) > 1)
    return tuple(name for name in joining if _may_sum(topology, name))


def lowest_common_switch(topology: Topology) -> tuple[str, ...]:
    """The lowest switch that has all workers below it. The other switches forward."""
    if topology.graph:
        return ()
    first, *_ = topology.workers
    branches, all_of_them = _branches(topology), len(topology.workers)
    up = (switch for _, switch in topology.path(first, topology.top))
    able = (switch for switch in up if _may_sum(topology, switch))
    return (next(switch for switch in able if branches[switch].total() == all_of_them),)


def _may_sum(topology: Topology, switch: str) -> bool:
    return topology.inside_sums or switch not in topology.inside


def _branches(topology: Topology) -> dict[str, Counter[str]]:
    """By switch: the neighbours below it that lead to workers, and to how many."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in topology.switches}
    for worker in topology.workers:
        for below, switch in topology.path(worker, topology.top):
            counts[switch][below] += 1
    return counts


PLACEMENTS: dict[str, Callable[[Topology], tuple[str, ...]]] = {
    EVERY: every_joining_switch,
    SINGLE: lowest_common_switch,
}
"""policy(topology): the switches that aggregate, in the order of `Topology.switches`. A switch among them, the root,
must be above all others and above all workers; the parent of any other switch is the nearest above it."""


def placement_names() -> tuple[str, ...]:
    return tuple(PLACEMENTS)
