"""Switches below switches: exact sums under any faults, of all links or of those between switches alone; H1 to H6.

Each seed draws a tree, its workers' places (racks of any size, one worker too, some beside switches at the root), and
which links are bad. A failure prints the command that repeats it; `--seeds 10000` runs more.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from dataplane_names import WITHOUT_P4

from simulation.checkers import Violation
from simulation.published_rule import PublishedLeaf
from simulation.test_simulation import replayable
from simulation.world import ANY_ORDER, IN_ORDER_LOSS, AnyEndpoint, Faults, World
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.p4 import p4_plane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.endpoint import Endpoint
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint

TREES = ((-1, 0, 0), (-1, 0, 0, 0), (-1, 0), (-1, 0, 0, 1, 1, 2), (-1, 0, 1))
"""Of each switch the one above it: racks under a root, and three levels."""

LEAVES = [name for name in WITHOUT_P4 if DATAPLANES[name].leaf and not (DATAPLANES[name].compiled and missing())]
ENDPOINTS: list[Callable[..., AnyEndpoint]] = [Endpoint] if missing() else [Endpoint, NativeEndpoint]

UP, DOWN = replace(ANY_ORDER, drop=0.4, links="up"), replace(ANY_ORDER, drop=0.4, links="down")
ONLY_UP, ONLY_DOWN = replace(IN_ORDER_LOSS, drop=0.4, links="up"), replace(IN_ORDER_LOSS, drop=0.4, links="down")


def tree_world(
    seed: int, plane: Callable[[int, int], DataPlane], endpoint: Callable[..., AnyEndpoint] = Endpoint
) -> World:
    rng = random.Random(~seed)
    above, faults = rng.choice(TREES), rng.choice([None, None, ANY_ORDER, UP, DOWN, ONLY_UP, ONLY_DOWN])
    return World(seed, faults, plane, endpoint, above)


def test_any_tree_under_any_faults(seed: int) -> None:
    """Data planes and endpoints take turns; some of their traces are compared with the reference's."""
    plane, endpoint = LEAVES[seed % len(LEAVES)], ENDPOINTS[seed // len(LEAVES) % len(ENDPOINTS)]
    with replayable("test_any_tree_under_any_faults", seed):
        trace = tree_world(seed, DATAPLANES[plane], endpoint).run()
        if seed % 7 == 0:
            assert trace == tree_world(seed, DATAPLANES["reference"]).run()


@pytest.mark.skipif(bool(p4_plane.missing()), reason=f"data plane p4: {p4_plane.missing()}")
@pytest.mark.parametrize("seed", [2, 8, 9])
def test_trees_of_the_p4_programs_leave_the_same_trace(seed: int) -> None:
    """Few seeds: a program is compiled for each number of elements."""
    assert tree_world(seed, DATAPLANES["p4"]).run() == tree_world(seed, DATAPLANES["reference"]).run()


def test_every_counter_of_a_leaf_counts() -> None:
    total: dict[str, int] = {}
    for seed in range(10):
        world = World(seed, ANY_ORDER, DATAPLANES["reference"], above=TREES[0])
        world.run()
        for plane in world.planes[1:]:
            for name, packets in plane.counters.items():
                total[name] = total.get(name, 0) + packets
    names = "up up_again drop_asked drop_parent_chunk drop_parent_duplicate broadcast reply"
    assert all(total.get(name, 0) > 5 for name in names.split()), total
    assert "drop_parent_early" not in total  # no parent has a result before its leaf has given (H6)


def objections(faults: Faults, plane: Callable[[int, int], DataPlane], seeds: int) -> list[str]:
    found = []
    for seed in range(seeds):
        try:
            World(seed, faults, plane, above=TREES[0]).run()
        except Violation as violation:
            found.append(str(violation).split(":")[0])
    return found


def test_the_published_leaf_gives_wrong_sums_where_leaf_packets_are_lost() -> None:
    """Even if order is kept, and nothing but leaf to root is lost."""
    found = objections(ONLY_UP, PublishedLeaf, 20)
    assert len(found) >= 10
    assert set(found) == {"SlotIsolation"}
    assert objections(replace(ONLY_UP, drop=0), PublishedLeaf, 10) == []
