"""Plans along rings: chunked ring, naive ring, 2-D torus, hierarchical, multi-ring; and their parts.

Chunked ring (Patarasuk and Yuan, 2009): reduce-scatter, then all-gather, n-1 steps each; the array is cut into n pieces
of nearly equal length, and in each step everyone sends one to the right and takes one from the left. An element is
summed once, along the ring, and then copied: bit-identical on all ranks.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from switchagg.description import shard_range
from transport.collectives.collective import (
    Algorithm,
    AllreduceLoad,
    Collective,
    MethodStyle,
    Option,
    Task,
    stepwise,
)
from transport.collectives.collective_plan import CollectivePlan, Draft

Range = tuple[int, int]


def split(low: int, high: int, parts: int) -> list[Range]:
    """low … high cut into parts whose sizes differ by one at most."""
    ends = [low + part * (high - low) // parts for part in range(parts + 1)]
    return list(pairwise(ends))


def scatter_along(draft: Draft, ring: Sequence[int], pieces: Sequence[Range]) -> None:
    """Reduce-scatter: ring[i] ends with the sum of pieces[i]."""
    size, place = len(ring), ring.index(draft.member)
    right, left = ring[(place + 1) % size], ring[(place - 1) % size]
    for step in range(size - 1):
        draft.send(right, *pieces[(place - step - 1) % size])
        draft.receive(left, *pieces[(place - step - 2) % size], True)


def gather_along(draft: Draft, ring: Sequence[int], pieces: Sequence[Range]) -> None:
    """All-gather: ring[i] begins with pieces[i]."""
    size, place = len(ring), ring.index(draft.member)
    right, left = ring[(place + 1) % size], ring[(place - 1) % size]
    for step in range(size - 1):
        draft.send(right, *pieces[(place - step) % size])
        draft.receive(left, *pieces[(place - step - 1) % size], False)


def ring_allreduce(task: Task) -> CollectivePlan:
    """2(n-1) messages of 1/n of the array."""
    draft, workers = Draft(task.member, task.workers, task.elements), range(task.workers)
    pieces = split(0, task.elements, task.workers)
    scatter_along(draft, workers, pieces)
    gather_along(draft, workers, pieces)
    return draft.plan()


def ring_reduce_scatter(task: Task) -> CollectivePlan:
    """n-1 messages of 1/n of the array; rank r ends with its shard."""
    draft, workers = Draft(task.member, task.workers, task.elements), range(task.workers)
    scatter_along(draft, workers, [shard_range(task.elements, rank, task.workers) for rank in workers])
    return draft.plan()


def ring_all_gather(task: Task) -> CollectivePlan:
    """n-1 messages of 1/n of the array; rank r begins with its shard."""
    draft, workers = Draft(task.member, task.workers, task.elements), range(task.workers)
    gather_along(draft, workers, [shard_range(task.elements, rank, task.workers) for rank in workers])
    return draft.plan()


def ring_broadcast(task: Task) -> CollectivePlan:
    """A chain from the root on: everyone but the last sends the array once; segments pipeline."""
    _, _, member, workers, elements, root, _ = task
    draft = Draft(member, workers, elements)
    place = (member - root) % workers
    if place:
        draft.receive((member - 1) % workers, 0, elements, False)
    if place < workers - 1:
        draft.send((member + 1) % workers, 0, elements)
    return draft.plan()


def naive_ring_allreduce(task: Task) -> CollectivePlan:
    """n-1 messages of the whole array: everyone's array goes all the way round.

    Arrays come in another order on every rank, so they are kept ((n-1) times the array in scratch memory) and summed in
    the order of ranks: otherwise the ranks' floats would differ.
    """
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements, (workers - 1) * elements)
    places = {member: 0}
    right, left = (member + 1) % workers, (member - 1) % workers
    for step in range(workers - 1):
        out, received = (member - step) % workers, (member - step - 1) % workers
        places[received] = (step + 1) * elements
        draft.send(right, places[out], places[out] + elements)
        draft.receive(left, places[received], places[received] + elements, False)
    first = places[0]
    for rank in range(1, workers):
        if rank < member:
            draft.combine(first, first + elements, places[rank])
        elif rank == member:
            draft.combine(0, elements, first)  # a + b is b + a to the bit; here the sum moves to its place
        else:
            draft.combine(0, elements, places[rank])
    return draft.plan()


def torus_sides(workers: int) -> tuple[int, int]:
    """(X, Y), X·Y = workers, as square as possible, X >= Y. A prime number gives (n, 1): one ring."""
    side = next(side for side in range(math.isqrt(workers), 0, -1) if workers % side == 0)
    return workers // side, side


def hierarchical_group(workers: int, group: int = 0) -> int:
    """Ranks per group: as given, or 0: the smallest that divides the workers (all of them if n is prime).

    ValueError if the groups would not be equal.
    """
    if not group:
        return next((size for size in range(2, workers + 1) if workers % size == 0), 1)
    if group < 0 or workers % group:
        raise ValueError(f"hierarchical: groups of {group} don't divide {workers} workers")
    return group


def _in_groups(task: Task, group: int) -> CollectivePlan:
    """Reduce-scatter inside the group of consecutive ranks, allreduce across, all-gather inside; along rings."""
    draft = Draft(task.member, task.workers, task.elements)
    number, place = divmod(task.member, group)
    inside = range(number * group, (number + 1) * group)
    across = range(place, task.workers, group)
    pieces = split(0, task.elements, group)
    parts = split(*pieces[place], len(across))
    scatter_along(draft, inside, pieces)
    scatter_along(draft, across, parts)
    gather_along(draft, across, parts)
    gather_along(draft, inside, pieces)
    return draft.plan()


def torus_allreduce(task: Task) -> CollectivePlan:
    """Rings in rows of X, then in columns of Y, then in rows: 2(X-1) + 2(Y-1) messages (arXiv 1811.05233)."""
    return _in_groups(task, torus_sides(task.workers)[0])


def hierarchical_allreduce(task: Task) -> CollectivePlan:
    """Only 1/group of the array crosses between groups of consecutive ranks. option: see `hierarchical_group`."""
    return _in_groups(task, hierarchical_group(task.workers, task.option))


def row_of(workers: int, option: int = 0) -> int:
    """Ranks of a row of a multi-ring: as given, or 0: those of `torus_sides`. ValueError if rows would not be equal."""
    row = option or torus_sides(workers)[0]
    if row < 0 or workers % row:
        raise ValueError(f"multi_ring: rows of {row} don't divide {workers} workers")
    return row


def multi_ring_allreduce(task: Task) -> CollectivePlan:
    """A quarter of the array each: rows first or columns first, to the right or to the left, all at once, as the bucket
    algorithm on tori (Jain and Sabharwal, 2010). So a host with a NIC for each neighbour uses all of them.
    """
    row = row_of(task.workers, task.option)
    draft = Draft(task.member, task.workers, task.elements)
    number, place = divmod(task.member, row)
    inside, across = range(number * row, (number + 1) * row), range(place, task.workers, row)
    quarters = split(0, task.elements, 4)
    right, left = (inside, across), (inside[::-1], across[::-1])
    for quarter, (first, second) in zip(quarters, (right, right[::-1], left, left[::-1]), strict=True):
        pieces = split(*quarter, len(first))
        parts = split(*pieces[first.index(task.member)], len(second))
        scatter_along(draft, first, pieces)
        scatter_along(draft, second, parts)
        gather_along(draft, second, parts)
        gather_along(draft, first, pieces)
    return draft.plan()


# ---- costs


def _chain(load: AllreduceLoad, group: int) -> list[float]:
    """Bytes of the messages of a rank: inside its group, across and back, inside."""
    half = [load.size_bytes / group] * (group - 1)
    return half + [load.size_bytes / load.workers] * (2 * (load.workers // group - 1)) + half


RING = Collective(
    "ring",
    {
        "allreduce": Algorithm(ring_allreduce, turns=True),
        "reduce_scatter": Algorithm(ring_reduce_scatter, turns=True),
        "all_gather": Algorithm(ring_all_gather, turns=True),
        "broadcast": Algorithm(ring_broadcast),
    },
    stepwise(lambda load: _chain(load, load.workers)),
    MethodStyle("ring", "host allreduce in a ring, on the same links; the switch only forwards", "#D55E00", "v"),
    in_auto=True,
)
NAIVE_RING = Collective(
    "naive_ring",
    {"allreduce": Algorithm(naive_ring_allreduce)},
    stepwise(lambda load: [load.size_bytes] * (load.workers - 1), lambda load: (load.workers - 1) * load.size_bytes),
    MethodStyle("naive ring", "the whole array goes round the ring, as a teaching case", "#F4A582"),
)
TORUS = Collective(
    "torus",
    {"allreduce": Algorithm(torus_allreduce)},
    stepwise(lambda load: _chain(load, torus_sides(load.workers)[0])),
    MethodStyle("2D torus", "rings along the rows and columns of a torus of the workers", "#7B4FA3", "h"),
)
HIERARCHICAL = Collective(
    "hierarchical",
    {"allreduce": Algorithm(hierarchical_allreduce)},
    stepwise(lambda load: _chain(load, hierarchical_group(load.workers, load.option))),
    MethodStyle("hierarchical", "rings within groups, then across groups", "#4D4D4D", "*"),
    Option("ranks_per_group"),
)
MULTI_RING = Collective(
    "multi_ring",
    {"allreduce": Algorithm(multi_ring_allreduce)},
    stepwise(lambda load: _chain(load, row_of(load.workers, load.option))),
    MethodStyle(
        "multi-ring", "rings along rows and columns at once, both ways, for hosts with several NICs", "#9C755F", "D"
    ),
    Option("ranks_per_group"),
)
