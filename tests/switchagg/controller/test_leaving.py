"""Jobs that leave a full switch for a more urgent one (C21), or one that is to stop (C27)."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from switchagg.controller.quota import PeerQuota
from switchagg.controller.tree_controller import TreeController
from switchagg.join import Join
from switchagg.membership import Event, JobAdmitted, JobEvicted, JobFailed, JoinRefused, Running, Waiting

SECOND = 1_000_000_000
LEASE = 4 * SECOND


class World:
    """A switch of 256 slots, and jobs of one worker each."""

    def __init__(self) -> None:
        draw = partial(next, itertools.count(7))
        self.controller = TreeController(256, 360, draw, LEASE, SECOND, PeerQuota(slots=1 << 16))
        self.now_ns = 0
        self.numbers: dict[str, int] = {}
        self._next = itertools.count(1)

    def join(
        self,
        job: str,
        slots: int,
        priority: int = 7,
        can_fall_back: bool = True,
        wait_for_slots: bool = False,
        **more: int,
    ) -> list[Event]:
        number = self.numbers[job] = next(self._next)
        address = ("10.0.0.1", 4000 + number)
        common = Join(
            job=job,
            rank=0,
            workers=1,
            elements=360,
            streams=1,
            window_slots=slots,
            address=address,
            incarnation=number,
            timeout_ns=(1000 if wait_for_slots else 30) * SECOND,
        )
        request = replace(
            common, job_priority=priority, can_fall_back=can_fall_back, wait_for_slots=wait_for_slots, **more
        )
        self.controller.join(request, self.now_ns)
        return self.events()

    def events(self) -> list[Event]:
        events = []
        while (event := self.controller.next_event()) is not None:
            events.append(event)
        return events

    def leave(self, job: str) -> list[Event]:
        self.controller.leave(self.numbers.pop(job), [0], "")
        return self.events()

    def wait(self, seconds: float) -> list[Event]:
        """Time in which all members beat."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self.now_ns < end_ns:
            self.now_ns += SECOND // 2
            for number in self.numbers.values():
                self.controller.heartbeat(number, self.now_ns)
            self.controller.handle_timer(self.now_ns)
        return self.events()

    def asked(self) -> set[str]:
        found = {job: self.controller.membership_state(number) for job, number in self.numbers.items()}
        return {job for job, one in found.items() if isinstance(one, Running) and one.asked_to_leave}


def test_the_least_urgent_leave_and_no_more_than_are_needed() -> None:
    world = World()
    for job, priority in (("a", 3), ("b", 5), ("c", 5), ("d", 1)):
        world.join(job, 64, priority)
    assert world.join("urgent", 64, 2) == []
    assert world.asked() == {"c"}  # of the least urgent the youngest
    assert isinstance(world.controller.membership_state(world.numbers["urgent"]), Waiting)
    left, admitted = world.leave("c")
    assert isinstance(left, JobEvicted)
    assert isinstance(admitted, JobAdmitted)
    assert admitted.name == "urgent"
    assert world.asked() == set()


def test_slots_in_a_row_decide_who_leaves() -> None:
    world = World()
    for job, priority in (("a", 5), ("b", 3), ("c", 4), ("d", 6)):
        world.join(job, 64, priority)
    world.join("urgent", 128, 0)
    assert world.asked() == {"d", "c"}  # "a" is less urgent than "c", but not beside "d"


@pytest.mark.parametrize(("priority", "can_fall_back"), [(0, True), (7, False)], ids=["as urgent", "cannot"])
def test_nobody_leaves_who_is_as_urgent_or_cannot(priority: int, can_fall_back: bool) -> None:
    world = World()
    world.join("a", 192, priority, can_fall_back)
    world.join("b", 64, 7)
    world.join("urgent", 128, 0)
    assert world.asked() == set()  # that "b" leaves wouldn't help
    (refused,) = world.wait(8.0)
    assert isinstance(refused, JoinRefused)
    assert refused.lacks_room


def test_room_that_is_made_is_for_the_urgent_one_alone() -> None:
    world = World()
    world.join("a", 128)
    world.join("b", 128)
    world.join("urgent", 256, 0)
    assert world.asked() == {"a", "b"}
    world.leave("a")
    assert world.join("a", 128, wait_for_slots=True) == []
    assert [type(event) for event in world.leave("b")] == [JobEvicted, JobAdmitted]
    assert world.wait(100.0) == []  # it waits wait_for_slotsly
    _, admitted = world.leave("urgent")
    assert isinstance(admitted, JobAdmitted)
    assert admitted.name == "a"


def test_who_does_not_leave_is_ended() -> None:
    world = World()
    world.join("a", 256)
    world.join("urgent", 256, 0)
    assert world.wait(7.5) == []
    _, failed, admitted = world.wait(0.5)
    assert isinstance(failed, JobFailed)
    assert failed.reason == "it has not left within 2 leases: more urgent job 'urgent' needs its slots"
    assert isinstance(admitted, JobAdmitted)


def test_jobs_that_begin_together_get_slots_by_weight() -> None:
    world = World()
    world.join("before", 256, can_fall_back=False)
    weights = {"a": 1, "b": 2, "c": 4, "d": 8}
    for job, weight in weights.items():
        assert world.join(job, 256, weight=weight, slots_least=8) == []
    _, *admitted = world.leave("before")
    ranges = [one.job.slots for one in admitted if isinstance(one, JobAdmitted)]
    assert ranges == [(0, 17), (17, 51), (51, 119), (119, 256)]  # 1 : 2 : 4 : 8, in whole slots


def test_who_leaves_counts_when_slots_are_divided() -> None:
    world = World()
    world.join("a", 256, slots_least=64)
    world.join("urgent", 256, 0, slots_least=64, weight=2)
    _, admitted = world.leave("a")
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.slots == (0, 256)  # a class is served before any less urgent one


def test_a_job_takes_what_is_free_where_nobody_can_leave_and_not_less_than_its_least() -> None:
    world = World()
    world.join("a", 200, can_fall_back=False)
    (admitted,) = world.join("b", 256, slots_least=40)
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.slots == (200, 256)
    assert admitted.narrowed.startswith("windows have 56 slots in all, not 256")
    assert world.join("c", 64, slots_least=8) == []


@pytest.mark.parametrize("least", [0, 100], ids=["all windows", "at least 100"])
def test_a_job_needs_room_only_for_windows_that_fit_its_receive_buffer(least: int) -> None:
    world = World()
    world.join("a", 192, can_fall_back=False)
    (admitted,) = world.join("b", 256, packets_held=64, slots_least=least)  # C17: 64 slots are all it can use
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.slots == (192, 256)


def test_a_switch_that_drains_asks_who_can_leave_and_takes_no_more() -> None:
    world = World()
    world.join("a", 64)
    world.join("b", 64, can_fall_back=False)
    world.join("too large", 200, wait_for_slots=True)
    world.controller.drain("it is to stop")
    (refused,) = world.events()
    assert isinstance(refused, JoinRefused)
    assert (refused.name, refused.reason, refused.lacks_room) == ("too large", "it is to stop", True)
    del world.numbers["too large"]
    assert world.asked() == {"a"}
    (refused,) = world.join("c", 64)
    assert isinstance(refused, JoinRefused)
    assert (refused.reason, refused.lacks_room) == ("it is to stop", True)
    (refused,) = world.join("odd", 64, weight=0)
    assert isinstance(refused, JoinRefused)
    assert not refused.lacks_room  # it is wrong anywhere
    del world.numbers["c"], world.numbers["odd"]
    assert world.wait(100.0) == []  # it is the host that ends the wait
    assert [type(event) for event in world.leave("a")] == [JobEvicted]
    assert [running.admitted.name for running in world.controller.jobs()] == ["b"]
    world.controller.stop("stopped")
    assert [type(event) for event in world.events()] == [JobEvicted, JobFailed]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": 0}, "weight 0: 1 to 1000"),
        ({"slots_least": 65}, "slots_least 65: 0 to 64"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, int], words: str) -> None:
    (refused,) = World().join("a", 64, **change)
    assert isinstance(refused, JoinRefused)
    assert refused.reason == words
