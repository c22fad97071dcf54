"""Which jobs move so that slots are divided by weight again, and to where. Rule C24 of PROTOCOL.md. Pure.

A job's range is in a row and stays as long as it runs, so a division is carried out by jobs that can go on without the
switch: they leave and come back with another range. It must be worth that, and it must come to an end: each division
serves the jobs together better than the one before, by a measure that weighted max-min makes largest.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from switchagg.membership import JoinRequest
from switchagg.sharing.room import Range, gaps, range_for, shares_of

GAIN = 4
"""A job moves to gain a quarter of its slots, or more, and at least one for each stream."""

MARGIN = 1e-9
"""Relative, beyond the rounding of what is compared."""


@dataclass(frozen=True, slots=True)
class Division:
    """movers: running jobs that shall leave, by name. ranges: of those that find room then, and of those that wait."""

    movers: tuple[str, ...]
    ranges: Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Divisible:
    """The slots of a switch, or of several at once. fixed: ranges of jobs that can't move. running: those that can,
    with their ranges. waiting: those that would begin, with the number of slots that they could have now. most: of any
    job."""

    slots: int
    fixed: Collection[Range]
    running: Mapping[str, tuple[JoinRequest, Range]]
    waiting: Mapping[str, tuple[JoinRequest, int]]
    most: int | None = None


def redivision(what: Divisible) -> Division | None:
    """The best that moving jobs would bring; None: nothing that is worth it.

    Tried are to move, until all have what they should: those that gain; also those that have much more than they
    should; all that have more; all. No job loses its place for one as urgent.
    """
    held = {job: end - first for job, (_, (first, end)) in sorted(what.running.items())}
    wishes = {job: wish for job, (wish, _) in (*sorted(what.running.items()), *what.waiting.items())}
    now = held | {job: count for job, (_, count) in what.waiting.items()}
    shares = shares_of(sum(gaps(what.slots, what.fixed)), list(wishes.values()), what.most)
    gain = [job for job in held if is_worth(wishes[job], held[job], shares[job])]
    lose = [job for job in held if is_worth(wishes[job], shares[job], held[job])]
    more = [job for job in held if held[job] > shares[job]]
    best, measure = None, _served(wishes, now)
    for movers in (gain, gain + lose, gain + more, list(held)):
        ranges = _laid_out(what, movers)
        after = now | dict.fromkeys((*movers, *what.waiting), 0) | {job: end - at for job, (at, end) in ranges.items()}
        gainers = [wishes[job].job_priority for job in wishes if is_worth(wishes[job], now[job], after[job])]
        out = [wishes[job].job_priority for job in movers if job not in ranges]
        reached = _served(wishes, after)
        if not gainers or (out and min(out) <= min(gainers)) or not _is_more(reached, measure):
            continue
        moved = tuple(job for job in movers if ranges.get(job) != what.running[job][1])
        best, measure = Division(moved, ranges), reached
        if not any(is_worth(wishes[job], after[job], shares[job]) for job in wishes):
            break
    return best if best is not None and best.movers else None


def is_worth(wish: JoinRequest, had: int, has: int) -> bool:
    """Whether a job should move to have other slots."""
    return has >= had + max(-(-had // GAIN), wish.streams)


def _laid_out(what: Divisible, movers: Sequence[str]) -> dict[str, Range]:
    """A range for each mover and each that waits, if there is room: the most urgent first, of these who shall have
    most."""
    taken = [*what.fixed, *(place for job, (_, place) in what.running.items() if job not in movers)]
    wishes = [*(what.running[job][0] for job in movers), *(wish for wish, _ in what.waiting.values())]
    shares = shares_of(sum(gaps(what.slots, taken)), wishes, what.most)
    placed: dict[str, Range] = {}
    for wish in sorted(wishes, key=lambda one: (one.job_priority, -shares[one.job])):
        place = range_for(wish, shares[wish.job], what.slots, [*taken, *placed.values()])
        if place is not None:
            placed[wish.job] = place
    return placed


def _served(wishes: Mapping[str, JoinRequest], counts: Mapping[str, int]) -> list[float]:
    """How well all are served, to compare: of each class, the most urgent first, how many have slots, and the sum of
    weight · (1 + 1/2 + … + 1/slots). Of so many slots each next one adds most where max-min gives it."""
    measure: list[float] = []
    for priority in sorted({wish.job_priority for wish in wishes.values()}):
        those = [job for job, wish in wishes.items() if wish.job_priority == priority]
        measure.append(sum(counts[job] > 0 for job in those))
        measure.append(sum(wishes[job].weight * _harmonic(counts[job]) for job in those))
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
