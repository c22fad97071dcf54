"""Plans on trees: binomial reduce and broadcast, and two complementary binary trees. Long arrays pipeline in segments.

Double binary tree (Sanders, Speck, Träff, 2009; the trees are NCCL's): each tree takes half of the array, up to its
root and down again. Who is inner in one is a leaf in the other, so nobody sends more than twice the array.
"""

from transport.collectives.plan import Draft, Plan


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


def tree_broadcast(member: int, workers: int, elements: int, root: int) -> Plan:
    """ceil(log2 n) messages of the array from the root, fewer from others, n-1 in all; the largest subtree first."""
    draft = Draft(member, workers, elements)
    parent, children = _binomial((member - root) % workers, workers)
    if parent is not None:
        draft.receive((parent + root) % workers, 0, elements, False)
    for child in reversed(children):
        draft.send((child + root) % workers, 0, elements)
    return draft.plan()


def tree_allreduce(member: int, workers: int, elements: int) -> Plan:
    """Reduce to rank 0 and broadcast from it: 2(n-1) messages of the array in all."""
    draft = Draft(member, workers, elements)
    parent, children = _binomial(member, workers)
    for child in children:
        draft.receive(child, 0, elements, True)
    if parent is not None:
        draft.send(parent, 0, elements)
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


def double_tree_allreduce(member: int, workers: int, elements: int) -> Plan:
    """Per tree 2(n-1) messages of half of the array, of all ranks together; at most twice the array from any rank."""
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
