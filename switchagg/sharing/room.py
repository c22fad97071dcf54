"""Which slots are free, and how many of them a job gets (C5, C17, C23)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from switchagg.membership import JoinRequest
from switchagg.sharing.seats import GatheringJob, RunningJob
from switchagg.sharing.slot_shares import SlotDemand, max_min
from switchagg.sharing.switches import Share

MORE_BUFFER = "give it more there, as root: sysctl -w net.core.rmem_max=16777216"


SPARED = 20
"""A job that leaves room for others has at most one in so many of the free slots, where half of all aren't (C25)."""

Range = tuple[int, int]
"""First slot, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class KeptRange:
    """Slots that are kept for a job that will begin there, or come back (C24). priority: its class."""

    place: Range
    switches: frozenset[str]
    priority: int
    until_ns: int

    def __str__(self) -> str:
        return f"slots {self.place[0]} to {self.place[1] - 1} are kept for it; the jobs that have them shall move"

    def fits(self, wish: JoinRequest, switches: frozenset[str]) -> bool:
        """Whether it is what a job can have that asks for this, there."""
        count = self.place[1] - self.place[0]
        least = wish.narrowed(wish.slots_least).slots if wish.slots_least else wish.slots
        return self.switches == switches and least <= count <= wish.slots


def first_fit(count: int, slots: int, taken: Iterable[Range]) -> int | None:
    """First slot of the lowest free range of `count` of `slots`, or None."""
    first = 0
    for start, end in sorted(taken):
        if start - first >= count:
            return first
        first = max(first, end)
    return first if slots - first >= count else None


def gaps(slots: int, taken: Collection[Range]) -> list[int]:
    """How many slots in a row are free, before each range taken and behind the last."""
    edges = [(0, 0), *sorted((min(start, slots), min(end, slots)) for start, end in taken), (slots, slots)]
    reached = accumulate((end for _, end in edges), max)
    return [max(0, start - before) for (start, _), before in zip(edges[1:], reached, strict=False)]


def overlap(one: Range, other: Range) -> bool:
    """Whether two ranges have a slot in common."""
    return one[0] < other[1] and other[0] < one[1]


def range_for(wish: JoinRequest, share: int, slots: int, taken: Collection[Range]) -> Range | None:
    """What a job gets: all that it asks for, or, if it takes fewer, its share, or what is free in a row of that, and
    not less than its least; in whole slots of its windows. None: no room for it."""
    count = wish.slots
    if wish.slots_least:
        count = min(max(share, wish.slots_least), max(gaps(slots, taken)), wish.slots)
        if count < wish.slots_least or wish.narrowed(count).slots > count:
            return None
        while (whole := wish.narrowed(count).slots) < count:
            count = whole
    first = first_fit(count, slots, taken)
    return None if first is None else (first, first + count)


def shares_of(slots: int, wishes: Sequence[JoinRequest], most: int | None = None) -> dict[str, int]:
    """By job, how many of so many slots are its by weighted max-min; a job needs its least, or all that it asks for.
    Earlier wishes go first where not all of a class can have that. most: of any job."""
    demands = []
    for wish in wishes:
        slots_most = wish.slots if most is None else min(wish.slots, most)
        least = min(wish.slots_least or wish.slots, slots_most)
        demands.append(SlotDemand(slots_most, wish.weight, wish.job_priority, least))
    return dict(zip((wish.job for wish in wishes), max_min(max(slots, 0), demands), strict=True))


@dataclass(frozen=True, slots=True)
class Beside:
    """What a job finds at its switches. jobs: that have slots at any of them. slots: how many all of them have. kept:
    by job, ranges that none but it gets, unless it is more urgent."""

    jobs: Sequence[RunningJob]
    switches: frozenset[str]
    slots: int
    kept: Mapping[str, KeptRange]

    def range_for(self, wish: JoinRequest, others: Iterable[JoinRequest], most: int | None, room: int) -> Range | None:
        """Its share is that of the slots that can be divided anew, beside those jobs that have them and the others that
        want some. most: of any job; room: of this one (C16)."""
        divided = [job for job in self.jobs if job.is_divisible and job.switches == self.switches]
        stays = [job.admitted.job.slots for job in self.jobs if job not in divided]
        stays += [
            one.place
            for name, one in self.kept.items()
            if name != wish.job and one.switches & self.switches and one.priority <= wish.job_priority
        ]
        taken = [*stays, *(job.admitted.job.slots for job in divided)]
        if not wish.slots_least or max(gaps(self.slots, taken)) < wish.slots_least:  # whatever its share is
            return range_for(wish, 0, self.slots, taken)
        wishes = {one.job: one for one in (*others, *(job.request for job in divided)) if one.job not in self.kept}
        wishes[wish.job] = wish
        share = min(shares_of(sum(gaps(self.slots, stays)), list(wishes.values()), most)[wish.job], room)
        if wish.sparing:
            free = sum(gaps(self.slots, taken))
            share = min(share, max(free - self.slots // 2, free // SPARED))
        return range_for(wish, share, self.slots, taken)


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
