"""Plans on trees: binomial reduce and broadcast, and two complementary binary trees. Long arrays travel in segments.

Double binary tree (Sanders, Speck, Träff, 2009; the trees are NCCL's): each tree takes half of the array, up to its
root and down again. No rank has more than two children in both together, so none sends more than twice the
array. (An inner rank of one is a leaf of the other, but for rank 0 of an odd number of ranks.)
"""

from transport.collectives.collective import (
    Algorithm,
    AllreduceLoad,
    Collective,
    Cost,
    Costs,
    LinkPace,
    MethodStyle,
    Task,
)
from transport.collectives.collective_plan import CollectivePlan, Draft


def _binomial(place: int, workers: int) -> tuple[int | None, list[int]]:
    """(parent, children) of a place in the tree with root 0; the children in the order in which they finish."""
    children: list[int] = []
    mask = 1
    while mask < workers:
        if place & mask:
            return place - mask, children
        if place + mask < workers:
            children.append(place + mask)
        mask *= 2
    return None, children


def tree_broadcast(task: Task) -> CollectivePlan:
    """ceil(log2 n) messages of the array from the root, fewer from others, n-1 in all; the largest subtree first."""
    _, _, member, workers, elements, root, _ = task
    draft = Draft(member, workers, elements)
    parent, children = _binomial((member - root) % workers, workers)
    if parent is not None:
        draft.receive((parent + root) % workers, 0, elements, False)
    for child in reversed(children):
        draft.send((child + root) % workers, 0, elements)
    return draft.plan()


def tree_reduce(task: Task) -> CollectivePlan:
    """A message of the array from every rank but the root, of sums up the tree."""
    draft, _, _ = _up(task, task.root)
    return draft.plan()


def _up(task: Task, root: int) -> tuple[Draft, int | None, list[int]]:
    """The draft of a reduce, and the member's parent and children."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    place, places = _binomial((member - root) % workers, workers)
    children = [(child + root) % workers for child in places]
    parent = None if place is None else (place + root) % workers
    for child in children:
        draft.receive(child, 0, elements, True)
    if parent is not None:
        draft.send(parent, 0, elements)
    return draft, parent, children


def tree_allreduce(task: Task) -> CollectivePlan:
    """Reduce to rank 0 and broadcast from it: 2(n-1) messages of the array in all."""
    elements = task.elements
    draft, parent, children = _up(task, 0)
    if parent is not None:
        draft.receive(parent, 0, elements, False)
    for child in reversed(children):
        draft.send(child, 0, elements)
    return draft.plan()


def binary_tree(place: int, size: int) -> tuple[int | None, list[int]]:
    """(parent, children) in NCCL's tree: root 0 with one child, odd places are leaves, in-order numbering."""
    if place == 0:
        return None, [1 << ((size - 1).bit_length() - 1)] if size > 1 else []
    bit = place & -place
    parent = (place ^ bit) | bit << 1
    if parent >= size:
        parent = place ^ bit
    children = []
    if bit > 1:
        step = bit >> 1
        children.append(place - step)
        while step and place + step >= size:
            step >>= 1
        if step:
            children.append(place + step)
    return parent, children


def complementary_trees(member: int, workers: int) -> list[tuple[int | None, list[int]]]:
    """(parent, children) of a rank in both trees: the second is mirrored for an even n, shifted by one for an odd."""

    def second(rank: int) -> int:
        return (rank + 1) % workers if workers % 2 else workers - 1 - rank

    place = (member - 1) % workers if workers % 2 else workers - 1 - member
    parent, children = binary_tree(place, workers)
    return [
        binary_tree(member, workers),
        (None if parent is None else second(parent), [second(child) for child in children]),
    ]


def double_tree_allreduce(task: Task) -> CollectivePlan:
    """Per tree 2(n-1) messages of half of the array, of all ranks together; at most twice the array from any rank."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    halves = ((0, elements // 2), (elements // 2, elements))
    for (parent, children), (low, high) in zip(complementary_trees(member, workers), halves, strict=True):
        for child in children:
            draft.receive(child, low, high, True)
        if parent is not None:
            draft.send(parent, low, high)
            draft.receive(parent, low, high, False)
        for child in children:
            draft.send(child, low, high)
    return draft.plan()


# ---- costs


def _depth(workers: int) -> int:
    return (workers - 1).bit_length()


def _tree_textbook(load: AllreduceLoad) -> Cost:
    depth = _depth(load.workers)
    return Cost(2 * depth, 2 * depth * load.size_bytes, depth * load.size_bytes)


def _tree_seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    """The root's port carries the array once per child, in and then out."""
    way = min(load.size_bytes, pace.segment_bytes) + load.size_bytes
    return 2 * (load.workers.bit_length() - 1) * pace.alpha + _depth(load.workers) * way * pace.beta


def _double_textbook(load: AllreduceLoad) -> Cost:
    return Cost(2 * _depth(load.workers), 2 * load.size_bytes, load.size_bytes)


def _double_seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    """Up and down `depth` levels of two children, then as fast as an inner port goes."""
    depth, segment = _depth(load.workers), min(load.size_bytes / 2, pace.segment_bytes)
    return 2 * depth * pace.alpha + (3 * (depth - 1) * segment + 2 * load.size_bytes) * pace.beta


TREE = Collective(
    "tree",
    {
        "allreduce": Algorithm(tree_allreduce),
        "broadcast": Algorithm(tree_broadcast),
        "reduce": Algorithm(tree_reduce),
    },
    Costs(_tree_textbook, _tree_seconds),
    MethodStyle(
        "binomial tree",
        "summed up a binomial tree and sent down again: the counter-example, its root's link is the bottleneck",
        "#8C564B",
        "^",
    ),
    pipelined=True,
)
DOUBLE_TREE = Collective(
    "double_tree",
    {"allreduce": Algorithm(double_tree_allreduce)},
    Costs(_double_textbook, _double_seconds),
    MethodStyle(
        "double binary tree",
        "two binary trees at once, each for one half; no rank has more than two children in both together",
        "#B8A000",
        "<",
    ),
    in_auto=True,
    pipelined=True,
)
