"""Host groups in real time: disagreements, deaths, forks, endings (the rest: test_group_contract.py)."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_threads import outcomes

from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.native import library
from tests.transport.contracts.meshes import free_addresses
from transport.collectives.execution import NativeExecution
from transport.contracts.group_contract import Group
from transport.group.group_opening import GroupOptions, open_group
from transport.links.link_kinds import links_with
from transport.meshes.mesh_opening import bind_place

LIVENESS_S = 120.0


def on_every_rank(
    workers: int, act: Callable[[int, Group], Any], method: str = "ring", link: str = "tcp", **how: Any
) -> list[Any]:
    """What `act` returned or raised on each rank, each in a thread with its own group."""
    addresses = free_addresses(workers)

    def run(rank: int) -> Any:
        options = GroupOptions(LIVENESS_S, **how)
        with open_group(method, link, rank, addresses, job="test", options=options) as group:
            return act(rank, group)

    return outcomes(workers, run)


@pytest.mark.parametrize("link", links_with("mesh"))
def test_a_group_with_priorities_marks_each_class_and_sums_in_all_of_them(link: str) -> None:
    def act(rank: int, group: Group) -> list[float]:
        arrays = [np.full(50_000, rank + number, np.float32) for number in range(6)]
        order = sorted(range(6), key=lambda number: (number * (rank + 2)) % 7)  # matched by key: in any order
        futures = [group.allreduce(arrays[number], key=number, priority=number * 2) for number in order]
        for future in futures:
            future.result(LIVENESS_S)
        return [float(array[0]) for array in arrays if (array == array[0]).all()]

    found = on_every_rank(3, act, link=link, more={"priorities": [0, 3, 7]})
    assert found == [[3.0 + 3 * number for number in range(6)]] * 3, found


@pytest.mark.parametrize(("priorities", "words"), [([8], "priorities .8.: 0"), (["a"], "priorities"), (7, "link tcp")])
def test_impossible_priorities_are_refused(priorities: Any, words: str) -> None:
    options = GroupOptions(LIVENESS_S, more={"priorities": priorities})
    with pytest.raises(JobError, match=words):
        open_group("ring", "tcp", 0, free_addresses(1), job="test", options=options)


@pytest.mark.parametrize("link", ["tcp", "udp"])
def test_different_calls_are_an_error_that_names_both_sides(link: str) -> None:
    def act(rank: int, group: Group) -> None:
        group.barrier().result(LIVENESS_S)
        group.allreduce(np.zeros(1000 + 500 * (rank == 2), np.float32)).result(LIVENESS_S)

    for found in on_every_rank(3, act, link=link):
        assert isinstance(found, AggregationFailed), found
        assert "1000 float32" in str(found)
        assert "1500 float32" in str(found)
        assert "rank 2" in str(found)


def test_mixed_methods_are_named_on_both_sides() -> None:
    addresses = free_addresses(2)

    def run(rank: int) -> str:
        with pytest.raises(JobError) as caught:
            open_group(("ring", "tree")[rank], "tcp", rank, addresses, job="test", options=GroupOptions(LIVENESS_S))
        return str(caught.value)

    found = outcomes(2, run)
    assert all("'ring'" in words and "'tree'" in words for words in found), found


def test_a_rank_that_leaves_is_named_by_all_and_stops_all_at_once() -> None:
    def act(rank: int, group: Group) -> None:
        if rank == 2:
            return  # leaves without a word
        group.allreduce(np.ones(3_000_000, np.float32)).result(LIVENESS_S)

    found = on_every_rank(4, act)
    for rank in (0, 1, 3):
        assert isinstance(found[rank], AggregationFailed), found[rank]
        assert "rank 2" in str(found[rank])


def test_a_rank_may_leave_after_its_last_call() -> None:
    def act(rank: int, group: Group) -> Any:
        if rank == 1:
            time.sleep(0.1)
        return int(group.allreduce(np.ones(1_000_000, np.int32)).result(LIVENESS_S).sum())

    assert on_every_rank(4, act) == [4_000_000] * 4


def test_a_rank_that_stalls_is_named_after_the_time_limit() -> None:
    over = threading.Event()

    def act(rank: int, group: Group) -> None:
        if rank == 1:
            over.wait(LIVENESS_S)
            return
        try:
            group.allreduce(np.ones(1000, np.float32)).result(LIVENESS_S)
        finally:
            over.set()

    found = on_every_rank(2, act, call_timeout_s=0.3)
    assert isinstance(found[0], AggregationFailed)
    assert "rank 1" in str(found[0])


def test_a_call_that_cannot_begin_fails_and_leaves_nothing_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(rank: int, group: Group) -> None:
        monkeypatch.setattr(NativeExecution, "start", lambda execution: bytearray(1 << 62))
        with pytest.raises(MemoryError):
            group.allreduce(np.ones(3, np.int32)).result(LIVENESS_S)
        with pytest.raises(AggregationFailed, match="the mesh loop ended"):
            group.allreduce(np.ones(3, np.int32)).result(LIVENESS_S)

    assert on_every_rank(1, act) == [None]


def test_closing_ends_the_thread_and_fails_what_is_pending() -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    kept: list[Any] = []
    closed = threading.Event()

    def act(rank: int, group: Group) -> None:
        if rank == 1:
            closed.wait(LIVENESS_S)  # a peer that left would fail the call first
            return
        pending = group.allreduce(np.zeros(100))
        group.close()
        group.close()
        kept.extend([pending.exception(LIVENESS_S), group.allreduce(np.zeros(1)).exception(LIVENESS_S)])
        closed.set()

    assert on_every_rank(2, act) == [None, None]
    assert all(isinstance(error, AggregationFailed) and "closed" in str(error) for error in kept), kept
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, threads)


def test_a_forked_child_is_told_to_open_its_own() -> None:
    def act(rank: int, group: Group) -> int:
        if rank:
            group.barrier().result(LIVENESS_S)
            return 0
        child = os.fork()
        if not child:
            try:
                group.close()  # does nothing
                group.barrier()
            except SwitchaggError as error:
                os._exit(0 if "forked child" in str(error) else 1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        group.barrier().result(LIVENESS_S)
        return status

    assert on_every_rank(2, act) == [0, 0]


@pytest.mark.parametrize("link", ["tcp", "udp", "zeromq"])
def test_ports_can_be_known_before_the_group_is_opened(link: str) -> None:
    places = [bind_place(link, "127.0.0.1") for _ in range(3)]
    addresses = [place.address for place in places]

    def run(rank: int) -> list[int]:
        how = GroupOptions(LIVENESS_S)
        with open_group("ring", link, rank, addresses, job="test", bound=places[rank], options=how) as group:
            return group.allreduce(np.full(10, rank)).result(LIVENESS_S).tolist()

    assert outcomes(3, run) == [[3] * 10] * 3


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"method": "nonsense"}, "nonsense"),
        ({"link": "pigeon"}, "pigeon"),
        ({"options": {"colour": 1}}, "colour"),
        ({"options": {"tos": 300}}, "tos 300"),
        ({"rank": 2}, "rank 2"),
        ({"options": {"ranks_per_group": 2}}, "option ranks_per_group: method ring without servers has none"),
        ({"method": "hierarchical", "options": {"ranks_per_group": -1}}, "ranks_per_group -1: 0 to 2"),
        ({"options": {"segment_bytes": 0}}, "segment_bytes 0: 1 to"),
        ({"options": {"segment_bytes": 1 << 25}}, "segment_bytes 33554432: 1 to"),
        ({"options": {"ps": {"mode": "ssp"}}}, "option ps: method ring without servers has none"),
        ({"method": "ps", "options": {"ps": {"mode": "sp"}}}, "option ps: mode 'sp' is unknown"),
        ({"method": "switch", "link": "udp", "servers": [("127.0.0.1", 1)]}, "switch has no servers"),
        ({"servers": [("127.0.0.1", 1)]}, "no servers"),
        ({"options": {"congestion_control": "nonsense"}}, "congestion control nonsense"),
        ({"options": {"switch": "tcp://a:1"}}, "option switch: method ring without servers has none"),
        ({"options": {"timeout_s": 0.2}}, "member 1"),
    ],
)
def test_impossible_groups_raise_job_errors(how: dict[str, Any], words: str) -> None:
    how["options"] = {"timeout_s": 1, **how.get("options", {})}
    told = {"method": "ring", "link": "tcp", "rank": 0, "addresses": free_addresses(2), "job": "x"}
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JobError, match=words):
        open_group(**{**told, **how})
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("link", ["tcp", "udp", "zeromq", "rdma"])
def test_a_bound_port_is_released_if_the_group_can_not_be_opened(link: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = []  # the traceback, and so what stands in its frames
    place = bind_place(link, "127.0.0.1")
    with pytest.raises(JobError) as caught:
        open_group("ring", link, 0, [place.address] * 2, job="x", bound=place, options={"colour": 1})
    kept.append(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("method", "link", "what"),
    [("ring", "udp", "method ring"), ("mlt", "udp", "method mlt"), ("ps", "tcp", "the link tcp")],
)
def test_without_the_compiled_core_a_method_that_needs_it_is_refused_with_the_remedy(
    method: str, link: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "missing", lambda: "libswitchagg.so was not built; install a C compiler")
    words = f"^{what} needs the compiled core: libswitchagg.so was not built; install a C compiler$"
    with pytest.raises(JobError, match=words):
        open_group(method, link, 0, [("127.0.0.1", 0)], job="j")
    with open_group("ps", "udp", 0, [("127.0.0.1", 0)], job="j") as group:  # which is Python's alone
        assert group.allreduce(np.ones(3, np.float32)).result(LIVENESS_S).tolist() == [1, 1, 1]
