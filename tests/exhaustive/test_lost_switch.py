"""All small cases of a switch that dies: at every point of every interleaving, and every order of what ranks do then.

What ranks hold: every state that two workers can be in, whatever was delivered, lost or repeated (the search is that of
test_tiny_world.py), however many calls each has made; then the ranks agree and recover, with the code that jobs run,
and every array has the bits of the switch (L1 to L3, L5, L6). What ranks decide: their users make calls, sessions end,
tables and collectives reach each rank when they like, or fail on some; a second switch takes the job, and dies, too.
No call goes two ways, no state is without a way to the end, and nothing is lacking that nobody retains (L2, L4 to L10).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from switch_parts import together

from exhaustive.test_tiny_world import Explorer, Tiny
from switchagg.calls.array_calls import array_call
from switchagg.calls.chunked_call import ArrayCall
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.failover.agreement import CallPath, MemberRow, Mover, NextMove, Stage
from switchagg.failover.part_rows import PartRows, RetainedParts
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig, StreamConfig

# ---- what ranks hold


def calls_of(tiny: Tiny, rows: tuple[int, ...], rank: int) -> list[ArrayCall]:
    """Calls of so many rows each, with what `Tiny` gives."""
    values = np.array([(chunk + 1) * 16**rank for chunk in range(tiny.total)], np.int32)
    return [array_call(array.copy(), "sum", tiny.job) for array in np.split(values, np.cumsum(rows)[:-1])]


class Worker:
    """A worker as the switch's death leaves it; the arrays of finished calls are their user's."""

    def __init__(self, tiny: Tiny, rows: tuple[int, ...], rank: int, waits: tuple[int, ...], made: int) -> None:
        self.mover, self.retained = Mover(place=1), RetainedParts(tiny.window, rank, tiny.job)
        self.parts: dict[int, PartRows] = {}
        self.results: dict[int, list[int]] = {}
        self.calls, self.made = calls_of(tiny, rows, rank), made
        base = 0
        for number, (call, count) in enumerate(zip(self.calls, rows, strict=True)):
            chunks = range(base, base + count)
            held = np.array([waits[chunk % tiny.window] > chunk for chunk in chunks])
            call.array[held] = [tiny.sums(chunk) for chunk in chunks if waits[chunk % tiny.window] > chunk]
            self.parts[number] = PartRows(call, rank, tiny.job, held)
            if held.all():
                self.finish(number)
                self.retained.keep(number, call)
                call.array[:] = -1
            base += count
        self.mover.session_lost(1)

    def finish(self, number: int) -> None:
        self.results.setdefault(number, self.calls[number].array.tolist())

    def what_is_left(self, number: int) -> PartRows:
        if number not in self.results:
            return self.parts[number]
        part = self.retained.of(number)
        assert part is not None, f"{number} isn't retained"
        return part


def least_made(tiny: Tiny, rows: tuple[int, ...], waits: tuple[int, ...]) -> int:
    """How many calls a worker has made at least that waits for these chunks: chunks in flight belong to some."""
    ends = np.cumsum(rows)
    sent = [chunk for chunk in range(tiny.total) if waits[chunk % tiny.window] >= chunk]
    return int(np.searchsorted(ends, max(sent), side="right")) + 1 if sent else 0


@cache
def reached_states(window: int, chunks: int, budget: int) -> frozenset[tuple[int, ...]]:
    """`waits` of all states: which results workers have."""
    explorer = Explorer(DATAPLANES["reference"], Tiny(((0, 1),), window, chunks))
    explorer.explore(budget)
    return frozenset(state.waits for state in explorer.followers)


@pytest.mark.parametrize(
    ("window", "chunks", "rows", "budget"),
    [(1, 3, (1, 1, 1), 2), (1, 3, (2, 1), 2), (2, 2, (1, 2, 1), 1), (2, 2, (1, 1, 1, 1), 1)],
)
def test_whatever_workers_hold_they_end_with_the_sums(
    window: int, chunks: int, rows: tuple[int, ...], budget: int
) -> None:
    tiny, reached = Tiny(((0, 1),), window, chunks), reached_states(window, chunks, budget)
    wanted = np.split(np.array([tiny.sums(chunk) for chunk in range(tiny.total)]), np.cumsum(rows)[:-1])
    for waits in reached:
        of_rank = waits[:window], waits[window:]
        least = [least_made(tiny, rows, each) for each in of_rank]
        for made in product(*(range(low, len(rows) + 1) for low in least)):
            workers = [Worker(tiny, rows, rank, of_rank[rank], made[rank]) for rank in range(2)]
            recover(workers, tiny)
            for worker in workers:
                assert [worker.results[number] for number in range(len(rows))] == [each.tolist() for each in wanted]
    assert len(reached) > 2 * tiny.total


def recover(workers: list[Worker], tiny: Tiny) -> None:
    table = [worker.mover.row((worker.made,), (min(worker.made, worker.retained.lowest),)) for worker in workers]
    agreements = [worker.mover.apply(table) for worker in workers]
    assert agreements[0] == agreements[1]
    assert agreements[0].move is NextMove.RECOVER
    (first,), (lowest,) = agreements[0].first, agreements[0].lowest
    for number in range(lowest, len(workers[0].calls)):
        if number < first:
            together([recovery_rounds(worker.what_is_left(number)) for worker in workers])
        else:
            rounds = [host_rounds(worker.calls[number], rank, tiny.job) for rank, worker in enumerate(workers)]
            together(rounds)
        for worker in workers:
            worker.finish(number)


# ---- what ranks decide


ONE_SLOT = JobConfig(1, 7, 2, 1, (StreamConfig(0, 1),))


@cache
def retained_of(first: int, finished: frozenset[int]) -> frozenset[int]:
    """Which of the finished parts of a switch a rank retains: parts of one row, one slot."""
    retained = RetainedParts(1, 0, ONE_SLOT, first)
    for number in sorted(finished):
        retained.keep(number, array_call(np.zeros(1, np.int32), "sum", ONE_SLOT))
    return frozenset(number for number in finished if retained.of(number) is not None)


MOVERS: list[tuple[tuple[str, object], ...]] = []
NUMBERS: dict[tuple[tuple[str, object], ...], int] = {}


@dataclass(frozen=True)
class Member:
    """A rank. mover: the number of its state in `MOVERS`. paths: of the parts that it has made: a place, or the name of
    a path. finished: parts. begin, end: of the parts of its switch, or the last one. row: that it has shown, and waits
    for the table."""

    mover: int
    paths: tuple[int | str, ...] = ()
    finished: frozenset[int] = frozenset()
    begin: int = 0
    end: int = 0
    row: MemberRow | None = None
    rounds: int = 0
    failed: bool = False

    def awake(self) -> Mover:
        mover = Mover.__new__(Mover)
        vars(mover).update(
            (name, set(value) if isinstance(value, frozenset) else value) for name, value in MOVERS[self.mover]
        )
        return mover


def asleep(mover: Mover) -> int:
    facts = tuple((name, frozenset(value) if isinstance(value, set) else value) for name, value in vars(mover).items())
    if facts not in NUMBERS:
        NUMBERS[facts] = len(MOVERS)
        MOVERS.append(facts)
    return NUMBERS[facts]


@dataclass(frozen=True)
class Moment:
    """sums: of the switch that is alive, or died last, by place. tables: the last, and its number."""

    members: tuple[Member, ...]
    place: int = 1
    alive: bool = True
    sums: frozenset[int] = frozenset()
    table: tuple[int, tuple[MemberRow, ...]] = (-1, ())
    deaths: int = 0
    failures: int = 0


class Decisions:
    """Depth-first over all orders. parts: that each user makes."""

    def __init__(self, workers: int, parts: int, deaths: int, failures: int = 0) -> None:
        self.parts = parts
        start = Moment((Member(asleep(Mover(place=1))),) * workers, deaths=deaths, failures=failures)
        self.followers: dict[Moment, list[Moment]] = {}
        stack = [start]
        while stack:
            moment = stack.pop()
            if moment not in self.followers:
                self.followers[moment] = [self.counted_anew(follower) for follower in self.choices(moment)]
                stack += self.followers[moment]

    @staticmethod
    def counted_anew(moment: Moment) -> Moment:
        """Exchanges are without end, but no rank is more than one behind another; an old table is forgotten."""
        past = min((member.rounds for member in moment.members if not member.failed), default=0)
        members = tuple(
            replace(member, rounds=0, row=None) if member.failed else replace(member, rounds=member.rounds - past)
            for member in moment.members
        )
        number, rows = moment.table
        needed = any(member.rounds == number - past for member in members if not member.failed)
        return replace(moment, members=members, table=(number - past, rows) if needed else (-1, ()))

    def is_end(self, moment: Moment) -> bool:
        return all(member.failed or len(member.finished) == self.parts for member in moment.members)

    def choices(self, moment: Moment) -> Iterator[Moment]:
        if self.is_end(moment):
            return
        if moment.alive:
            more = {
                part
                for part in range(self.parts)
                if all(self.sends(member, part, moment.place) for member in moment.members)
            }
            if not more <= moment.sums:
                yield replace(moment, sums=moment.sums | more)
            if moment.deaths:
                yield replace(moment, alive=False, deaths=moment.deaths - 1)
        for rank, member in enumerate(moment.members):
            if not member.failed:
                yield from self.steps(moment, rank, member)

    def sends(self, member: Member, part: int, place: int) -> bool:
        """Whether a rank gives its values of a part to a switch: it has the results before (W6)."""
        at_switch = part < len(member.paths) and member.paths[part] == place
        mover = member.awake()
        stopped = mover.stage is Stage.LOST or place in mover._failed
        return at_switch and not stopped and set(range(member.begin, part)) <= member.finished

    def steps(self, moment: Moment, rank: int, member: Member) -> Iterator[Moment]:
        mover = member.awake()

        def then(**changes: object) -> Moment:
            changed = replace(member, mover=asleep(mover), **changes)  # type: ignore[arg-type]
            return replace(moment, members=(*moment.members[:rank], changed, *moment.members[rank + 1 :]))

        number = len(member.paths)
        if number < self.parts and not mover.frozen:
            path = mover.path_of(0, number)
            yield then(paths=(*member.paths, mover._place if path is CallPath.SWITCH else path.name))
        for part in moment.sums - member.finished:
            if self.sends(member, part, moment.place):
                yield then(finished=member.finished | {part})
        yield from self.host_steps(moment, rank, member)
        if not moment.alive and moment.place not in mover._failed:
            mover.session_lost(moment.place)
            yield then()
            mover = member.awake()
        if mover.stage is Stage.AWAY and not mover._drained and set(range(member.end)) <= member.finished:
            mover.drained()
            yield then()
            mover = member.awake()
        if mover.stage is Stage.AWAY and not mover._joined and moment.deaths and member.row is None:
            mover.joined(moment.place + 1)
            yield then()
            mover = member.awake()
        yield from self.exchange(moment, rank, member)

    def host_steps(self, moment: Moment, rank: int, member: Member) -> Iterator[Moment]:
        """A part on hosts comes to its end on this rank, or fails there."""
        for part, path in enumerate(member.paths):
            if not isinstance(path, str) or part in member.finished:
                continue
            paths = [other.paths[part] if part < len(other.paths) else None for other in moment.members]
            if all(other == path for other in paths):
                yield self.with_member(moment, rank, replace(member, finished=member.finished | {part}))
            if any(other.failed for other in moment.members):
                yield self.with_member(moment, rank, replace(member, failed=True))

    def exchange(self, moment: Moment, rank: int, member: Member) -> Iterator[Moment]:
        mover = member.awake()
        others_wait = any(other.row is not None or other.rounds > member.rounds for other in moment.members)
        if member.row is None:
            idle = mover.stage is Stage.AT_SWITCH or (mover.stage is Stage.AWAY and not mover._joined)
            if idle and not others_wait:
                return
            made = len(member.paths)
            open_parts = (part for part in range(member.begin, made) if part not in member.finished)
            lowest = next(open_parts, max(member.begin, made))
            row = mover.row((len(member.paths),), (lowest,))
            yield self.with_member(moment, rank, replace(member, row=row))
            return
        number, rows = moment.table
        if number != member.rounds:
            shown = [other.row for other in moment.members if other.row is not None and other.rounds == member.rounds]
            if len(shown) == len(moment.members):
                moment = replace(moment, table=(member.rounds, tuple(shown)))
                rows = moment.table[1]
            elif any(other.failed for other in moment.members):
                yield self.with_member(moment, rank, replace(member, failed=True))
                return
            else:
                return
        if moment.failures:
            failed = self.with_member(moment, rank, replace(member, failed=True))
            yield replace(failed, failures=moment.failures - 1)
        yield self.follow(moment, rank, member, mover, rows)

    def follow(self, moment: Moment, rank: int, member: Member, mover: Mover, rows: tuple[MemberRow, ...]) -> Moment:
        agreement = mover.apply(rows)
        paths, begin, end = list(member.paths), member.begin, member.end
        if agreement.move is NextMove.RECOVER:
            (end,), (lowest,) = agreement.first, agreement.lowest
            retained = retained_of(
                begin, frozenset(p for p in member.finished if p >= begin and isinstance(paths[p], int))
            )
            for part in range(lowest, min(end, len(paths))):
                assert paths[part] == moment.place, f"{part} is not that switch's: {paths}"
                assert part not in member.finished or part in retained, f"{part} isn't retained"
                paths[part] = CallPath.RECOVERY.name
        elif agreement.move is NextMove.TO_SWITCH:
            (begin,) = agreement.first
            if agreement.place > moment.place:
                moment = replace(moment, place=agreement.place, alive=True, sums=frozenset())
        changed = replace(
            member,
            mover=asleep(mover),
            paths=tuple(paths),
            begin=begin,
            end=end,
            row=None,
            rounds=member.rounds + 1,
        )
        return self.with_member(moment, rank, changed)

    @staticmethod
    def with_member(moment: Moment, rank: int, member: Member) -> Moment:
        return replace(moment, members=(*moment.members[:rank], member, *moment.members[rank + 1 :]))

    def stuck(self) -> list[Moment]:
        """States that the end can't be reached from."""
        before: dict[Moment, list[Moment]] = {}
        for moment, followers in self.followers.items():
            for follower in followers:
                before.setdefault(follower, []).append(moment)
        reached = {moment for moment in self.followers if self.is_end(moment)}
        stack = list(reached)
        while stack:
            for moment in before.get(stack.pop(), []):
                if moment not in reached:
                    reached.add(moment)
                    stack.append(moment)
        return [moment for moment in self.followers if moment not in reached]

    def torn(self) -> list[Moment]:
        """States in which ranks that haven't failed carry a part in different ways for good: none of them moves on."""
        return [
            moment
            for moment in self.followers
            if len({member.rounds for member in moment.members}) == 1
            and all(member.row is None and not member.failed for member in moment.members)
            and any(len(set(paths)) > 1 for paths in zip(*(member.paths for member in moment.members), strict=False))
        ]


@pytest.mark.parametrize(("workers", "parts", "deaths", "failures"), [(2, 1, 1, 1)])
def test_whatever_ranks_do_they_decide_alike(workers: int, parts: int, deaths: int, failures: int) -> None:
    decisions = Decisions(workers, parts, deaths, failures)
    assert decisions.torn() == []
    assert decisions.stuck() == []
    assert len(decisions.followers) > 4_000
