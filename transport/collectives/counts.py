"""What each rank sends in a collective, in closed form: messages (not cut into segments) and elements.

Nothing here reads a plan: the tests hold plans to these formulas.
"""

from typing import NamedTuple

from transport.collectives.algorithms import Kind
from transport.collectives.halving import blocks, reversed_bits
from transport.collectives.rings import hierarchical_group, torus_sides
from transport.collectives.servers import colocated_servers


class Sent(NamedTuple):
    """By one member in one call."""

    messages: int
    elements: int


def sent(
    kind: Kind, algorithm: str, member: int, workers: int, elements: int, root: int = 0, option: int = 0
) -> Sent | None:
    """What a member sends; None for double_tree, where only sums are simple: 2(n-1) halves per tree, of all ranks."""
    if kind == "barrier":
        return Sent((workers - 1).bit_length(), 0)
    if kind == "broadcast":
        place = (member - root) % workers
        messages = int(place < workers - 1) if algorithm == "ring" else _children(place, workers)
        return Sent(messages, messages * elements)
    if kind == "reduce_scatter":
        return Sent(_messages_half(algorithm, workers), elements - _part(elements, workers, member))
    if kind == "all_gather":
        if algorithm == "ring":
            return Sent(workers - 1, elements - _part(elements, workers, member + 1))
        return Sent(_messages_half(algorithm, workers), _doubling(elements, workers, member))
    return _allreduce(algorithm, member, workers, elements, option)


def _allreduce(algorithm: str, member: int, workers: int, elements: int, option: int) -> Sent | None:
    if algorithm == "ring":
        return _ring(elements, workers, member)
    if algorithm == "naive_ring":
        return Sent(workers - 1, (workers - 1) * elements)
    if algorithm == "halving_doubling":
        return _halving_doubling(elements, workers, member)
    if algorithm == "recursive_doubling":
        core = 1 << (workers.bit_length() - 1)
        messages = 1 if member >= core else core.bit_length() - 1 + int(member + core < workers)
        return Sent(messages, messages * elements)
    if algorithm == "tree":
        messages = _children(member, workers) + int(member > 0)
        return Sent(messages, messages * elements)
    if algorithm in ("torus", "hierarchical"):
        inside = torus_sides(workers)[0] if algorithm == "torus" else hierarchical_group(workers, option)
        number, place = divmod(member, inside)
        own = _part(elements, inside, place)
        first, second = _ring(elements, inside, place), _ring(own, workers // inside, number)
        return Sent(first.messages + second.messages, first.elements + second.elements)
    if algorithm == "ps":
        servers = option or 1
        if member < workers:
            return Sent(servers, elements)
        return Sent(workers, workers * _part(elements, servers, member - workers))
    if algorithm == "ps_colocated":
        ranks = colocated_servers(workers, option)
        own = _part(elements, len(ranks), ranks.index(member)) if member in ranks else 0
        answers = workers - 1 if member in ranks else 0
        return Sent(len(ranks) - int(member in ranks) + answers, elements - own + answers * own)
    return None


def _part(elements: int, parts: int, part: int) -> int:
    part %= parts
    return (part + 1) * elements // parts - part * elements // parts


def _ring(elements: int, workers: int, place: int) -> Sent:
    """Every piece but one's own, then every piece but the right neighbour's."""
    if workers == 1:
        return Sent(0, 0)
    kept = _part(elements, workers, place) + _part(elements, workers, place + 1)
    return Sent(2 * (workers - 1), 2 * elements - kept)


def _messages_half(algorithm: str, workers: int) -> int:
    return workers - 1 if algorithm == "ring" else workers.bit_length() - 1


def _doubling(elements: int, size: int, piece: int) -> int:
    """Own piece, then the two that hold it, the four … up to half of the array."""
    total, width = 0, 1
    while width < size:
        low = piece // width * width
        total += (low + width) * elements // size - low * elements // size
        width *= 2
    return total


def _halving_doubling(elements: int, workers: int, member: int) -> Sent:
    """Two halves inside the block; its piece in parts to the next larger block, and whole to the next smaller one."""
    all_blocks = blocks(workers)
    index = max(index for index, (first, _) in enumerate(all_blocks) if first <= member)
    first, size = all_blocks[index]
    piece = reversed_bits(member - first, size)
    own = _part(elements, size, piece)
    messages, total = 2 * (size.bit_length() - 1), elements - own + _doubling(elements, size, piece)
    if index:
        messages, total = messages + all_blocks[index - 1][1] // size, total + own
    if index + 1 < len(all_blocks):
        messages, total = messages + 1, total + own
    return Sent(messages, total)


def _children(place: int, workers: int) -> int:
    """In a binomial tree: one at each distance 2^k below the place's lowest set bit, as far as there are ranks."""
    low_bit = place & -place if place else workers
    room = min(low_bit - 1, workers - 1 - place) if place else workers - 1
    return room.bit_length()
