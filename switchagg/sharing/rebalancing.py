"""Which jobs move so that slots are divided by weight again, and to where. Rule C24 of PROTOCOL.md. Pure.

A job's range is in a row and stays as long as it runs, so a division is carried out by jobs that can go on without the
switch: they leave and come back with another range. It must be worth that, and it must come to an end: each division
serves the jobs together better than the one before, by a measure that weighted max-min makes largest.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from switchagg.join import Join
from switchagg.sharing.slot_allocator import Range, gaps, range_for, shares_of

GAIN = 4
"""A job moves to gain a quarter of its slots, or more, and at least one for each stream."""

MARGIN = 1e-9
"""Relative, beyond the rounding of what is compared."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """movers: running jobs that shall leave, by name. ranges: of those that find room then, and of those that wait."""

    movers: tuple[str, ...]
    ranges: Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class SlotDistribution:
    """The slots of a switch, or of several at once. fixed: ranges of jobs that can't move. running: those that can,
    with their ranges. waiting: those that would begin, with the number of slots that they could have now. most: of any
    job."""

    slots: int
    fixed: Collection[Range]
    running: Mapping[str, tuple[Join, Range]]
    waiting: Mapping[str, tuple[Join, int]]
    most: int | None = None


def best_rebalance(distribution: SlotDistribution) -> Rebalance | None:
    """The best that moving jobs would bring; None: nothing that is worth it.

    Tried are to move, until all have what they should: those that gain; also those that have much more than they
    should; all that have more; all. No job loses its place for one as urgent.
    """
    held = {job: end - first for job, (_, (first, end)) in sorted(distribution.running.items())}
    requests = {
        job: request for job, (request, _) in (*sorted(distribution.running.items()), *distribution.waiting.items())
    }
    now = held | {job: count for job, (_, count) in distribution.waiting.items()}
    shares = shares_of(sum(gaps(distribution.slots, distribution.fixed)), list(requests.values()), distribution.most)
    gain = [job for job in held if is_worth(requests[job], held[job], shares[job])]
    lose = [job for job in held if is_worth(requests[job], shares[job], held[job])]
    more = [job for job in held if held[job] > shares[job]]
    best, measure = None, _served(requests, now)
    for movers in (gain, gain + lose, gain + more, list(held)):
        ranges = _laid_out(distribution, movers)
        after = (
            now
            | dict.fromkeys((*movers, *distribution.waiting), 0)
            | {job: end - at for job, (at, end) in ranges.items()}
        )
        gainers = [requests[job].job_priority for job in requests if is_worth(requests[job], now[job], after[job])]
        out = [requests[job].job_priority for job in movers if job not in ranges]
        reached = _served(requests, after)
        if not gainers or (out and min(out) <= min(gainers)) or not _is_more(reached, measure):
            continue
        moved = tuple(job for job in movers if ranges.get(job) != distribution.running[job][1])
        best, measure = Rebalance(moved, ranges), reached
        if not any(is_worth(requests[job], after[job], shares[job]) for job in requests):
            break
    return best if best is not None and best.movers else None


def is_worth(request: Join, had: int, has: int) -> bool:
    """Whether a job should move to have other slots."""
    return has >= had + max(-(-had // GAIN), request.stream_count)


def _laid_out(distribution: SlotDistribution, movers: Sequence[str]) -> dict[str, Range]:
    """A range for each mover and each that waits, if there is room: the most urgent first, of these who shall have
    most."""
    occupied = [*distribution.fixed, *(place for job, (_, place) in distribution.running.items() if job not in movers)]
    requests = [
        *(distribution.running[job][0] for job in movers),
        *(request for request, _ in distribution.waiting.values()),
    ]
    shares = shares_of(sum(gaps(distribution.slots, occupied)), requests, distribution.most)
    placed: dict[str, Range] = {}
    for request in sorted(requests, key=lambda one: (one.job_priority, -shares[one.job])):
        place = range_for(request, shares[request.job], distribution.slots, [*occupied, *placed.values()])
        if place is not None:
            placed[request.job] = place
    return placed


def _served(requests: Mapping[str, Join], counts: Mapping[str, int]) -> list[float]:
    """How well all are served, to compare: of each class, the most urgent first, how many have slots, and the sum of
    weight · (1 + 1/2 + … + 1/slots). Of so many slots each next one adds most where max-min gives it."""
    measure: list[float] = []
    for priority in sorted({request.job_priority for request in requests.values()}):
        jobs = [job for job, request in requests.items() if request.job_priority == priority]
        measure.append(sum(counts[job] > 0 for job in jobs))
        measure.append(sum(requests[job].weight * _harmonic(counts[job]) for job in jobs))
    return measure


def _is_more(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it comes later in the order of lists, by more than rounding."""
    for ours, theirs in zip(one, other, strict=True):
        if abs(ours - theirs) > MARGIN * max(ours, theirs):
            return ours > theirs
    return False


@lru_cache(4096)
def _harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))
