"""Which slots are free, and how many of them a job gets (C5, C17, C23)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from switchagg.join import Join
from switchagg.sharing.job_members import GatheringJob, RunningJob
from switchagg.sharing.slot_shares import SlotDemand, max_min
from switchagg.sharing.switches import Share

MORE_BUFFER = "give it more there, as root: sysctl -w net.core.rmem_max=16777216"


SPARED = 20
"""A job that leaves room for others has at most one in so many of the free slots, where half of all aren't (C25)."""

Range = tuple[int, int]
"""First slot, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class ReservedRange:
    """Slots that are kept for a job that will begin there, or come back (C24). priority: its class."""

    slots: Range
    switches: frozenset[str]
    priority: int
    until_ns: int

    def __str__(self) -> str:
        return f"slots {self.slots[0]} to {self.slots[1] - 1} are kept for it; the jobs that have them shall move"

    def fits(self, request: Join, switches: frozenset[str]) -> bool:
        """Whether it is what a job can have that asks for this, there."""
        count = self.slots[1] - self.slots[0]
        fewest = request.narrowed(request.slots_least) if request.slots_least else request
        return self.switches == switches and fewest.requested_slots <= count <= request.requested_slots


def first_fit(count: int, slots: int, occupied: Iterable[Range]) -> int | None:
    """First slot of the lowest free range of `count` of `slots`, or None."""
    first = 0
    for start, end in sorted(occupied):
        if start - first >= count:
            return first
        first = max(first, end)
    return first if slots - first >= count else None


def gaps(slots: int, occupied: Collection[Range]) -> list[int]:
    """How many slots in a row are free, before each range taken and behind the last."""
    edges = [(0, 0), *sorted((min(start, slots), min(end, slots)) for start, end in occupied), (slots, slots)]
    reached = accumulate((end for _, end in edges), max)
    return [max(0, start - before) for (start, _), before in zip(edges[1:], reached, strict=False)]


def overlap(one: Range, other: Range) -> bool:
    """Whether two ranges have a slot in common."""
    return one[0] < other[1] and other[0] < one[1]


def range_for(request: Join, share: int, slots: int, occupied: Collection[Range]) -> Range | None:
    """What a job gets: all that it asks for, or, if it takes fewer, its share, or what is free in a row of that, and
    not less than its least; in whole slots of its windows. None: no room for it."""
    count = request.requested_slots
    if request.slots_least:
        count = min(max(share, request.slots_least), max(gaps(slots, occupied)), request.requested_slots)
        if count < request.slots_least or request.narrowed(count).requested_slots > count:
            return None
        while (whole := request.narrowed(count).requested_slots) < count:
            count = whole
    first = first_fit(count, slots, occupied)
    return None if first is None else (first, first + count)


def shares_of(slots: int, requests: Sequence[Join], most: int | None = None) -> dict[str, int]:
    """By job, how many of so many slots are its by weighted max-min; a job needs its least, or all that it asks for.
    Earlier wishes go first where not all of a class can have that. most: of any job."""
    demands = []
    for request in requests:
        slots_most = request.requested_slots if most is None else min(request.requested_slots, most)
        least = min(request.slots_least or request.requested_slots, slots_most)
        demands.append(SlotDemand(slots_most, request.weight, request.job_priority, least))
    return dict(zip((request.job for request in requests), max_min(max(slots, 0), demands), strict=True))


@dataclass(frozen=True, slots=True)
class SwitchOccupancy:
    """What a job finds at its switches. jobs: that have slots at any of them. slots: how many all of them have. kept:
    by job, ranges that none but it gets, unless it is more urgent."""

    jobs: Sequence[RunningJob]
    switches: frozenset[str]
    slots: int
    reserved: Mapping[str, ReservedRange]

    def range_for(self, request: Join, others: Iterable[Join], most: int | None, room: int) -> Range | None:
        """Its share is that of the slots that can be divided anew, beside those jobs that have them and the others that
        want some. most: of any job; room: of this one (C16)."""
        divided = [job for job in self.jobs if job.can_rebalance and job.switches == self.switches]
        stays = [job.admitted.job.slots for job in self.jobs if job not in divided]
        stays += [
            one.slots
            for name, one in self.reserved.items()
            if name != request.job and one.switches & self.switches and one.priority <= request.job_priority
        ]
        occupied = [*stays, *(job.admitted.job.slots for job in divided)]
        if not request.slots_least or max(gaps(self.slots, occupied)) < request.slots_least:  # whatever its share is
            return range_for(request, 0, self.slots, occupied)
        requests = {
            one.job: one for one in (*others, *(job.request for job in divided)) if one.job not in self.reserved
        }
        requests[request.job] = request
        share = min(shares_of(sum(gaps(self.slots, stays)), list(requests.values()), most)[request.job], room)
        if request.sparing:
            free = sum(gaps(self.slots, occupied))
            share = min(share, max(free - self.slots // 2, free // SPARED))
        return range_for(request, share, self.slots, occupied)


def fitted(
    gathering: GatheringJob, shares: Sequence[Share], packets_held: int, most: int | None = None
) -> tuple[Join, str]:
    """The request of all members, with windows whose packets fit all receive buffers, and why, or "" (C17).

    packets_held: how many that of the controller's own switch holds, where those of all its children meet; 0: enough.
    most: slots of any job (C16).
    """
    requests = [seat.request for seat in gathering.members.values()]
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
    request = requests[0]
    if not bounds or request.requested_slots <= slots:
        return request, ""
    fitting = request.narrowed(slots)
    fitting = replace(fitting, slots_least=min(fitting.slots_least, fitting.requested_slots))
    return fitting, f"windows have {fitting.requested_slots} slots in all, not {request.requested_slots}: {whose}"
