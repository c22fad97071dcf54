"""How jobs share a switch's slots: weighted max-min with quotas and classes, in whole slots; pure.

Water-filling: all jobs' slots rise together, each in proportion to its weight, until it has what it asks for, and what
it doesn't need goes to the others. A class of jobs is served before any later one; within a class weights decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import lcm

LEVELS = 1 << 16
"""Steps of slots per weight in which all jobs rise together; single slots come after."""


@dataclass(frozen=True)
class SlotDemand:
    """The slots that a job demands."""

    slots: int
    """Number of slots that the job can use."""
    weight: int = 1
    """Weight of the job, 1 or more."""
    priority: int = 0
    """Class of the job; lower classes are served first."""
    least: int = 1
    """The job gets at least so many slots, or none."""
    quota: int | None = None
    """The job gets at most so many slots; None: no limit."""

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"weight must be at least 1, not {self.weight}")
        if self.slots < 0 or self.least < 1 or (self.quota is not None and self.quota < 0):
            raise ValueError("slots and quota must be 0 or more, least at least 1")

    @property
    def most(self) -> int:
        """The most slots that the job can have."""
        most = self.slots if self.quota is None else min(self.slots, self.quota)
        return most if most >= self.least else 0


def max_min(slots: int, demands: Sequence[SlotDemand]) -> list[int]:
    """Each job's slots, at most `slots` together; equal demands in an order of their own get the same or one less.

    Where not all of a class can have their least, the first of them in order have it, and the others none.
    """
    shares = [0] * len(demands)
    for priority in sorted({demand.priority for demand in demands}):
        candidates = [job for job, demand in enumerate(demands) if demand.priority == priority and demand.most]
        free = slots - sum(shares)
        served = []
        for job in candidates:
            if demands[job].least <= free:
                free -= demands[job].least
                served.append(job)
        _fill(shares, slots - sum(shares), served, demands)
    return shares


def first_come(slots: int, demands: Sequence[SlotDemand]) -> list[int]:
    """The division without shares: the jobs get in order as many slots as they ask for, as long as there are any."""
    shares = []
    for demand in demands:
        share = min(demand.most, slots)
        shares.append(share if share >= demand.least else 0)
        slots -= shares[-1]
    return shares


def _fill(shares: list[int], slots: int, jobs: Sequence[int], demands: Sequence[SlotDemand]) -> None:
    """Weighted max-min of some jobs, each between its least and its most: a next slot goes to whom it gives the least,
    (slots + 1) / weight."""
    unit = lcm(*(demands[job].weight for job in jobs))  # so that the quotients are integers
    low, high = 0, LEVELS * max((demands[job].most for job in jobs), default=0)
    while low < high:  # the highest level that all can reach at once; what is left then is about a slot for each
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(_at(level, demands[job]) for job in jobs) <= slots else (low, level - 1)
    waiting = []
    for job in jobs:
        shares[job] = _at(low, demands[job])
        waiting.append(((shares[job] + 1) * unit // demands[job].weight, job))
    left = slots - sum(shares[job] for job in jobs)
    heapify(waiting)
    while waiting and left:
        reached, job = heappop(waiting)
        if shares[job] < demands[job].most:
            shares[job] += 1
            left -= 1
            heappush(waiting, (reached + unit // demands[job].weight, job))


def _at(level: int, demand: SlotDemand) -> int:
    """The slots of a job when all have level / LEVELS for their weight."""
    return min(max(level * demand.weight // LEVELS, demand.least), demand.most)
