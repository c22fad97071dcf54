"""Controller: rules C1 to C10, and a seeded storm of joins, deaths and restarts held to the invariants."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from switchagg.controller.admission import STANDINGS_KEPT, WAITING_MAX, Controller
from switchagg.controller.quota import PeerQuota
from switchagg.job import JobConfig
from switchagg.join import Join
from switchagg.membership import (
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JoinRefused,
    Member,
    MemberLeft,
    Running,
    Waiting,
)

SECOND = 1_000_000_000
LEASE = 4 * SECOND
BOOT = 7_000


ALL = PeerQuota(WAITING_MAX, 1 << 16, 1 << 16)
"""No quota: most tests have all their workers at one address."""


def new_controller(slots: int = 1024, draw: Callable[[], int] | None = None) -> Controller:
    """draw: gives generations; by default BOOT and those that follow, for the tests to know."""
    draw = draw or partial(next, itertools.count(BOOT))
    return Controller(slots, elements_max=360, draw_generation=draw, lease_ns=LEASE, claim_ns=SECOND, quota=ALL)


def wish(rank: int, job: str = "train", workers: int = 3, incarnation: int | None = None, **changes: object) -> Join:
    request = Join(
        job=job,
        rank=rank,
        workers=workers,
        elements=360,
        streams=2,
        window_slots=64,
        address=("10.0.0.1", 4000 + rank),
        incarnation=1000 + rank if incarnation is None else incarnation,
        timeout_ns=30 * SECOND,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def events_of(controller: Controller) -> list[Event]:
    events = []
    while (event := controller.next_event()) is not None:
        events.append(event)
    return events


def start(controller: Controller, job: str, workers: int, base: int, now_ns: int = 0) -> JobAdmitted:
    """Joins all ranks of a job, incarnations base + rank; returns its admission."""
    for rank in range(workers):
        controller.join(wish(rank, job, workers, base + rank), now_ns)
    (admitted,) = events_of(controller)
    assert isinstance(admitted, JobAdmitted)
    return admitted


def test_a_complete_gathering_is_admitted_with_slots_and_a_generation() -> None:
    controller = new_controller()
    controller.join(wish(2), 0)
    controller.join(wish(0), 1)
    assert events_of(controller) == []
    assert controller.membership_state(1000) == Waiting(
        "train", (Member(0, ("10.0.0.1", 4000), 1000), Member(2, ("10.0.0.1", 4002), 1002)), (1,), ""
    )
    controller.join(wish(1), 2)
    (admitted,) = events_of(controller)
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.generation == BOOT
    assert [stream.first_slot for stream in admitted.job.streams] == [0, 64]
    assert [member.rank for member in admitted.members] == [0, 1, 2]
    assert controller.free_slots() == 1024 - 128
    assert controller.membership_state(1001) == Running(admitted, ())


def test_jobs_get_disjoint_slots_and_the_lowest_free_range_is_used_again() -> None:
    controller = new_controller()
    jobs = [start(controller, f"job{index}", 1, 10 * index).job for index in range(3)]
    assert [job.slots for job in jobs] == [(0, 128), (128, 256), (256, 384)]
    assert [job.generation for job in jobs] == [BOOT, BOOT + 1, BOOT + 2]
    controller.leave(10, [], "")
    assert events_of(controller) == [JobEvicted("job1", jobs[1])]
    again = start(controller, "job3", 1, 40).job
    assert again.slots == (128, 256)
    assert again.job_id not in {job.job_id for job in jobs}  # an id rests before it is used again
    assert again.generation == BOOT + 3


def test_c1_a_contradiction_refuses_the_newcomer_at_once_and_the_others_are_told_at_their_timeout() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=3), 0)
    controller.join(wish(2, workers=3), 0)
    controller.join(wish(1, workers=4), 1)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert [member.incarnation for member in refused.members] == [1001]
    assert refused.reason == "rank 1 says workers is 4, rank 0 says 3; all ranks must agree"
    waiting = controller.membership_state(1000)
    assert isinstance(waiting, Waiting)
    assert (waiting.missing, waiting.reason) == ((1,), refused.reason)
    for now_ns in range(0, 30 * SECOND, SECOND):
        controller.heartbeat(1000, now_ns)
        controller.heartbeat(1002, now_ns)
    controller.handle_timer(30 * SECOND)
    (ended,) = events_of(controller)
    assert isinstance(ended, JoinRefused)
    assert [member.incarnation for member in ended.members] == [1000, 1002]
    assert ended.reason.startswith("rank 1 of 3 did not join job 'train' within 30 s")
    assert ended.reason.endswith(f"refused: {refused.reason}")


def test_c1_a_rank_that_corrects_itself_completes_the_gathering() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=2), 0)
    controller.join(wish(1, workers=2, elements=100), 1)
    controller.join(wish(1, workers=2, incarnation=7), 2)
    assert [type(event) for event in events_of(controller)] == [JoinRefused, JobAdmitted]


def test_c1_a_rank_does_not_contradict_its_own_earlier_join() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=3), 0)
    controller.join(wish(0, workers=2, incarnation=7), 1)
    controller.handle_timer(LEASE)
    controller.join(wish(1, workers=2), LEASE)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted]


def test_c1_a_flood_of_contradictions_leaves_the_gathering_and_its_reason_short() -> None:
    controller = new_controller()
    controller.join(wish(0), 0)
    for flood in range(2000):
        controller.join(wish(1 + flood % 63, workers=64, incarnation=5000 + flood, elements=1 + flood % 300), 1)
    events_of(controller)
    waiting = controller.membership_state(1000)
    assert isinstance(waiting, Waiting)
    assert len(waiting.reason) < 300
    controller.join(wish(1), 2)
    controller.join(wish(2), 2)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 3}, "rank 3: this switch takes 0 to 2"),
        ({"rank": -1}, "rank -1"),
        ({"workers": 65, "rank": 0}, "workers 65: this switch takes 1 to 64"),
        ({"workers": 0, "rank": 0}, "workers 0"),
        ({"elements": 361}, "elements 361: this switch takes 1 to 360"),
        ({"streams": 0}, "streams 0"),
        ({"window_slots": 0}, "window_slots 0"),
        ({"window_slots": 600}, "slots in all 1200: this switch takes 1 to 1024"),
        ({"window_slots": (64, 0)}, "window_slots 0"),
        ({"window_slots": (1000, 25)}, "slots in all 1025: this switch takes 1 to 1024"),
        ({"window_slots": (64,)}, "window_slots 64: one for each of 2 streams"),
        ({"priorities": (0, 1, 2)}, "priorities 0, 1, 2: one for each of 2 streams"),
        ({"priorities": (0, 8)}, "priority 8: 0 to 7"),
        ({"timeout_ns": 0}, "timeout_ns 0"),
        ({"address": ("10.0.0.1", 0)}, "port 0"),
        ({"address": ("0.0.0.0", 9)}, "must give the IPv4 address"),
        ({"address": ("somewhere", 9)}, "must give the IPv4 address"),
        ({"job": ""}, "1 to 200 printable"),
        ({"job": "a\nb"}, "1 to 200 printable"),
        ({"job": "x" * 201}, "1 to 200 printable"),
    ],
)
def test_c1_an_impossible_request_is_refused_alone(changes: dict[str, object], words: str) -> None:
    controller = new_controller()
    controller.join(wish(0), 0)
    controller.join(replace(wish(1), **changes), 1)  # type: ignore[arg-type]
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert words in refused.reason
    assert [member.incarnation for member in refused.members] == [1001]
    assert isinstance(controller.membership_state(1000), Waiting)


def test_c1_two_ranks_with_one_address_are_refused() -> None:
    controller = new_controller()
    controller.join(wish(0), 0)
    controller.join(wish(1, address=("10.0.0.1", 4000)), 1)
    assert "ranks 1 and 0 both give the address 10.0.0.1:4000" in {e.reason for e in events_of(controller)}  # type: ignore[union-attr]


def test_c2_a_repeated_join_changes_nothing_and_renews_the_lease() -> None:
    controller = new_controller()
    controller.join(wish(0), 0)
    controller.join(wish(0), 3 * SECOND)
    controller.handle_timer(5 * SECOND)
    assert isinstance(controller.membership_state(1000), Waiting)
    assert controller.counters["joins"] == 1


def refusal_of(controller: Controller, incarnation: int) -> str:
    """The reason of the only event, which refuses this one."""
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert [member.incarnation for member in refused.members] == [incarnation]
    return refused.reason


def test_c3_while_gathering_a_rank_stays_with_who_has_it_and_lives() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=2), 0)
    unknown_sender = wish(0, workers=2, incarnation=77, address=("10.0.0.9", 9))
    controller.join(unknown_sender, SECOND)
    waiting = controller.membership_state(77)
    assert isinstance(waiting, Waiting)
    assert "rank 0 at 10.0.0.1:4000 has that rank" in waiting.reason
    controller.join(wish(0, workers=2), SECOND + SECOND // 2)  # may have been under way before the unknown sender's
    assert events_of(controller) == []
    controller.join(wish(0, workers=2), 2 * SECOND)
    reason = refusal_of(controller, 77)
    assert "rank 0 at 10.0.0.1:4000 holds that rank of gathering job 'train' and is alive; start each rank" in reason
    controller.join(wish(1, workers=2), 2 * SECOND)
    (admitted,) = events_of(controller)
    assert isinstance(admitted, JobAdmitted)
    assert [member.incarnation for member in admitted.members] == [1000, 1001]


def test_c3_a_rank_that_was_restarted_while_gathering_takes_its_place_when_the_dead_ones_lease_ends() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=2), 0)
    restarted, again = wish(0, workers=2, incarnation=20), wish(0, workers=2, incarnation=30)
    controller.join(restarted, SECOND)
    controller.join(again, 2 * SECOND)  # the first restart died, too
    for second in (3, 4):
        controller.join(again, second * SECOND)
    controller.handle_timer(LEASE)
    assert isinstance(controller.membership_state(20), Waiting)
    controller.handle_timer(LEASE + SECOND)
    controller.join(again, LEASE + SECOND)
    controller.join(wish(1, workers=2), LEASE + SECOND)
    (admitted,) = events_of(controller)
    assert isinstance(admitted, JobAdmitted)
    assert [member.incarnation for member in admitted.members] == [30, 1001]


def test_c3_a_claim_on_a_rank_of_a_job_that_starts_gathers_for_its_next_start() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=2), 0)
    controller.join(wish(0, workers=2, incarnation=77), SECOND)
    controller.join(wish(1, workers=2), SECOND)
    assert isinstance(events_of(controller)[0], JobAdmitted)
    controller.heartbeat(1000, 2 * SECOND)
    assert "holds that rank of running job 'train' and is alive" in refusal_of(controller, 77)


def test_c3_a_claim_that_no_longer_fits_the_others_is_refused_when_its_turn_comes() -> None:
    controller = new_controller()
    controller.join(wish(0, workers=3), 0)
    controller.join(wish(0, workers=3, incarnation=77, elements=90), SECOND)
    controller.join(wish(1, workers=3), 2 * SECOND)
    controller.leave(1000, (), "")
    assert "elements" in refusal_of(controller, 77)
    assert controller.membership_state(1001).missing == (0, 2)  # type: ignore[union-attr]


def test_c4_a_restarted_rank_waits_for_the_dead_one_and_the_job_starts_in_a_new_generation() -> None:
    controller = new_controller()
    old = start(controller, "train", 2, 10)
    controller.heartbeat(11, SECOND)
    controller.join(wish(0, workers=2, incarnation=20), SECOND)  # 10 was killed and started again
    controller.heartbeat(11, 3 * SECOND)
    controller.join(wish(0, workers=2, incarnation=20), 3 * SECOND)
    controller.handle_timer(LEASE)
    evicted, failed = events_of(controller)
    assert evicted == JobEvicted("train", old.job)
    assert isinstance(failed, JobFailed)
    assert [member.incarnation for member in failed.dead] == [10]
    controller.join(wish(1, workers=2, incarnation=21), LEASE + 1)
    (new,) = events_of(controller)
    assert isinstance(new, JobAdmitted)
    assert new.job.generation == BOOT + 1
    assert new.job.slots == old.job.slots


def test_c4_a_claim_to_a_living_rank_is_refused_by_its_next_sure_heartbeat() -> None:
    controller = new_controller()
    start(controller, "train", 2, 10)
    controller.join(wish(0, workers=2, incarnation=20), 2 * SECOND)
    controller.heartbeat(10, 2 * SECOND + SECOND // 2)  # may have been under way before the claim
    assert events_of(controller) == []
    controller.heartbeat(10, 3 * SECOND)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert [member.incarnation for member in refused.members] == [20]
    assert "rank 0 at 10.0.0.1:4000 holds that rank of running job 'train' and is alive" in refused.reason
    assert isinstance(controller.membership_state(10), Running)


def test_c4_the_next_start_waits_until_all_have_left_the_last() -> None:
    controller = new_controller()
    start(controller, "train", 2, 10)
    controller.leave(10, [5], "")
    events_of(controller)
    for rank in range(2):
        controller.join(wish(rank, workers=2, incarnation=20 + rank), 2)
    assert events_of(controller) == []
    assert "still runs, with rank 1 at 10.0.0.1:4001" in controller.membership_state(20).reason  # type: ignore[union-attr]
    controller.leave(11, [5], "")
    evicted, admitted = events_of(controller)
    assert isinstance(evicted, JobEvicted)
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.generation == BOOT + 1


def test_c5_the_wait_for_missing_ranks_ends_and_names_them() -> None:
    controller = new_controller()
    controller.join(wish(0, timeout_ns=2 * SECOND), 0)
    controller.join(wish(2), SECOND)
    assert controller.next_deadline_ns() == 2 * SECOND
    controller.handle_timer(2 * SECOND)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert refused.reason == (
        "rank 1 of 3 did not join job 'train' within 2 s; present: rank 0 at 10.0.0.1:4000, rank 2 at 10.0.0.1:4002"
    )
    assert {member.incarnation for member in refused.members} == {1000, 1002}


def test_c5_a_full_switch_names_its_jobs_and_admits_as_soon_as_there_is_room() -> None:
    controller = new_controller(slots=200)
    start(controller, "first", 1, 10)
    controller.join(wish(0, "late", 1, 20, timeout_ns=SECOND), 0)
    controller.join(wish(0, "patient", 1, 30), 0)
    assert controller.next_deadline_ns() == SECOND
    controller.handle_timer(SECOND)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert "128 slots in a row are needed and 72 of 200 are free, beside 1 jobs" in refused.reason
    controller.leave(10, [], "")
    assert [type(event) for event in events_of(controller)] == [JobEvicted, JobAdmitted]
    assert isinstance(controller.membership_state(30), Running)


def test_c5_waiting_for_room_alone_ends_after_two_leases() -> None:
    controller = new_controller(slots=200)
    start(controller, "first", 1, 10)
    controller.join(wish(0, "second", 2, 20), 0)
    controller.join(wish(1, "second", 2, 21), SECOND)
    for now_ns in range(SECOND, SECOND + 2 * LEASE, SECOND):
        for incarnation in (10, 20, 21):
            controller.heartbeat(incarnation, now_ns)
        controller.handle_timer(now_ns)
        assert events_of(controller) == []
    controller.handle_timer(SECOND + 2 * LEASE)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert "128 slots in a row are needed and 72 of 200 are free" in refused.reason


def test_c6_an_expired_lease_fails_the_job_and_names_the_dead() -> None:
    controller = new_controller()
    admitted = start(controller, "train", 3, 10)
    bystander = start(controller, "other", 1, 90)
    for now_ns in range(0, 4 * SECOND, SECOND // 2):
        for incarnation in (10, 12, 90):
            controller.heartbeat(incarnation, now_ns)
        controller.handle_timer(now_ns)
        assert events_of(controller) == []
    assert controller.next_deadline_ns() == LEASE
    controller.handle_timer(LEASE)
    evicted, failed = events_of(controller)
    assert evicted == JobEvicted("train", admitted.job)  # C8: before the members are told
    assert isinstance(failed, JobFailed)
    assert [member.rank for member in failed.dead] == [1]
    assert "rank 1 at 10.0.0.1:4001: no heartbeat for 4 s" in failed.reason
    assert {member.incarnation for member in failed.members} == {10, 11, 12}
    assert controller.membership_state(90) == Running(bystander, ())
    assert controller.free_slots() == 1024 - 128


def test_c6_a_silent_member_of_a_gathering_is_forgotten() -> None:
    controller = new_controller()
    controller.join(wish(0), 0)
    controller.join(wish(1), 2 * SECOND)
    controller.handle_timer(LEASE)
    waiting = controller.membership_state(1001)
    assert isinstance(waiting, Waiting)
    assert waiting.missing == (0, 2)
    assert controller.membership_state(1000) is None


def test_c7_others_are_notified_of_a_departure_and_the_last_frees_the_slots() -> None:
    controller = new_controller()
    start(controller, "train", 2, 10)
    controller.leave(11, [17], "ValueError: loss is NaN")
    (left,) = events_of(controller)
    assert isinstance(left, MemberLeft)
    assert (left.departure.member.rank, left.departure.calls) == (1, (17,))
    assert [member.incarnation for member in left.members] == [10]
    standing = controller.membership_state(10)
    assert isinstance(standing, Running)
    assert standing.departed == (left.departure,)
    controller.handle_timer(3 * SECOND)  # who left needs no heartbeat
    assert events_of(controller) == []
    controller.leave(10, [17], "")
    assert [type(event) for event in events_of(controller)] == [JobEvicted]
    assert controller.free_slots() == 1024
    assert controller.next_deadline_ns() is None


def test_c9_the_outcome_can_be_queried_again_and_memory_is_bounded() -> None:
    controller = new_controller()
    for index in range(STANDINGS_KEPT + 1):
        controller.join(wish(5, incarnation=index), 0)
    events_of(controller)
    assert controller.membership_state(0) is None
    assert isinstance(controller.membership_state(1), JoinRefused)
    assert isinstance(controller.membership_state(STANDINGS_KEPT), JoinRefused)


def test_c9_unknown_members_are_counted_and_change_nothing() -> None:
    controller = new_controller()
    admitted = start(controller, "train", 2, 10)
    controller.heartbeat(666, 1)
    controller.leave(667, [3], "")
    assert controller.counters["unknown_senders"] == 2
    assert events_of(controller) == []
    assert controller.membership_state(10) == Running(admitted, ())


def test_c10_a_stop_notifies_every_member() -> None:
    controller = new_controller()
    start(controller, "train", 2, 10)
    controller.join(wish(0, "next"), 0)
    controller.stop("the switch was stopped")
    refused, evicted, failed = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert isinstance(evicted, JobEvicted)
    assert isinstance(failed, JobFailed)
    assert failed.dead == ()
    assert failed.reason == refused.reason == "the switch was stopped"
    assert controller.next_deadline_ns() is None
    controller.join(wish(0, "late", incarnation=99), 1)
    (late,) = events_of(controller)
    assert isinstance(late, JoinRefused)
    assert late.reason == "the switch was stopped"


def test_a_job_the_host_can_not_serve_fails() -> None:
    controller = new_controller()
    admitted = start(controller, "train", 2, 10)
    controller.fail("train", "the data plane refused it")
    evicted, failed = events_of(controller)
    assert evicted == JobEvicted("train", admitted.job)
    assert isinstance(failed, JobFailed)
    assert failed.reason == "the data plane refused it"


def test_the_number_of_waiting_members_is_bounded() -> None:
    controller = new_controller()
    for index in range(WAITING_MAX):
        controller.join(wish(0, f"job{index}", 2, index), 0)
    assert events_of(controller) == []
    controller.join(wish(0, "one more", 2, WAITING_MAX), 0)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert "waiting already" in refused.reason


def test_c5_generations_are_the_drawn_ones_that_neither_run_nor_ran_lately() -> None:
    controller = new_controller(draw=partial(next, iter((5, 5, 5, 9, 9, 5, 7))))
    assert start(controller, "a", 1, 1).job.generation == 5
    assert start(controller, "b", 1, 2).job.generation == 9
    controller.leave(1, [], "")
    controller.leave(2, [], "")
    events_of(controller)
    assert start(controller, "a", 1, 3).job.generation == 7


def test_job_ids_in_use_are_skipped() -> None:
    controller = new_controller()
    for index in range(2):
        start(controller, f"j{index}", 1, index)
    controller._job_id = -1
    assert start(controller, "j2", 1, 2).job.job_id == 2


class SwitchChecker:
    """Plays the host: carries events out and holds them to what must always be true."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.live: dict[int, JobConfig] = {}
        self.names: dict[str, JobConfig] = {}
        self.generations: set[int] = set()
        self.answered: set[int] = set()

    def drain(self) -> None:
        for event in events_of(self.controller):
            if isinstance(event, JobAdmitted):
                self.admit(event)
            elif isinstance(event, JobEvicted):
                assert self.live.pop(event.job.job_id) == event.job
                assert self.names.pop(event.name) == event.job
            elif isinstance(event, JobFailed | JoinRefused):
                assert event.reason
                self.answered |= {member.incarnation for member in event.members}
        taken = sum(stream.window_slots for job in self.live.values() for stream in job.streams)
        assert self.controller.free_slots() == self.controller.slots - taken

    def admit(self, event: JobAdmitted) -> None:
        job = event.job
        assert job.job_id not in self.live
        assert event.name not in self.names
        assert job.generation not in self.generations
        assert [member.rank for member in event.members] == list(range(job.workers))
        assert job.slots[1] <= self.controller.slots
        for other in self.live.values():
            assert job.slots[1] <= other.slots[0] or other.slots[1] <= job.slots[0]
        self.generations.add(job.generation)
        self.live[job.job_id] = job
        self.names[event.name] = job
        self.answered |= {member.incarnation for member in event.members}


def test_random_events_keep_the_invariants(seed: int) -> None:
    """Any mix of joins, repeats, deaths, leaves and stalls: slots never shared, every wait ends, all is freed."""
    chance = random.Random(seed)
    controller = new_controller(slots=chance.choice((8, 20, 64)))
    checker = SwitchChecker(controller)
    now_ns = 0
    requests: dict[int, Join] = {}
    beating: set[int] = set()
    for step in range(400):
        kind = chance.random()
        if kind < 0.35:
            name = f"job{chance.randrange(4)}"
            workers = 3 if chance.random() < 0.05 else 2
            request = wish(
                chance.randrange(workers),
                name,
                workers,
                incarnation=step,
                streams=chance.choice((1, 1, 1, 2)) if name == "job3" else 1,
                window_slots=4 + int(name[3:]),
                address=("10.0.0.1", 1 + step),
                timeout_ns=chance.choice((2, 6, 20)) * SECOND,
            )
            requests[step] = request
            beating.add(step)
            controller.join(request, now_ns)
        elif kind < 0.45 and requests:
            controller.join(chance.choice(list(requests.values())), now_ns)
        elif kind < 0.5 and beating:
            incarnation = chance.choice(sorted(beating))
            beating.discard(incarnation)
            controller.leave(incarnation, [1], "")
        elif kind < 0.55 and beating:
            beating.discard(chance.choice(sorted(beating)))
        else:
            for incarnation in beating:
                controller.heartbeat(incarnation, now_ns)
            now_ns += chance.choice((0, SECOND // 2, SECOND, 2 * SECOND))
            controller.handle_timer(now_ns)
        checker.drain()
    assert checker.generations, "the storm should start some jobs"
    for _ in range(25):  # heal: all who live go on beating; every join is answered by its deadline
        now_ns += SECOND
        for incarnation in beating:
            controller.heartbeat(incarnation, now_ns)
        controller.handle_timer(now_ns)
        checker.drain()
    assert not list(controller.waiting())
    assert beating <= checker.answered
    for _ in range(1000):  # then silence: every lease ends by its deadline alone
        deadline_ns = controller.next_deadline_ns()
        if deadline_ns is None:
            break
        now_ns = max(now_ns, deadline_ns)
        controller.handle_timer(now_ns)
        checker.drain()
        later = controller.next_deadline_ns()
        assert later is None or later > now_ns, "a deadline that has passed must have acted"
    assert controller.next_deadline_ns() is None
    assert not checker.live
    assert controller.free_slots() == controller.slots
