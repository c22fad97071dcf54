"""Groups whose sums may lack what was lost, over UDP on this host: what arrived counts, exactly; nothing hangs."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from switchagg.description import shard_range
from switchagg.errors import AggregationFailed, JobError
from switchagg.priority import CE
from tests.transport.contracts.meshes import free_addresses
from tests.transport.ps.test_ps_group import all_at_once
from transport.bounded.bounded_table import BOUNDED
from transport.group.bounded_group import BoundedGroup
from transport.group.group_opening import open_group
from transport.links.udp_link import UdpLink
from transport.meshes import udp_mesh

WORKERS, VALUES = 3, 60_000
NOTHING_LOST = {"mlt": {"tolerance": 0.0}, "dgt": {"share": 1.0}, "ltp": {"early_close": 0}}


@pytest.fixture
def loss(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Of every datagram, from then on."""
    random, send = np.random.default_rng(1), UdpLink.send

    def begin(part: float) -> None:
        def lossy(link: UdpLink, bundle: Any, to: Any, *tos: Any, **how: Any) -> int:
            kept = bundle[random.random(len(bundle)) >= part]
            if len(kept):
                send(link, kept, to, *tos, **how)
            return len(bundle)

        monkeypatch.setattr(UdpLink, "send", lossy)

    return begin


@contextlib.contextmanager
def opened(method: str, workers: int = WORKERS, **options: Any) -> Iterator[list[BoundedGroup]]:
    addresses = free_addresses(workers)
    how = {"timeout_s": 20.0, "call_timeout_s": 20.0, **options}

    def open_one(rank: int) -> Any:
        return open_group(method, "udp", rank, addresses, job="job", options=how)

    groups = all_at_once([partial(open_one, rank) for rank in range(workers)])
    assert all(isinstance(group, BoundedGroup) for group in groups), groups
    try:
        yield groups
    finally:
        all_at_once([group.close for group in groups])


def sums(groups: Sequence[BoundedGroup], arrays: Sequence[Any], **how: Any) -> list[Any]:
    futures = [group.allreduce(array, **how) for group, array in zip(groups, arrays, strict=True)]
    return [future.result(30) for future in futures]


@pytest.mark.parametrize("method", list(NOTHING_LOST))
def test_told_to_lose_nothing_sums_are_exact_whatever_is_lost(method: str, loss: Callable[[float], None]) -> None:
    given = np.random.default_rng(2).integers(-1000, 1000, (WORKERS, VALUES))
    with opened(method, bounded=NOTHING_LOST[method]) as groups:
        loss(0.05)
        for _ in range(2):
            for total in sums(groups, list(given.astype(np.float32))):
                assert np.array_equal(total, given.sum(0))
        lost = [group.gradient_loss() for group in groups]
    assert {(one["up"], one["down"]) for one in lost} == {(0.0, 0.0)}
    assert any(group.counters["packets_repeated"] for group in groups)


@pytest.mark.parametrize("method", list(BOUNDED))
def test_what_arrived_is_counted_once_and_what_did_not_is_counted_as_lost(
    method: str, loss: Callable[[float], None]
) -> None:
    """Rank r gives 2^r everywhere, so a sum says whose values it has."""
    options: dict[str, dict[str, Any]] = {
        "mlt": {"tolerance": 0.3},
        "dgt": {"share": 0.2},
        "ltp": {"share": 0.5},
        "optireduce": {"hadamard": "never", "runs": 1},
    }
    with opened(method, bounded={**options[method], "divide": "workers"}) as groups:
        loss(0.1)
        given = [np.full(VALUES, 1 << rank, np.float32) for rank in range(WORKERS)]
        sums(groups, [array.copy() for array in given], key=7)  # OptiReduce's first is reliable
        before: Counter[str] = Counter()
        for group in groups:
            before.update(group.counters)
        totals = [total.astype(np.int64) for total in sums(groups, given, key=7)]
        up = down = 0
        for owner in range(WORKERS):
            low, high = shard_range(VALUES, owner, WORKERS)
            own = totals[owner][low:high]
            assert np.all(own >> owner & 1)
            assert own.max() < 1 << WORKERS
            up += sum(int(np.sum(own >> rank & 1 == 0)) for rank in range(WORKERS))
            for rank in set(range(WORKERS)) - {owner}:
                got = totals[rank][low:high]
                assert np.all((got == own) | (got == 0))
                down += int(np.sum(got == 0))
        counted: Counter[str] = Counter()
        for group in groups:
            counted.update(group.counters)
        counted.subtract(before)
        assert (up, down) == (counted["packets_lost_up"], counted["packets_lost_down"])
        assert counted["packets_values_up"] == 2 * VALUES
        assert up > 0 or method != "dgt", "most of it is sent once"


def test_everything_but_sums_of_float32_is_exact(loss: Callable[[float], None]) -> None:
    with opened("mlt", bounded={"tolerance": 0.5}) as groups:
        loss(0.1)
        given = np.random.default_rng(3).integers(-(2**31), 2**31, (WORKERS, 5000)).astype(np.int32)
        for total in sums(groups, [row.copy() for row in given]):
            assert np.array_equal(total, given.sum(0, dtype=np.int32))
        for most in sums(groups, list(given.astype(np.float32)), op="max"):
            assert np.array_equal(most, given.astype(np.float32).max(0))
        sent = [np.full(5000, rank, np.float32) for rank in range(WORKERS)]
        for future in [group.broadcast(array, 1) for group, array in zip(groups, sent, strict=True)]:
            assert set(future.result(30)) == {1.0}


def test_a_rank_that_leaves_or_calls_something_else_ends_the_call_by_name() -> None:
    with opened("mlt") as groups:
        futures = [group.allreduce(np.ones(VALUES, np.float32)) for group in groups[:2]]
        groups[2].close()
        for future in futures:
            with pytest.raises(AggregationFailed, match=r"job job: rank \d lost rank 2 in sum 0 .*: it left"):
                future.result(30)
        with pytest.raises(AggregationFailed, match="rank 2"):
            groups[0].allreduce(np.ones(10, np.float32)).result(30)
    with opened("mlt", 2) as groups:
        futures = [groups[0].allreduce(np.ones(10, np.float32)), groups[1].allreduce(np.ones(10, np.int32))]
        for future in futures:
            with pytest.raises(AggregationFailed, match="rank 0 calls a sum of float32, rank 1 calls allreduce of 10"):
                future.result(30)


@pytest.mark.parametrize(
    ("link", "options", "words"),
    [
        ("tcp", {}, "link tcp: method ltp needs packets that may be lost: udp"),
        ("udp", {"codec": "lanes8"}, "method ltp sends float32 and loses some of it; leave it out"),
        ("udp", {"bounded": {"tolerance": 1}}, "option bounded: .*tolerance"),
        ("udp", {"bounded": {"share": 7}}, "option bounded: "),
    ],
)
def test_what_it_cannot_be_is_refused_in_a_line(link: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        open_group("ltp", link, 0, free_addresses(1), job="job", options=options)
    with pytest.raises(JobError, match="option bounded: method ring without servers has none"):
        open_group("ring", "tcp", 0, free_addresses(1), job="job", options={"bounded": {}})


def test_packets_may_be_marked_and_marks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.ones((2, VALUES), np.float32)
    with opened("mlt", 2, bounded={"tolerance": 0.0}) as groups:
        assert (sums(groups, list(given.copy()))[0] == 2).all()
        assert not any(group.counters["packets_marked"] for group in groups)
        monkeypatch.setattr(udp_mesh, "ECT_0", CE)  # as if all queues on the way were long
        assert (sums(groups, list(given.copy()))[0] == 2).all()
        assert all(group.counters["packets_marked"] > 20 for group in groups)
