"""The choice of jobs that move so that slots are shared by weight again, and of their ranges (rule C24); pure.

A job's range is in a row and stays as long as it runs, so jobs that can go on without the switch carry a rebalancing
out: they leave and come back with another range. It must be worth that, and it must come to an end: each rebalancing
serves the jobs together better than the one before, by a measure that weighted max-min makes largest.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from switchagg.controller.slot_allocator import Range, gaps, range_for, shares_of
from switchagg.join import Join

GAIN = 4
"""A job moves to gain a quarter of its slots, or more, and at least one for each stream."""

MARGIN = 1e-9
"""Relative difference above which two measures count as different; it exceeds their rounding errors."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Jobs that move, and the ranges that they and waiting jobs get."""

    movers: tuple[str, ...]
    """Names of running jobs that shall leave."""
    ranges: Mapping[str, Range]
    """By name: ranges of movers that fit then, and of waiting jobs."""


@dataclass(frozen=True, slots=True)
class SlotDistribution:
    """The slots of a switch, or of several at once, and the jobs that have or want some."""

    slots: int
    fixed: Collection[Range]
    """Ranges of jobs that can't move."""
    running: Mapping[str, tuple[Join, Range]]
    """Jobs that can move, with their ranges."""
    waiting: Mapping[str, tuple[Join, int]]
    """Jobs that would begin, with the number of slots that they could have now."""
    most: int | None = None
    """The most slots of any job; None: no limit."""


def best_rebalance(distribution: SlotDistribution) -> Rebalance | None:
    """The best rebalancing; None if none is worth it.

    The function tries to move, until all have their shares: jobs that gain; also jobs that have much more than their
    share; those and all that have more; all jobs. No job loses its slots to a job that is as urgent.
    """
    held = {job: end - first for job, (_, (first, end)) in sorted(distribution.running.items())}
    requests = {
        job: request for job, (request, _) in (*sorted(distribution.running.items()), *distribution.waiting.items())
    }
    now = held | {job: count for job, (_, count) in distribution.waiting.items()}
    shares = shares_of(sum(gaps(distribution.slots, distribution.fixed)), list(requests.values()), distribution.most)
    gain = [job for job in held if is_worth(requests[job], held[job], shares[job])]
    lose = [job for job in held if is_worth(requests[job], shares[job], held[job])]
    above_share = [job for job in held if held[job] > shares[job]]
    best, measure = None, _served(requests, now)
    for movers in (gain, gain + lose, gain + above_share, list(held)):
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
    """A range for each mover and each waiting job that fits: the most urgent first, of these the one with the largest
    share."""
    occupied = [*distribution.fixed, *(place for job, (_, place) in distribution.running.items() if job not in movers)]
    requests = [
        *(distribution.running[job][0] for job in movers),
        *(request for request, _ in distribution.waiting.values()),
    ]
    shares = shares_of(sum(gaps(distribution.slots, occupied)), requests, distribution.most)
    placed: dict[str, Range] = {}
    for request in sorted(requests, key=lambda request: (request.job_priority, -shares[request.job])):
        place = range_for(request, shares[request.job], distribution.slots, [*occupied, *placed.values()])
        if place is not None:
            placed[request.job] = place
    return placed


def _served(requests: Mapping[str, Join], counts: Mapping[str, int]) -> list[float]:
    """How well all are served, to compare: of each class, the most urgent first, how many have slots, and the sum of
    weight · (1 + 1/2 + … + 1/slots). A further slot adds most to that sum where max-min gives it."""
    measure: list[float] = []
    for priority in sorted({request.job_priority for request in requests.values()}):
        jobs = [job for job, request in requests.items() if request.job_priority == priority]
        measure.append(sum(counts[job] > 0 for job in jobs))
        measure.append(sum(requests[job].weight * _harmonic(counts[job]) for job in jobs))
    return measure


def _is_more(measure: Sequence[float], other: Sequence[float]) -> bool:
    """Whether a measure comes later than another in the order of lists, by more than rounding."""
    for value, other_value in zip(measure, other, strict=True):
        if abs(value - other_value) > MARGIN * max(value, other_value):
            return value > other_value
    return False


@lru_cache(4096)
def _harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))
