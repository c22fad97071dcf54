"""Which slots are free, and how many of them a job gets (C5, C17, C23)."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from switchagg.membership import GatheringJob, JoinRequest
from switchagg.sharing.slot_shares import SlotDemand, max_min
from switchagg.sharing.switches import Share

MORE_BUFFER = "give it more there, as root: sysctl -w net.core.rmem_max=16777216"


def first_fit(count: int, slots: int, taken: Iterable[tuple[int, int]]) -> int | None:
    """First slot of the lowest free range of `count` of `slots`, or None. taken: (first, behind the last) of each."""
    first = 0
    for start, end in sorted(taken):
        if start - first >= count:
            return first
        first = max(first, end)
    return first if slots - first >= count else None


def range_for(
    request: JoinRequest,
    others: Collection[JoinRequest],
    slots: int,
    taken: Collection[tuple[int, int]],
    most: int | None = None,
) -> tuple[int, int] | None:
    """First slot and number of slots that a job gets: all that it asks for, or, if it takes fewer, its share beside the
    others, or what is free in a row of that. most: of any job. None: no room for it."""
    if not request.slots_least:
        first = first_fit(request.slots, slots, taken)
        return None if first is None else (first, request.slots)
    share = share_of(request, others, slots, most)
    edges = [(0, 0), *sorted(taken), (slots, slots)]
    gaps = [start - max(end for _, end in edges[: at + 1]) for at, (start, _) in enumerate(edges[1:])]
    count = min(max(share, request.slots_least), max(gaps))
    if count < request.slots_least or request.narrowed(count).slots > count:
        return None
    first = first_fit(count, slots, taken)
    assert first is not None
    return first, count


def share_of(request: JoinRequest, others: Collection[JoinRequest], slots: int, most: int | None) -> int:
    """How many slots are a job's by weighted max-min beside the others. most: of any job."""
    demands = [
        SlotDemand(one.slots, one.weight, one.job_priority, min(max(1, one.slots_least), most or slots), most)
        for one in (request, *others)
    ]
    return max_min(slots, demands)[0]


def fitted(
    gathering: GatheringJob, shares: Sequence[Share], packets_held: int, most: int | None = None
) -> tuple[JoinRequest, str]:
    """The request of all members, with windows whose packets fit all receive buffers, and why, or "" (C17).

    packets_held: how many that of the controller's own switch holds, where those of all its children meet; 0: enough.
    most: slots of any job (C16).
    """
    requests = [seat.request for seat in gathering.seats.values()]
    bounds = [] if most is None else [(most, "the switch gives a job no more, its --peer-quota")]
    for share in shares:
        held = packets_held if share.offer is None else share.offer.packets_held
        if held:
            whose = "the switch" if share.offer is None else str(share.offer)
            senders = len(share.children) + (share.parent is not None)
            bounds.append((held // senders, f"{whose}'s receive buffer holds {held} packets; {MORE_BUFFER}"))
    bounds += [
        (
            request.packets_held,
            f"that of rank {request.rank} at {request.address[0]} holds {request.packets_held} packets; {MORE_BUFFER}",
        )
        for request in requests
        if request.packets_held
    ]
    slots, whose = min(bounds, default=(0, ""))
    wish = requests[0]
    if not bounds or wish.slots <= slots:
        return wish, ""
    fitting = wish.narrowed(slots)
    fitting = replace(fitting, slots_least=min(fitting.slots_least, fitting.slots))
    return fitting, f"windows have {fitting.slots} slots in all, not {wish.slots}: {whose}"
