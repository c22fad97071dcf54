"""Plans that pair ranks at distances 1, 2, 4 …: halving–doubling with binary blocks, recursive doubling, dissemination.

Halving–doubling (Thakur, Rabenseifner, Gropp, 2005): in each step a rank swaps half of what it still has with a
partner, n/2, n/4 … of the array; then the way back. The bytes of the ring in 2·log2 n messages. Distances double, as in
Gloo, so that the largest messages go to neighbours.

Binary blocks, as in Gloo, for any n: the ranks are divided into blocks of powers of two, largest first. A block
reduce-scatters; the smallest gives its sums to the next larger one, and so on; the largest has the result, which goes
back the same way, and each block all-gathers. Pieces nest, since a piece of a smaller block is whole ones of a larger.
"""

from switchagg.description import shard_range
from transport.collectives.collective import (
    Algorithm,
    AllreduceLoad,
    Collective,
    Costs,
    LinkPace,
    MethodStyle,
    Task,
    stepwise,
    stepwise_seconds,
)
from transport.collectives.collective_plan import CollectivePlan, Draft

Range = tuple[int, int]


def blocks(workers: int) -> list[Range]:
    """(first rank, size) of each binary block, largest first."""
    result, first = [], 0
    for bit in reversed(range(workers.bit_length())):
        if workers >> bit & 1:
            result.append((first, 1 << bit))
            first += 1 << bit
    return result


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
        local_half, peer_half = ((middle, high), (low, middle)) if place & distance else ((low, middle), (middle, high))
        steps.append((distance, local_half, peer_half))
        low, high = local_half
    return steps


def _elements(pieces: Range, elements: int, size: int) -> Range:
    return pieces[0] * elements // size, pieces[1] * elements // size


def _halve(draft: Draft, first: int, size: int, elements: int, near_first: bool) -> None:
    place = draft.member - first
    for distance, local_half, peer_half in _halves(place, size, near_first):
        partner = first + (place ^ distance)
        draft.send(partner, *_elements(peer_half, elements, size))
        draft.receive(partner, *_elements(local_half, elements, size), True)


def _double(draft: Draft, first: int, size: int, elements: int, near_first: bool) -> None:
    place = draft.member - first
    for distance, local_half, peer_half in reversed(_halves(place, size, near_first)):
        partner = first + (place ^ distance)
        draft.send(partner, *_elements(local_half, elements, size))
        draft.receive(partner, *_elements(peer_half, elements, size), False)


def halving_doubling_allreduce(task: Task) -> CollectivePlan:
    """2·log2 of its block's size messages per rank, 2(n-1)/n of the array, and what passes between blocks."""
    member, workers, elements = task.member, task.workers, task.elements
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


def halving_reduce_scatter(task: Task) -> CollectivePlan:
    """log2 n messages; rank r ends with its shard, so distances halve."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    _halve(draft, 0, workers, elements, False)
    assert _elements((member, member + 1), elements, workers) == shard_range(elements, member, workers)
    return draft.plan()


def doubling_all_gather(task: Task) -> CollectivePlan:
    """log2 n messages; rank r begins with its shard."""
    draft = Draft(task.member, task.workers, task.elements)
    _double(draft, 0, task.workers, task.elements, False)
    return draft.plan()


def recursive_doubling_allreduce(task: Task) -> CollectivePlan:
    """log2 n messages of the whole array; ranks beyond the power of two hand theirs in before, and get it back after.

    Partners add the same two values, so floats agree to the bit.
    """
    member, workers, elements = task.member, task.workers, task.elements
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


def dissemination_barrier(task: Task) -> CollectivePlan:
    """ceil(log2 n) rounds of messages without data: in round k to the rank 2^k further on (Hensgen et al., 1988)."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    distance = 1
    while distance < workers:
        draft.send((member + distance) % workers, 0, 0)
        draft.receive((member - distance) % workers, 0, 0, True)
        distance *= 2
    return draft.plan()


# ---- costs


def _ways_through_blocks(load: AllreduceLoad) -> list[list[float]]:
    """Messages until the largest block has the sum: of its own ranks; of the smallest block's, through all others."""
    sizes = [size for _, size in blocks(load.workers)]
    ways = [[load.size_bytes / (2 << step) for step in range(size.bit_length() - 1)] for size in (sizes[0], sizes[-1])]
    if len(sizes) == 1:
        return ways[:1]
    return [ways[0], ways[1] + [load.size_bytes / size for size in reversed(sizes[1:])]]


def _halving_chain(load: AllreduceLoad) -> list[float]:
    half = max(_ways_through_blocks(load), key=lambda way: (len(way), sum(way)))
    return half + half[::-1]


def _halving_seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    """Twice until the largest block has the sum. Data between blocks travels segment by segment."""
    if is_power_of_two(load.workers):
        return stepwise_seconds(_halving_chain(load), pace)
    inside, outside = _ways_through_blocks(load)
    steps = blocks(load.workers)[-1][1].bit_length() - 1
    between = outside[steps:]
    first = sum(pace.alpha + min(size, pace.segment_bytes) * pace.beta for size in between)
    rest = max(size - min(size, pace.segment_bytes) for size in between) * pace.beta
    before = stepwise_seconds(outside[:steps], pace) if steps else 0.0
    return 2 * max(stepwise_seconds(inside, pace), before + first + rest)


def _recursive_chain(load: AllreduceLoad) -> list[float]:
    core = 1 << (load.workers.bit_length() - 1)
    extra = load.workers - core  # up to half of them cost one step: the other half is ahead by it
    return [load.size_bytes] * (core.bit_length() - 1 + (extra > 0) + (2 * extra > core))


def _recursive_seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    """Where the rank's partner of the beginning joins in, two streams meet at a port for a segment."""
    met = 0.0 if is_power_of_two(load.workers) else min(load.size_bytes, pace.segment_bytes)
    return stepwise_seconds(_recursive_chain(load), pace) + met * pace.beta


HALVING_DOUBLING = Collective(
    "halving_doubling",
    {
        "allreduce": Algorithm(halving_doubling_allreduce),
        "reduce_scatter": Algorithm(halving_reduce_scatter, is_power_of_two, "powers of two"),
        "all_gather": Algorithm(doubling_all_gather, is_power_of_two, "powers of two"),
    },
    Costs(stepwise(_halving_chain).textbook, _halving_seconds),
    MethodStyle(
        "halving–doubling",  # noqa: RUF001
        "halves, quarters, … exchanged with ever other partners, then back; as many bytes as the ring, "
        "in fewer messages",
        "#CC79A7",
        "s",
        article="",
    ),
    in_auto=True,
)
RECURSIVE_DOUBLING = Collective(
    "recursive_doubling",
    {"allreduce": Algorithm(recursive_doubling_allreduce)},
    Costs(
        stepwise(_recursive_chain, lambda load: (load.workers - 1).bit_length() * load.size_bytes).textbook,
        _recursive_seconds,
    ),
    MethodStyle(
        "recursive doubling",
        "the whole array exchanged with ever other partners: few messages, many bytes",
        "#56B4E9",
        "p",
        article="",
    ),
    in_auto=True,
)
DISSEMINATION = Collective(
    "dissemination",
    {"barrier": Algorithm(dissemination_barrier)},
)
