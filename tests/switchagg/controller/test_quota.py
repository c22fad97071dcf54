"""Quotas of an address (C16): no peer takes all that others need."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from switchagg.controller.admission import WAITING_MAX, Controller
from switchagg.controller.quota import PeerQuota, parse_peer_quota
from switchagg.join import Join
from switchagg.membership import Event, JobAdmitted, JoinRefused, Running, Waiting

SECOND = 1_000_000_000
LEASE = 4 * SECOND


def new_controller(quota: PeerQuota | None = None) -> Controller:
    return Controller(1024, 360, partial(next, itertools.count(7)), lease_ns=LEASE, claim_ns=SECOND, quota=quota)


def at(host: str, rank: int, job: str, workers: int, incarnation: int, window_slots: int = 64) -> Join:
    address = (host, 1 + incarnation)
    return Join(
        job=job,
        rank=rank,
        workers=workers,
        elements=360,
        streams=2,
        window_slots=window_slots,
        address=address,
        incarnation=incarnation,
        timeout_ns=30 * SECOND,
    )


def events_of(controller: Controller) -> list[Event]:
    events = []
    while (event := controller.next_event()) is not None:
        events.append(event)
    return events


def test_c16_a_peer_that_floods_with_joins_leaves_room_for_others() -> None:
    controller = new_controller()
    for flood in range(WAITING_MAX):
        controller.join(at("10.6.6.6", 0, f"flood {flood}", 2, 10_000 + flood), 0)
    refused = [event for event in events_of(controller) if isinstance(event, JoinRefused)]
    assert len(refused) == WAITING_MAX - PeerQuota().joins
    assert refused[0].reason == "256 members from 10.6.6.6 are waiting already, its quota"
    for rank in range(3):
        controller.join(at("10.0.0.1", rank, "honest", 3, rank), 1)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted]


@pytest.mark.parametrize(("least", "slots"), [(64, 112), (114, 0)])
def test_c16_a_job_that_can_do_with_fewer_slots_has_what_the_quota_leaves(least: int, slots: int) -> None:
    controller = new_controller()
    for name, incarnation in (("first", 1), ("second", 2)):
        controller.join(replace(at("10.6.6.6", 0, name, 1, incarnation, 200), slots_least=least), 0)
    held = [event.job.slots for event in events_of(controller) if isinstance(event, JobAdmitted)]
    assert held == [(0, 400), (400, 512)][: 1 + bool(slots)]
    standing = controller.membership_state(2)
    assert slots or (isinstance(standing, Waiting) and "10.6.6.6 would have 514 of 1024 slots" in standing.reason)


@pytest.mark.parametrize("jobs", [1, 4])
def test_c16_no_peer_takes_more_than_half_of_the_slots(jobs: int) -> None:
    controller = new_controller()
    for greedy in range(jobs):
        controller.join(at("10.6.6.6", 0, f"greedy {greedy}", 1, 10 + greedy, window_slots=512 // jobs), 0)
    events_of(controller)
    assert controller.free_slots() >= 512
    for rank in range(2):
        controller.join(at(f"10.0.0.{rank + 1}", rank, "honest", 2, rank, window_slots=256), 1)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted]
    for incarnation in range(10, 10 + jobs):
        controller.heartbeat(incarnation, SECOND)
    controller.handle_timer(2 * LEASE)
    reasons = [event.reason for event in events_of(controller) if isinstance(event, JoinRefused)]
    assert all("10.6.6.6 would have" in reason and "--peer-quota" in reason for reason in reasons)


def test_c16_a_job_counts_for_each_of_its_hosts_by_its_part_and_loopback_has_no_quota() -> None:
    controller = new_controller()
    for rank in range(2):
        controller.join(at(f"10.0.0.{rank + 1}", rank, "all", 2, rank, window_slots=512), 0)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted]
    assert controller.free_slots() == 0
    controller = new_controller()
    for job in range(8):
        controller.join(at("127.0.0.1", 0, f"job {job}", 1, job), 0)
    assert [type(event) for event in events_of(controller)] == [JobAdmitted] * 8
    assert controller.free_slots() == 0


def test_c16_a_peers_jobs_are_counted() -> None:
    controller = new_controller(PeerQuota(jobs=2))
    for job in range(3):
        controller.join(at("10.0.0.1", 0, f"job {job}", 1, job, window_slots=1), 0)
    standing = controller.membership_state(2)
    assert isinstance(standing, Waiting)
    assert standing.reason == "10.0.0.1 has 2 jobs already, its quota; end one, or raise the switch's --peer-quota"
    controller.leave(0, [], "")
    assert isinstance(controller.membership_state(2), Running)


def test_c16_no_job_has_more_slots_than_its_quota_even_alone() -> None:
    controller = new_controller(PeerQuota(job_slots=100))
    for job, least in (("all", 0), ("some", 8)):
        controller.join(replace(at("127.0.0.1", 0, job, 1, least, window_slots=256), slots_least=least), 0)
    first, second = events_of(controller)
    assert isinstance(first, JobAdmitted)
    assert isinstance(second, JobAdmitted)
    assert (first.job.slots, second.job.slots) == ((0, 100), (100, 200))
    assert first.narrowed == "windows have 100 slots in all, not 512: the switch gives a job no more, its --peer-quota"
    controller.join(replace(at("127.0.0.1", 0, "streams", 1, 9, window_slots=1), streams=101), 0)
    (refused,) = events_of(controller)
    assert isinstance(refused, JoinRefused)
    assert "101 streams need a slot each and a job may have 100" in refused.reason


def test_c16_quotas_are_written_as_words() -> None:
    assert parse_peer_quota("") == PeerQuota()
    assert parse_peer_quota("joins=9, slots=40") == PeerQuota(joins=9, slots=40)
    assert parse_peer_quota("job_slots=40") == PeerQuota(job_slots=40)
    for wrong in ("slots", "slots=", "slots=0", "slots=x", "rooms=3"):
        with pytest.raises(ValueError, match=r"allowed: joins=256, jobs=64, slots=2048"):
            parse_peer_quota(wrong)
