"""Slots divided anew while jobs run (C24): random jobs come, move, end and die, held to what the rule promises."""

import itertools
import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from switchagg.controller.quota import PeerQuota
from switchagg.controller.rebalancing import SlotDistribution, best_rebalance
from switchagg.controller.slot_allocator import gaps, range_for, shares_of
from switchagg.controller.slot_shares import SlotDemand, max_min
from switchagg.controller.tree_controller import TreeController
from switchagg.join import TIMEOUT_NS_MAX, Join
from switchagg.membership import Event, JobAdmitted, JobEvicted, JobFailed, JoinRefused, Running, SwitchOffer, Waiting

SECOND = 1_000_000_000
LEASE_S = 4
SLOTS = 256


@dataclass
class Rank:
    """What a process does: it holds a place, or asks for one again until it has it."""

    number: int = 0
    leaves_s: float | None = None
    joins_s: float | None = None


@dataclass
class Job:
    """wish: of rank 0. slow_s: how long its ranks take to leave, at most. ended: none of them comes back."""

    wish: Join
    slow_s: float
    ranks: list[Rank] = field(default_factory=list)
    admitted: JobAdmitted | None = None
    asked: set[int] = field(default_factory=set)
    """Generations in which it was."""
    waits_since_s: float | None = None
    dead: bool = False

    @property
    def divisible(self) -> bool:
        return self.wish.can_fall_back and self.wish.slots_least > 0

    @property
    def held(self) -> int:
        return 0 if self.admitted is None else self.admitted.job.slots[1] - self.admitted.job.slots[0]


class World:
    """A switch and the processes of its jobs, which beat twice a second and move when they are asked to."""

    def __init__(self, seed: int, quota: PeerQuota | None = None, slots: int = SLOTS) -> None:
        self.slots = slots
        quota = quota or PeerQuota(1 << 16, 1 << 16, 1 << 16)
        draw = partial(next, itertools.count(7))
        self.controller = TreeController(slots, 360, draw, LEASE_S * SECOND, SECOND, quota)
        self.jobs: dict[str, Job] = {}
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.ranges: dict[str, tuple[int, int]] = {}
        self.gone: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def begin(self, name: str, slots: int, least: int, workers: int = 1, slow_s: float = 0.5, **more: Any) -> Job:
        """The job's first join, of all ranks. can_fall_back: that it has a fallback."""
        common = Join(
            job=name,
            rank=0,
            workers=workers,
            elements=360,
            streams=1,
            window_slots=slots,
            address=("10.0.0.1", 1),
            incarnation=1,
            timeout_ns=30 * SECOND,
            slots_least=least,
        )
        job = self.jobs[name] = Job(replace(common, **{"can_fall_back": True, **more}), slow_s)
        job.ranks = [Rank() for _ in range(workers)]
        for rank in range(workers):
            self._join(job, rank)
        self.look()
        return job

    def end(self, name: str) -> None:
        job = self.jobs.pop(name)
        for rank in job.ranks:
            self.controller.leave(rank.number, [0], "")
        self.look()

    def step(self) -> None:
        """Half a second."""
        self.now_s += 0.5
        for job in list(self.jobs.values()):
            for number, rank in enumerate(job.ranks):
                if not job.dead:
                    self._live(job, number, rank)
        self.controller.handle_timer(self.now_ns)
        self.look()
        deadline_ns = self.controller.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "what is due was done"

    def wait(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.step()

    @property
    def now_ns(self) -> int:
        return round(self.now_s * SECOND)

    def look(self) -> None:
        """Carries out the events, as a data plane would: no two jobs ever have a slot."""
        while (event := self.controller.next_event()) is not None:
            self._carry_out(event)
        for job in self.jobs.values():
            standing = self.controller.membership_state(job.ranks[0].number)
            if isinstance(standing, Running) and standing.asked_to_leave:
                assert job.wish.can_fall_back, "who can't move is never asked"
                job.asked.add(standing.admitted.job.generation)
            waits = isinstance(standing, Waiting) and not standing.missing
            job.waits_since_s = (self.now_s if job.waits_since_s is None else job.waits_since_s) if waits else None

    def _carry_out(self, event: Event) -> None:
        match event:
            case JobEvicted():
                del self.ranges[event.name]
                if event.name in self.jobs:
                    self.jobs[event.name].admitted = None
            case JobAdmitted():
                first, end = event.job.slots
                assert 0 <= first < end <= self.slots
                assert all(
                    end <= other[0] or other[1] <= first
                    for name, other in self.ranges.items()
                    if self.jobs[name].wish.via == self.jobs[event.name].wish.via
                ), "disjoint"
                self.ranges[event.name] = (first, end)
                job = self.jobs[event.name]
                job.admitted = event
                assert job.wish.slots_least or end - first == job.wish.requested_slots
                assert end - first >= job.wish.slots_least - job.wish.streams
            case JobFailed() | JoinRefused() if event.name in self.jobs:
                job = self.jobs[event.name]
                if job.wish.can_fall_back and isinstance(event, JoinRefused):  # asks again
                    refused = {member.incarnation for member in event.members}
                    for rank in job.ranks:
                        rank.joins_s = self.now_s + 2 if rank.number in refused else rank.joins_s
                else:
                    del self.jobs[event.name]
                    self.gone[event.name] = event.reason

    def _join(self, job: Job, rank: int, **more: int) -> None:
        number = job.ranks[rank].number = next(self._numbers)
        address = ("10.0.0.1", number)
        self.controller.join(replace(job.wish, rank=rank, address=address, incarnation=number, **more), self.now_ns)

    def _live(self, job: Job, number: int, rank: Rank) -> None:
        self.controller.heartbeat(rank.number, self.now_ns)
        standing = self.controller.membership_state(rank.number)
        if isinstance(standing, Running) and standing.asked_to_leave and rank.leaves_s is None:
            rank.leaves_s = self.now_s + self.random.uniform(0, job.slow_s)
        if rank.leaves_s is not None and self.now_s >= rank.leaves_s:
            rank.leaves_s = None
            self.controller.leave(rank.number, [0], "")
            self.look()
            rank.joins_s = self.now_s
        if rank.joins_s is not None and self.now_s >= rank.joins_s:
            rank.joins_s = None
            self._join(job, number, wait_for_slots=True, timeout_ns=TIMEOUT_NS_MAX)
            self.look()


def any_job(world: World, name: str) -> Job:
    draw = world.random
    slots = draw.choice((32, 64, 100, 200, 256))
    kind = draw.choice(("moves", "moves", "moves", "moves", "all or nothing", "stays", "stays whole"))
    return world.begin(
        name,
        slots,
        draw.choice((4, 16, 32)) if kind in ("moves", "stays") else 0,
        draw.choice((1, 1, 2)),
        draw.choice((0.5, 0.5, 3.0, 40.0)),
        weight=draw.choice((1, 1, 2, 5, 100)),
        job_priority=draw.choice((7, 7, 7, 2)),
        can_fall_back=kind in ("moves", "all or nothing"),
    )


def too_little(world: World) -> list[str]:
    """Jobs that have less than their share by more than the rule allows, while those that can't move lie together."""
    jobs = list(world.jobs.values())
    fixed = sorted(world.ranges[job.wish.job] for job in jobs if job.admitted is not None and not job.divisible)
    free = SLOTS - sum(end - first for first, end in fixed)
    in_a_row = not fixed or (fixed[-1][1] - fixed[0][0] == SLOTS - free and (fixed[0][0] == 0 or fixed[-1][1] == SLOTS))
    those = [job for job in jobs if job.divisible]
    demands = [
        SlotDemand(job.wish.requested_slots, job.wish.weight, job.wish.job_priority, job.wish.slots_least)
        for job in those
    ]
    shares = max_min(free, demands)
    if not in_a_row or 0 in shares or any(job.asked and job.slow_s > LEASE_S for job in those):
        return []
    world.gone["judged"] = "yes"
    return [
        f"{job.wish.job}: {job.held} of {share}"
        for job, share in zip(those, shares, strict=True)
        if share > job.held + max(-(-job.held // 4), 1) + 1
    ]


def test_a_newcomer_gets_its_share_and_its_range_is_kept_from_all_but_more_urgent_jobs() -> None:
    world = World(0)
    world.begin("a", 256, 16)
    world.begin("b", 256, 16, weight=3)
    world.wait(7.5)
    assert world.ranges == {"a": (0, 256)}  # it has not run for two leases
    world.step()
    a = world.jobs["a"]
    assert a.asked
    world.controller.leave(a.ranks[0].number, [0], "")
    world.look()
    assert world.ranges == {"b": (0, 192)}
    world.begin("c", 256, 4)
    assert "c" not in world.ranges
    world.begin("urgent", 16, 0, job_priority=6)
    assert world.ranges == {"b": (0, 192), "urgent": (192, 208)}
    a.ranks[0] = Rank(joins_s=world.now_s)
    world.wait(2 * LEASE_S)
    assert world.jobs["a"].held + world.jobs["c"].held == 48


def test_a_kept_range_is_not_for_a_job_that_now_asks_for_less() -> None:
    world = World(0)
    a = world.begin("a", 256, 16)
    world.wait(2 * LEASE_S)
    world.begin("b", 256, 16)
    world.controller.leave(a.ranks[0].number, [0], "")
    world.look()
    a.wish = replace(a.wish, window_slots=64)
    a.ranks[0] = Rank(joins_s=world.now_s)
    world.wait(1)
    assert a.held == 64


def test_c5_waiting_for_slots_ends_at_once_where_none_can_come_free() -> None:
    world = World(0)
    holds = world.begin("holds", SLOTS, 0, can_fall_back=False)
    world.begin("late", 8, 0, can_fall_back=False)
    world.step()
    assert "slots in a row are needed" in world.gone.pop("late")
    world.begin("has a fallback", 8, 0)
    world.step()
    assert world.jobs["has a fallback"].ranks[0].joins_s is not None, "it was refused, and asks again"
    holds.dead = True
    world.step()
    world.begin("hopes", 8, 0, can_fall_back=False)
    world.wait(LEASE_S - 1)
    assert "hopes" not in world.gone
    world.wait(1)
    assert world.ranges["hopes"] == (0, 8)


def sparing(world: World, name: str, slots: int = 512, least: int = 8, **more: Any) -> int:
    """How many slots such a job got, which waits for none. 0: none."""
    world.begin(name, slots, least, can_fall_back=False, sparing=True, **more)
    world.step()
    return world.jobs[name].held if name in world.jobs else 0


def test_c25_64_groups_of_a_program_find_room_on_one_switch() -> None:
    world = World(0, slots=4096)
    held = [sparing(world, f"group {number}") for number in range(64)]
    assert held[:4] == [512] * 4
    assert min(held) >= 8
    assert held == sorted(held, reverse=True)
    world.end("group 0")
    assert sparing(world, "later") > held[63]


@pytest.mark.parametrize("seed", range(8))
def test_c25_a_sparing_job_leaves_half_free_or_takes_little_and_never_waits(seed: int) -> None:
    world = World(seed, slots=1024)
    draw, refused = world.random, 0
    for number in range(200):
        free = world.controller.free_slots()
        gap = max(gaps(1024, list(world.ranges.values())))
        streams = draw.choice((1, 2, 4))
        wish, least = draw.choice((8, 64, 300)) * streams, draw.choice((1, 2, 8)) * streams  # 1200 are more than it has
        got = sparing(world, f"job {number}", wish // streams, least, streams=streams)
        refused += not got
        assert bool(got) == (gap >= least)
        assert got <= max(least, free - 512, free // 20)
        assert got == 0 or got > min(wish, max(least, free - 512, free // 20), gap) - streams, "whole slots of windows"
        if draw.random() < 0.4 and world.jobs:
            world.end(draw.choice(list(world.jobs)))
    assert refused < 200


def test_slots_that_came_free_are_left_for_a_lease_to_whoever_had_them() -> None:
    world = World(0)
    world.begin("stays", 128, 0, can_fall_back=False)
    a = world.begin("a", 256, 16)
    world.wait(2 * LEASE_S)
    world.end("stays")
    world.wait(1)
    world.begin("stays", 128, 0, can_fall_back=False)
    world.wait(2 * LEASE_S)
    assert not a.asked
    world.end("stays")
    world.wait(LEASE_S - 0.5)
    assert not a.asked
    world.wait(2)
    assert a.held == 256


def test_who_is_always_late_is_asked_less_and_less_often() -> None:
    world = World(0)
    jobs = [world.begin(name, 256, 16, workers=2, slow_s=30.0) for name in "ab"]
    world.wait(80 * LEASE_S)
    assert 1 <= max(len(job.asked) for job in jobs) <= 3


def served(wishes: dict[str, Join], running: dict[str, tuple[Join, tuple[int, int]]]) -> list[float]:
    """What each division makes larger (C24)."""
    measure: list[float] = []
    for priority in (2, 7):
        those = [job for job in running if wishes[job].job_priority == priority]
        sums = sum(wishes[job].weight / n for job in those for n in range(1, size(running[job][1]) + 1))
        measure += [len(those), round(sums, 6)]
    return measure


def size(place: tuple[int, int]) -> int:
    return place[1] - place[0]


def test_divisions_serve_all_better_each_time_until_all_have_their_shares() -> None:
    draw = random.Random(3)
    steps = 0
    for _ in range(300):
        wishes = {
            name: Join(
                job=name,
                rank=0,
                workers=1,
                elements=360,
                streams=draw.choice((1, 1, 2)),
                window_slots=draw.randint(8, 120),
                address=("10.0.0.1", 1),
                incarnation=1,
                timeout_ns=SECOND,
                weight=draw.choice((1, 2, 5, 100)),
                job_priority=draw.choice((7, 7, 2)),
                slots_least=draw.randint(4, 8),
            )
            for name in "abcdef"[: draw.randint(1, 6)]
        }
        fixed = [(first, first + draw.randint(1, 40)) for first in draw.sample(range(0, 200, 45), draw.randint(0, 2))]
        running: dict[str, tuple[Join, tuple[int, int]]] = {}
        for name in draw.sample(sorted(wishes), len(wishes)):  # they came in this order, each to what was free
            taken = [*fixed, *(place for _, place in running.values())]
            if (place := range_for(wishes[name], draw.randint(4, 240), SLOTS, taken)) is not None:
                running[name] = (wishes[name], place)
        waiting = {name: (wish, 0) for name, wish in wishes.items() if name not in running}
        for step in itertools.count():
            what = SlotDistribution(SLOTS, fixed, running, waiting)
            if (division := best_rebalance(what)) is None:
                break
            assert step < 5
            steps += 1
            out = [wishes[name].job_priority for name in division.movers if name not in division.ranges]
            assert all(any(wishes[name].job_priority < one for name in division.ranges) for one in out)
            before = served(wishes, running)
            places = {name: place for name, (_, place) in running.items() if name not in division.movers}
            running = {name: (wishes[name], place) for name, place in (places | dict(division.ranges)).items()}
            waiting = {name: (wish, 0) for name, wish in wishes.items() if name not in running}
            assert served(wishes, running) > before
            ends = sorted([*fixed, *(place for _, place in running.values())])
            assert all(end <= first for (_, end), (first, _) in itertools.pairwise(ends))
        shares = shares_of(SLOTS, list(wishes.values()))
        if not fixed and 0 not in shares.values():
            held = {name: end - first for name, (_, (first, end)) in running.items()}
            short = [
                name for name, share in shares.items() if share > held.get(name, 0) * 1.25 + 2 * wishes[name].streams
            ]
            assert short == []
    assert steps > 100


def test_no_division_gives_a_host_more_than_its_quota() -> None:
    world = World(0, PeerQuota(slots=230))
    world.begin("a", 200, 16)
    world.begin("b", 256, 16)  # on the same host
    world.wait(20 * LEASE_S)
    assert world.ranges == {"a": (0, 200), "b": (200, 230)}
    assert not world.jobs["a"].asked


def test_jobs_at_other_switches_have_slots_of_their_own() -> None:
    world = World(0)
    rack = SwitchOffer("rack", "", ("10.1.0.1", 5556), "tcp://10.1.0.1:5555", 1 << 20, SLOTS, 360)
    assert world.controller.register(rack, 0) == ("", False)
    world.begin("a", 256, 16)
    world.begin("b", 256, 16, via="rack")  # rack is all its tree
    assert len(list(world.controller.jobs())) == 2
    for _ in range(40):
        world.step()
        held = {(job.admitted.job.job_id, job.admitted.job.generation): "" for job in world.controller.jobs()}
        assert world.controller.beat(1 << 20, held, world.now_ns)
    assert not world.jobs["a"].asked
    world.begin("c", 256, 16, via="rack")
    for _ in range(20):
        held = {(job.admitted.job.job_id, job.admitted.job.generation): "" for job in world.controller.jobs()}
        assert world.controller.beat(1 << 20, held, world.now_ns)
        world.step()
    assert [world.jobs[name].held for name in "abc"] == [256, 128, 128]
    assert not world.jobs["a"].asked


@pytest.mark.parametrize("seeds", [range(8)])
def test_jobs_that_come_move_end_and_die(seeds: range) -> None:
    judged = moved = 0
    for seed in seeds:
        world = World(seed)
        draw = world.random
        names = (f"job{number}" for number in itertools.count())
        for _ in range(draw.randint(20, 120)):
            living = [name for name, job in world.jobs.items() if not job.dead]
            match draw.randrange(12):
                case 0 | 1 if len(living) < 7:
                    any_job(world, next(names))
                case 2 if living:
                    world.end(draw.choice(living))
                case 3 if living and draw.random() < 0.3:
                    world.jobs[draw.choice(living)].dead = True
            world.step()
        world.wait(3 * LEASE_S)  # the dead are found out
        world.jobs = {name: job for name, job in world.jobs.items() if not job.dead}
        before = {name: len(job.asked) for name, job in world.jobs.items()}
        world.wait(30 * LEASE_S)
        asked = {name: len(job.asked) - before.get(name, 0) for name, job in world.jobs.items()}
        slow = any(job.slow_s > LEASE_S for job in world.jobs.values())
        assert max(asked.values(), default=0) <= (6 if slow else 3), (seed, asked)
        ranges = dict(world.ranges)
        world.wait(10 * LEASE_S)
        assert slow or world.ranges == ranges, (seed, "it comes to rest")
        for name, job in world.jobs.items():
            waited_s = 0 if job.waits_since_s is None else world.now_s - job.waits_since_s
            assert job.wish.can_fall_back or waited_s <= 5 * LEASE_S, (seed, name, "nothing waits for ever")
        assert too_little(world) == [], seed
        judged += "judged" in world.gone
        moved += sum(len(job.asked) for job in world.jobs.values())
    assert judged > len(seeds) // 4
    assert moved > len(seeds) // 4
