"""The plan `direct`: every shard is summed on one rank, to which all others send it, and goes back to all from there.

The traffic is that of a parameter server with servers on the workers (method `ps`, `transport.ps`), as a collective.
"""

from transport.collectives.collective import (
    Algorithm,
    AllreduceLoad,
    Collective,
    Cost,
    Costs,
    LinkPace,
    MethodStyle,
    Option,
    Task,
)
from transport.collectives.collective_plan import CollectivePlan, Draft
from transport.collectives.rings import split


def roots(workers: int, count: int = 0) -> list[int]:
    """The ranks that sum shards, evenly spread; 0: all. ValueError for more than there are workers."""
    if not 0 <= count <= workers:
        raise ValueError(f"direct: {count} roots on {workers} workers; allowed: 0 (all) … {workers}")
    count = count or workers
    return [number * workers // count for number in range(count)]


def direct_allreduce(task: Task) -> CollectivePlan:
    """A root keeps its own share of its shard and gets the others'. option: how many roots."""
    member, workers, elements = task.member, task.workers, task.elements
    draft = Draft(member, workers, elements)
    ranks = roots(workers, task.option)
    shards = split(0, elements, len(ranks))
    start = next((number for number, rank in enumerate(ranks) if rank > member), 0)
    # A member starts with the next rank, so that no rank gets all messages at once.
    order = [(start + step) % len(ranks) for step in range(len(ranks))]
    numbers = [number for number in order if ranks[number] != member]
    for number in numbers:
        draft.send(ranks[number], *shards[number])
    if member in ranks:
        low, high = shards[ranks.index(member)]
        peers = [rank for rank in range(workers) if rank != member]
        for rank in peers:
            draft.receive(rank, low, high, True)
        for step in range(len(peers)):
            draft.send(peers[(step + member) % len(peers)], low, high)
    for number in numbers:
        draft.receive(ranks[number], *shards[number], False)
    return draft.plan()


# ---- costs


def _bytes(load: AllreduceLoad) -> float:
    """Bytes that the port of a root sends: shards to the others, sums to all."""
    count = len(roots(load.workers, load.option))
    return ((count - 1) + (load.workers - 1)) * load.size_bytes / count


def _textbook(load: AllreduceLoad) -> Cost:
    return Cost(2, _bytes(load), (load.workers - 1) * load.size_bytes / (load.option or load.workers))


def _seconds(load: AllreduceLoad, pace: LinkPace) -> float:
    return 2 * pace.alpha + _bytes(load) * pace.beta


DIRECT = Collective(
    "direct",
    {"allreduce": Algorithm(direct_allreduce)},
    Costs(_textbook, _seconds),
    MethodStyle(
        "direct", "each rank sums one shard, sent to it directly by all others, and sends it to all", "#8C6D31"
    ),
    Option("roots"),
)
