"""aggregator: what the golden packets don't cover (S7, S8, H1 to H5, and that the reference's results are copies)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switchagg.aggregator import Aggregator, Parent, Verdict, first_held, older
from switchagg.dataplane.plane_kinds import DATAPLANES, check_parent
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, Route

JOB = JobConfig(1, 7, 2, 2, (StreamConfig(0, 2),))


def packet(rank: int, chunk: int, values: list[int]) -> Packet:
    slot, version = JOB.place(0, chunk)
    return Packet(1, 7, 0, rank, Op.SUM, slot, version, chunk, np.array(values, np.int32))


def test_older_is_modulo() -> None:
    """S2: half the numbers are older than any held one, half are newer."""
    for held in (0, 1, 2**31, 2**32 - 1):
        assert not older(held, held)
        assert older((held - 1) % 2**32, held)
        assert not older((held + 1) % 2**32, held)
        assert older((held + 2**31) % 2**32, held)
        assert not older((held + 2**31 - 1) % 2**32, held)


@pytest.mark.parametrize("window", [1, 2, 3, 256])
def test_an_unused_slot_takes_its_first_chunk(window: int) -> None:
    """S7: the first chunk of each slot version is newer than what it holds, and two turns away from it."""
    for offset in {0, window - 1}:
        for version in (0, 1):
            first = offset + version * window
            held = first_held(offset, version, window)
            assert (first - held) % 2**32 == 2 * window
            assert not older(first, held)


def test_results_are_copies() -> None:
    """A result must not change when its slot is used again: it may still be waiting to be sent."""
    switch = Aggregator(2, 2)
    switch.admit(JOB, [0, 1])
    switch.accept(packet(0, 0, [1, 2]), 0)
    decision = switch.accept(packet(1, 0, [10, 20]), 1)
    assert decision.verdict is Verdict.BROADCAST
    ((result, ports),) = decision.sends
    switch.accept(packet(0, 4, [7, 7]), 0)
    assert result.values.tolist() == [11, 22]
    assert ports == (0, 1)


def test_received_packets_are_not_modified() -> None:
    switch = Aggregator(2, 2)
    switch.admit(JOB, [0, 1])
    first = packet(0, 0, [1, 2])
    switch.accept(first, 0)
    switch.accept(packet(1, 0, [10, 20]), 1)
    assert first.values.tolist() == [1, 2]


def test_evicting_twice_and_refusing() -> None:
    switch = Aggregator(2, 2)
    switch.evict(1)
    switch.admit(JOB, [0, 1])
    with pytest.raises(JobError, match="overlap those of job 1"):
        switch.admit(JobConfig(2, 1, 1, 2, (StreamConfig(1, 1),)), [0])
    switch.evict(1)
    switch.evict(1)
    switch.admit(JobConfig(2, 1, 1, 2, (StreamConfig(1, 1),)), [0])
    assert switch.accept(packet(0, 0, [1, 1]), 0).reason == "drop_job"


LEAF = JobConfig(1, 7, 4, 2, (StreamConfig(0, 2),))
PARENT = Parent(9, 5)


Sent = tuple[Packet, int]
"""A packet and the port it comes in by."""


def leaf() -> Aggregator:
    """Two of the job's four workers on ports 0 and 1, the parent, where it has rank 5, on port 9."""
    switch = Aggregator(2, 2)
    switch.admit(LEAF, [0, 1], PARENT)
    return switch


def from_parent(chunk: int = 0, **changes: Any) -> Sent:
    return replace(replace(packet(5, chunk, [70, 71]), result=True), **changes), 9


def child(rank: int, chunk: int = 0, **changes: Any) -> Sent:
    return replace(packet(rank, chunk, [10**rank, 10**rank]), **changes), rank


GATHERED = [child(0), child(1)]
DONE = [*GATHERED, from_parent()]


@pytest.mark.parametrize(
    ("before", "last", "reason", "sent"),
    [
        ([], child(0), "absorbed", None),
        ([child(0)], child(0), "drop_duplicate", None),
        ([child(0)], child(1, retransmission=True), "up", ([11, 11], (9,))),
        (GATHERED, child(1), "up_again", ([11, 11], (9,))),
        ([*GATHERED, child(1)], child(0), "drop_asked", None),
        ([*GATHERED, child(1), child(0)], child(0), "up_again", ([11, 11], (9,))),
        ([*GATHERED, child(1), child(0), child(1)], child(0), "drop_asked", None),  # sent after its latest
        ([*GATHERED, child(1), child(0, 4), child(1, 4)], child(0, 4), "up_again", ([11, 11], (9,))),  # asked is empty
        (GATHERED, from_parent(), "broadcast", ([70, 71], (0, 1))),
        (GATHERED, from_parent(rank=0, retransmission=True), "broadcast", ([70, 71], (0, 1))),
        (DONE, from_parent(), "drop_parent_duplicate", None),
        (DONE, child(1), "reply", ([70, 71], (1,))),
        (DONE, child(0, 4), "absorbed", None),
        ([*DONE, child(0, 4)], child(1), "drop_older", None),
        ([*DONE, child(0, 4)], from_parent(), "drop_parent_chunk", None),
        ([*DONE, child(0, 4)], child(1, 4), "up", ([11, 11], (9,))),
        (GATHERED, from_parent(4), "drop_parent_chunk", None),
        ([child(0)], from_parent(), "drop_parent_early", None),
        ([], from_parent(), "drop_parent_chunk", None),
        (GATHERED, (from_parent()[0], 0), "drop_result", None),
        (GATHERED, from_parent(job=2), "drop_result", None),
        (GATHERED, from_parent(generation=8), "drop_generation", None),
        (GATHERED, from_parent(stream=1), "drop_stream", None),
        (GATHERED, from_parent(slot=2), "drop_slot", None),
        (GATHERED, from_parent(values=np.zeros(1, np.int32)), "drop_elements", None),
        (GATHERED, from_parent(route=Route.TO_OWNER), "drop_route", None),
        ([], child(0, route=Route.FROM_OWNER), "drop_route", None),
        (GATHERED, from_parent(result=False), "drop_rank", None),
        (GATHERED, from_parent(result=False, rank=1), "drop_port", None),
    ],
)
def test_a_switch_below_another(
    before: list[Sent], last: Sent, reason: str, sent: tuple[list[int], Any] | None
) -> None:
    """H2 to H5, row by row: after these packets one more has this effect."""
    switch = leaf()
    for each in before:
        switch.accept(*each)
    decision = switch.accept(*last)
    assert decision.reason == reason
    assert (decision.verdict is Verdict.DROP) == (sent is None)
    if sent is None:
        return
    ((given, ports),) = decision.sends
    assert (given.values.tolist(), ports) == sent
    up = decision.verdict is Verdict.UP
    assert (given.rank, given.result) == ((PARENT.rank, False) if up else (last[0].rank, True))
    assert given.retransmission == (reason == "up_again")


def test_the_parent_is_the_rank_after_the_last() -> None:
    """H1: so diagnosis shows what a slot version waits for."""
    switch = leaf()
    for each in DONE[:2]:
        switch.accept(*each)
    assert switch.seen(0, 0).ranks == (0, 1)
    switch.accept(*DONE[2])
    assert switch.seen(0, 0).ranks == (0, 1, 2)


@pytest.mark.parametrize(
    ("ports", "parent"),
    [
        ([], None),
        ([0, 0], None),
        (range(5), None),
        ([0, 9], PARENT),
        ([0], Parent(9, 64)),
        ([0], Parent(9, -1)),
    ],
)
def test_children_and_parents_that_are_refused(ports: Sequence[int], parent: Parent | None) -> None:
    with pytest.raises(JobError, match="job 1: "):
        Aggregator(2, 2).admit(LEAF, ports, parent)


def test_a_parent_is_a_rank_as_well() -> None:
    """H1: 64 children, or 63 and a parent."""
    job = JobConfig(1, 7, 64, 2, (StreamConfig(0, 2),))
    Aggregator(2, 2).admit(job, range(64))
    Aggregator(2, 2).admit(job, range(63), Parent(64, 0))
    with pytest.raises(JobError, match="1 to 63 different ports"):
        Aggregator(2, 2).admit(job, range(64), Parent(64, 0))


def test_planes_without_the_rule_name_those_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1"""
    check_parent("reference", PARENT)
    monkeypatch.setitem(DATAPLANES, "reference", replace(DATAPLANES["reference"], leaf=False))
    check_parent("reference", None)
    with pytest.raises(JobError, match=r"reference can't be below another switch; take one of native, .*p4"):
        check_parent("reference", PARENT)
