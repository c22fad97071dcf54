"""Which slots are free, and how many of them a job gets (C5, C23)."""

from collections.abc import Collection, Iterable

from switchagg.membership import JoinRequest
from switchagg.sharing.slot_shares import SlotDemand, max_min


def first_fit(count: int, slots: int, taken: Iterable[tuple[int, int]]) -> int | None:
    """First slot of the lowest free range of `count` of `slots`, or None. taken: (first, behind the last) of each."""
    first = 0
    for start, end in sorted(taken):
        if start - first >= count:
            return first
        first = max(first, end)
    return first if slots - first >= count else None


def range_for(
    request: JoinRequest, others: Collection[JoinRequest], slots: int, taken: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """First slot and number of slots that a job gets: all that it asks for, or, if it takes fewer, its share beside the
    others, or what is free in a row of that. None: no room for it."""
    if not request.slots_least:
        first = first_fit(request.slots, slots, taken)
        return None if first is None else (first, request.slots)
    share = share_of(request, others, slots)
    edges = [(0, 0), *sorted(taken), (slots, slots)]
    gaps = [start - max(end for _, end in edges[: at + 1]) for at, (start, _) in enumerate(edges[1:])]
    count = min(max(share, request.slots_least), max(gaps))
    if count < request.slots_least or request.narrowed(count).slots > count:
        return None
    first = first_fit(count, slots, taken)
    assert first is not None
    return first, count


def share_of(request: JoinRequest, others: Collection[JoinRequest], slots: int) -> int:
    """How many slots are a job's by weighted max-min beside the others."""
    demands = [
        SlotDemand(one.slots, one.weight, one.job_priority, max(1, one.slots_least)) for one in (request, *others)
    ]
    return max_min(slots, demands)[0]
