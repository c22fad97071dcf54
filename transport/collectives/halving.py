"""Plans that pair ranks at distances 1, 2, 4 …: halving–doubling with binary blocks, recursive doubling, dissemination.

Halving–doubling (Thakur, Rabenseifner, Gropp, 2005): in each step a rank swaps half of what it still has with a
partner, n/2, n/4 … of the array; then the way back. The bytes of the ring in 2·log2 n messages. Distances double, as in
Gloo, so that the largest messages go to neighbours.

Binary blocks, as in Gloo, for any n: the ranks are divided into blocks of powers of two, largest first. Each block
reduce-scatters; the smallest gives its sums to the next larger one, and so on; the largest has the result, which goes
back the same way, and each block all-gathers. Pieces nest, since a piece of a smaller block is whole ones of a larger.
"""

from transport.collectives.plan import Draft, Plan, shard

Range = tuple[int, int]


def blocks(workers: int) -> list[Range]:
    """(first rank, size) of each binary block, largest first."""
    found, first = [], 0
    for bit in reversed(range(workers.bit_length())):
        if workers >> bit & 1:
            found.append((first, 1 << bit))
            first += 1 << bit
    return found


def reversed_bits(value: int, size: int) -> int:
    """value, below size = 2^m, with its m bits in reverse order: the piece that a rank of a block ends with."""
    result = 0
    for bit in range(size.bit_length() - 1):
        result |= (value >> bit & 1) << (size.bit_length() - 2 - bit)
    return result


def _halves(place: int, size: int, near_first: bool) -> list[tuple[int, Range, Range]]:
    """Per step: distance to the partner, pieces kept, pieces given away, as ranges of piece numbers."""
    distances = [1 << bit for bit in range(size.bit_length() - 1)]
    if not near_first:
        distances.reverse()
    low, high, steps = 0, size, []
    for distance in distances:
        middle = (low + high) // 2
        kept, given = ((middle, high), (low, middle)) if place & distance else ((low, middle), (middle, high))
        steps.append((distance, kept, given))
        low, high = kept
    return steps


def _elements(pieces: Range, elements: int, size: int) -> Range:
    return pieces[0] * elements // size, pieces[1] * elements // size


def _halve(draft: Draft, first: int, size: int, elements: int, near_first: bool) -> None:
    place = draft.member - first
    for distance, kept, given in _halves(place, size, near_first):
        partner = first + (place ^ distance)
        draft.send(partner, *_elements(given, elements, size))
        draft.receive(partner, *_elements(kept, elements, size), True)


def _double(draft: Draft, first: int, size: int, elements: int, near_first: bool) -> None:
    place = draft.member - first
    for distance, kept, given in reversed(_halves(place, size, near_first)):
        partner = first + (place ^ distance)
        draft.send(partner, *_elements(kept, elements, size))
        draft.receive(partner, *_elements(given, elements, size), False)


def halving_doubling_allreduce(member: int, workers: int, elements: int) -> Plan:
    """2·log2 of its block's size messages per rank, 2(n-1)/n of the array, and what passes between blocks."""
    draft = Draft(member, workers, elements)
    all_blocks = blocks(workers)
    index = max(index for index, (first, _) in enumerate(all_blocks) if first <= member)
    first, size = all_blocks[index]
    _halve(draft, first, size, elements, True)
    piece = reversed_bits(member - first, size)
    smaller = _of_smaller(all_blocks, index, piece)
    larger = _of_larger(all_blocks, index, piece)
    if smaller is not None:
        draft.receive(smaller, *_elements((piece, piece + 1), elements, size), True)
    for rank, part, size_larger in larger:
        draft.send(rank, *_elements((part, part + 1), elements, size_larger))
    for rank, part, size_larger in larger:
        draft.receive(rank, *_elements((part, part + 1), elements, size_larger), False)
    if smaller is not None:
        draft.send(smaller, *_elements((piece, piece + 1), elements, size))
    _double(draft, first, size, elements, True)
    return draft.plan()


def _of_smaller(all_blocks: list[Range], index: int, piece: int) -> int | None:
    """The rank of the next smaller block whose piece holds ours."""
    if index + 1 == len(all_blocks):
        return None
    first, size = all_blocks[index + 1]
    return first + reversed_bits(piece * size // all_blocks[index][1], size)


def _of_larger(all_blocks: list[Range], index: int, piece: int) -> list[tuple[int, int, int]]:
    """(rank, its piece, size of its block) for each rank of the next larger block whose piece lies in ours."""
    if index == 0:
        return []
    first, size = all_blocks[index - 1]
    times = size // all_blocks[index][1]
    return [(first + reversed_bits(part, size), part, size) for part in range(piece * times, (piece + 1) * times)]


def is_power_of_two(workers: int) -> bool:
    return workers & (workers - 1) == 0


def halving_reduce_scatter(member: int, workers: int, elements: int) -> Plan:
    """log2 n messages; rank r ends with its shard, so distances halve. ValueError unless n is a power of two."""
    _check_power_of_two(workers, "reduce_scatter")
    draft = Draft(member, workers, elements)
    _halve(draft, 0, workers, elements, False)
    assert _elements((member, member + 1), elements, workers) == shard(elements, member, workers)
    return draft.plan()


def doubling_all_gather(member: int, workers: int, elements: int) -> Plan:
    """log2 n messages; rank r begins with its shard. ValueError unless n is a power of two."""
    _check_power_of_two(workers, "all_gather")
    draft = Draft(member, workers, elements)
    _double(draft, 0, workers, elements, False)
    return draft.plan()


def _check_power_of_two(workers: int, kind: str) -> None:
    if not is_power_of_two(workers):
        raise ValueError(f"halving_doubling {kind}: {workers} workers; it is defined for powers of two")


def recursive_doubling_allreduce(member: int, workers: int, elements: int) -> Plan:
    """log2 n messages of the whole array; ranks beyond the power of two hand theirs in before, and get it back after.

    Partners add the same two values, so floats agree to the bit.
    """
    draft = Draft(member, workers, elements)
    core = 1 << (workers.bit_length() - 1)
    if member >= core:
        draft.send(member - core, 0, elements)
        draft.receive(member - core, 0, elements, False)
        return draft.plan()
    extra = member + core if member + core < workers else None
    if extra is not None:
        draft.receive(extra, 0, elements, True)
    for bit in range(core.bit_length() - 1):
        partner = member ^ 1 << bit
        draft.send(partner, 0, elements)
        draft.receive(partner, 0, elements, True)
    if extra is not None:
        draft.send(extra, 0, elements)
    return draft.plan()


def dissemination_barrier(member: int, workers: int, elements: int) -> Plan:
    """ceil(log2 n) rounds of messages without data: in round k to the rank 2^k further on (Hensgen et al., 1988)."""
    draft = Draft(member, workers, elements)
    distance = 1
    while distance < workers:
        draft.send((member + distance) % workers, 0, 0)
        draft.receive((member - distance) % workers, 0, 0, True)
        distance *= 2
    return draft.plan()
