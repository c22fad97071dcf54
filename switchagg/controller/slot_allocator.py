"""The slot allocator: it says which slots are free, and how many of them a job gets (C5, C17, C23)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from switchagg.controller.job_members import GatheringJob, RunningJob
from switchagg.controller.slot_shares import SlotDemand, max_min
from switchagg.join import Join
from switchagg.membership import Share

MORE_BUFFER = "give it more there, as root: sysctl -w net.core.rmem_max=16777216"


SPARED = 20
"""A job that leaves room for others has at most one in so many of the free slots, where half of all aren't (C25)."""

Range = tuple[int, int]
"""The first slot, and the slot behind the last."""


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
        """Whether a job with this request, at these switches, can use the range."""
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


def overlap(left: Range, right: Range) -> bool:
    """Whether two ranges have a slot in common."""
    return left[0] < right[1] and right[0] < left[1]


def range_for(request: Join, share: int, slots: int, occupied: Collection[Range]) -> Range | None:
    """The range that a job gets: all slots that it asks for, or, if it takes fewer, its share, or the part of that
    which is free in a row, and not less than its least; in whole slots of its windows. None means that the
    job doesn't fit."""
    count = request.requested_slots
    if request.slots_least:
        count = min(max(share, request.slots_least), max(gaps(slots, occupied)), request.requested_slots)
        if count < request.slots_least or request.narrowed(count).requested_slots > count:
            return None
        while (usable := request.narrowed(count).requested_slots) < count:
            count = usable
    first = first_fit(count, slots, occupied)
    return None if first is None else (first, first + count)


def shares_of(slots: int, requests: Sequence[Join], most: int | None = None) -> dict[str, int]:
    """By job, how many of so many slots are its by weighted max-min; a job needs its least, or all that it asks for.
    Earlier requests go first where not all of a class can have that. most: of any job."""
    demands = []
    for request in requests:
        slots_most = request.requested_slots if most is None else min(request.requested_slots, most)
        least = min(request.slots_least or request.requested_slots, slots_most)
        demands.append(SlotDemand(slots_most, request.weight, request.job_priority, least))
    return dict(zip((request.job for request in requests), max_min(max(slots, 0), demands), strict=True))


@dataclass(frozen=True, slots=True)
class SwitchOccupancy:
    """The slots of some switches, and the jobs that have them."""

    jobs: Sequence[RunningJob]
    """Jobs that have slots at any of the switches."""
    switches: frozenset[str]
    slots: int
    """Number of slots that all of the switches have."""
    reserved: Mapping[str, ReservedRange]
    """By job: a range that only this job gets, or a more urgent one."""

    def range_for(self, request: Join, waiting: Iterable[Join], most: int | None, room: int) -> Range | None:
        """The job's range, or None. The job shares the slots that can be shared anew with the jobs that have them and
        those that wait. most: slots of any job; room: slots of this job (C16)."""
        divided = [job for job in self.jobs if job.can_rebalance and job.switches == self.switches]
        stays = [job.admitted.job.slots for job in self.jobs if job not in divided]
        stays += [
            reserved.slots
            for name, reserved in self.reserved.items()
            if name != request.job and reserved.switches & self.switches and reserved.priority <= request.job_priority
        ]
        occupied = [*stays, *(job.admitted.job.slots for job in divided)]
        if not request.slots_least or max(gaps(self.slots, occupied)) < request.slots_least:  # whatever its share is
            return range_for(request, 0, self.slots, occupied)
        requests = {
            rival.job: rival
            for rival in (*waiting, *(job.request for job in divided))
            if rival.job not in self.reserved
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

    packets_held: how many packets the buffer of the controller's own switch holds, for all its children; 0: enough.
    most: slots of any job (C16).
    """
    requests = [record.request for record in gathering.members.values()]
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
