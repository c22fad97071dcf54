"""Closed formulas of what a member sends in a call, for each algorithm of each kind that has a simple one.

Of the double tree only sums over all members are simple: 2(n-1) halves per tree.
"""

from collections.abc import Callable
from typing import NamedTuple

from switchagg.description import Kind
from transport.collectives.collective import Task
from transport.collectives.direct import roots
from transport.collectives.halving import blocks, reversed_bits
from transport.collectives.rings import hierarchical_group, torus_sides


class SentVolume(NamedTuple):
    """By one member in one call; messages not cut into segments."""

    messages: int
    elements: int


def part_size(elements: int, parts: int, index: int) -> int:
    """Elements of part `index`, modulo `parts`, where sizes differ by one at most."""
    index %= parts
    return (index + 1) * elements // parts - index * elements // parts


def _sent_along(elements: int, workers: int, place: int) -> SentVolume:
    """Every piece but one's own, then every piece but the right neighbour's."""
    if workers == 1:
        return SentVolume(0, 0)
    unsent = part_size(elements, workers, place) + part_size(elements, workers, place + 1)
    return SentVolume(2 * (workers - 1), 2 * elements - unsent)


def _sent_in_groups(task: Task, group: int) -> SentVolume:
    number, place = divmod(task.member, group)
    first = _sent_along(task.elements, group, place)
    second = _sent_along(part_size(task.elements, group, place), task.workers // group, number)
    return SentVolume(first.messages + second.messages, first.elements + second.elements)


def _sent_by_ring_broadcast(task: Task) -> SentVolume:
    messages = int((task.member - task.root) % task.workers < task.workers - 1)
    return SentVolume(messages, messages * task.elements)


def _sent_but_one(task: Task, part: int) -> SentVolume:
    """Every piece of a ring but one."""
    return SentVolume(task.workers - 1, task.elements - part_size(task.elements, task.workers, part))


def _doubled(elements: int, size: int, piece: int) -> int:
    """Own piece, then the two that hold it, the four … up to half of the array."""
    total, width = 0, 1
    while width < size:
        low = piece // width * width
        total += (low + width) * elements // size - low * elements // size
        width *= 2
    return total


def _sent_by_halving_doubling(task: Task) -> SentVolume:
    """Two halves inside the block; its piece in parts to the next larger block, and whole to the next smaller one."""
    all_blocks = blocks(task.workers)
    index = max(index for index, (first, _) in enumerate(all_blocks) if first <= task.member)
    first, size = all_blocks[index]
    piece = reversed_bits(task.member - first, size)
    piece_elements = part_size(task.elements, size, piece)
    messages, total = 2 * (size.bit_length() - 1), task.elements - piece_elements + _doubled(task.elements, size, piece)
    if index:
        messages, total = messages + all_blocks[index - 1][1] // size, total + piece_elements
    if index + 1 < len(all_blocks):
        messages, total = messages + 1, total + piece_elements
    return SentVolume(messages, total)


def _sent_by_reduce_scatter(task: Task) -> SentVolume:
    return SentVolume(
        task.workers.bit_length() - 1, task.elements - part_size(task.elements, task.workers, task.member)
    )


def _sent_by_all_gather(task: Task) -> SentVolume:
    return SentVolume(task.workers.bit_length() - 1, _doubled(task.elements, task.workers, task.member))


def _sent_by_recursive_doubling(task: Task) -> SentVolume:
    core = 1 << (task.workers.bit_length() - 1)
    messages = 1 if task.member >= core else core.bit_length() - 1 + int(task.member + core < task.workers)
    return SentVolume(messages, messages * task.elements)


def _children(place: int, workers: int) -> int:
    """In a binomial tree: one at each distance 2^k below the place's lowest set bit, as far as there are ranks."""
    low_bit = place & -place if place else workers
    room = min(low_bit - 1, workers - 1 - place) if place else workers - 1
    return room.bit_length()


def _sent_by_tree_broadcast(task: Task) -> SentVolume:
    messages = _children((task.member - task.root) % task.workers, task.workers)
    return SentVolume(messages, messages * task.elements)


def _sent_by_reduce(task: Task) -> SentVolume:
    messages = int(task.member != task.root)
    return SentVolume(messages, messages * task.elements)


def _sent_by_tree(task: Task) -> SentVolume:
    messages = _children(task.member, task.workers) + int(task.member > 0)
    return SentVolume(messages, messages * task.elements)


def _sent_directly(task: Task) -> SentVolume:
    ranks = roots(task.workers, task.option)
    sums = task.member in ranks
    share = part_size(task.elements, len(ranks), ranks.index(task.member)) if sums else 0
    answers = task.workers - 1 if sums else 0
    return SentVolume(len(ranks) - int(sums) + answers, task.elements - share + answers * share)


SENT_VOLUMES: dict[tuple[Kind, str], Callable[[Task], SentVolume]] = {
    ("allreduce", "ring"): lambda task: _sent_along(task.elements, task.workers, task.member),
    ("reduce_scatter", "ring"): lambda task: _sent_but_one(task, task.member),
    ("all_gather", "ring"): lambda task: _sent_but_one(task, task.member + 1),
    ("broadcast", "ring"): _sent_by_ring_broadcast,
    ("allreduce", "naive_ring"): lambda task: SentVolume(task.workers - 1, (task.workers - 1) * task.elements),
    ("allreduce", "torus"): lambda task: _sent_in_groups(task, torus_sides(task.workers)[0]),
    ("allreduce", "hierarchical"): lambda task: _sent_in_groups(task, hierarchical_group(task.workers, task.option)),
    ("allreduce", "halving_doubling"): _sent_by_halving_doubling,
    ("reduce_scatter", "halving_doubling"): _sent_by_reduce_scatter,
    ("all_gather", "halving_doubling"): _sent_by_all_gather,
    ("allreduce", "recursive_doubling"): _sent_by_recursive_doubling,
    ("barrier", "dissemination"): lambda task: SentVolume((task.workers - 1).bit_length(), 0),
    ("allreduce", "tree"): _sent_by_tree,
    ("broadcast", "tree"): _sent_by_tree_broadcast,
    ("reduce", "tree"): _sent_by_reduce,
    ("allreduce", "direct"): _sent_directly,
}
