"""Collectives through a switch on loopback: exact to the bit, for any type; disagreements name both sides."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from switchagg.calls.call_request import own_shard
from switchagg.errors import AggregationFailed, JobError
from transport.group.group_opening import open_group
from transport.group.switch_group import SwitchGroup
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

SOON_S = 120.0
TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
WORKERS = 3


@pytest.fixture(scope="module")
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as running:
        yield running


@pytest.fixture(scope="module")
def groups(daemon: SwitchDaemon) -> Iterator[list[SwitchGroup]]:
    made = together(daemon, "all")
    yield made
    for group in made:
        group.close()


def together(daemon: SwitchDaemon, job: str, **options: Any) -> list[Any]:
    def join(rank: int) -> Any:
        told = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64, **options}
        return open_group("switch", "udp", rank, [("", 0)] * WORKERS, job=job, options=told)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(join, range(WORKERS)))


def each(groups: list[SwitchGroup], call: Callable[[SwitchGroup, int], Any]) -> list[Any]:
    futures = [call(group, rank) for rank, group in enumerate(groups)]
    return [future.result(SOON_S) for future in futures]


def bits(dtype: str, elements: int, seed: int) -> Any:
    """Any bit patterns at all, NaNs among them."""
    size = np.dtype(dtype).itemsize * elements
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("elements", [0, 1, 5, 1001])
def test_bytes_of_any_type_are_broadcast_and_gathered_exactly(
    groups: list[SwitchGroup], dtype: str, elements: int
) -> None:
    inputs = [bits(dtype, elements, rank) for rank in range(WORKERS)]
    for root in (0, 2):
        told = each(groups, lambda group, rank, root=root: group.broadcast(inputs[rank].copy(), root))
        assert all(one.tobytes() == inputs[root].tobytes() for one in told)
    gathered = each(groups, lambda group, rank: group.all_gather(inputs[rank].copy()))
    expected = b"".join(own_shard(inputs[rank], rank, WORKERS).tobytes() for rank in range(WORKERS))
    assert all(one.tobytes() == expected for one in gathered)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32"])
def test_maxima_are_exact(groups: list[SwitchGroup], dtype: str) -> None:
    inputs = [bits(dtype, 777, rank) for rank in range(WORKERS)]
    if np.dtype(dtype).kind == "f":
        inputs[0][:4], inputs[1][:4], inputs[2][:4] = (-np.inf, -2, np.nan, 5), (-np.inf, -3, 1, 5), (-np.inf, -4, 2, 7)
    with np.errstate(invalid="ignore"):
        expected = np.maximum(np.maximum(inputs[0], inputs[1]), inputs[2])
    for largest in each(groups, lambda group, rank: group.allreduce(inputs[rank].copy(), "max")):
        assert np.array_equal(largest, expected, equal_nan=np.dtype(dtype).kind == "f")


def test_an_array_whose_memory_is_not_aligned(groups: list[SwitchGroup]) -> None:
    def told(group: SwitchGroup, rank: int) -> Any:
        raw = np.zeros(4 * 50 + 2, np.uint8)
        raw[2:] = np.random.default_rng(rank).integers(0, 256, 200)
        return group.broadcast(raw[2:], 1)

    expected = np.random.default_rng(1).integers(0, 256, 200).astype(np.uint8)
    assert all(np.array_equal(one, expected) for one in each(groups, told))


def test_many_calls_at_once(groups: list[SwitchGroup]) -> None:
    pending = [
        [group.allreduce(np.full(2000 * (number % 4) + 3, rank + number, np.int32)) for number in range(20)]
        for rank, group in enumerate(groups)
    ]
    for futures in pending:
        assert [int(future.result(SOON_S)[-1]) for future in futures] == [3 + 3 * number for number in range(20)]
    assert all(group.failure is None for group in groups)


def test_what_the_switch_cannot_do_is_refused(groups: list[SwitchGroup]) -> None:
    for dtype in ("float64", "int64", "uint64", "complex64"):
        with pytest.raises(ValueError, match=f"max of {dtype}"):
            groups[0].allreduce(np.zeros(3, dtype), "max")
    with pytest.raises(ValueError, match="root 3"):
        groups[0].broadcast(np.zeros(3), 3)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda group: group.allreduce(np.zeros(150_000, np.float32)), "150000 float32 (sum)"),
        (lambda group: group.allreduce(np.zeros(1000, np.int32), "max"), "1000 int32 (max)"),
        (lambda group: group.broadcast(np.zeros(1000, np.float32), 2), "broadcast 0 of 1000 float32 (root 2)"),
        (lambda group: group.barrier(), "barrier 0"),
    ],
    ids=["size", "op", "kind", "barrier"],
)
def test_different_calls_are_an_error_that_names_both_sides(
    daemon: SwitchDaemon, odd: Callable[[SwitchGroup], Any], words: str
) -> None:
    groups = together(daemon, f"odd {words}"[:30])
    futures = [group.allreduce(np.zeros(1000, np.float32)) for group in groups[:2]] + [odd(groups[2])]
    for rank, future in enumerate(futures):
        error = future.exception(SOON_S)
        assert isinstance(error, AggregationFailed)
        assert "allreduce 0 of 1000 float32 (sum)" in str(error) or rank < 2
        assert words in str(error)
        assert "rank 2" in str(error)
    assert isinstance(groups[0].barrier().exception(SOON_S), AggregationFailed)
    for group in groups:
        group.close()


def test_the_link_is_passed_to_the_session(daemon: SwitchDaemon) -> None:
    with pytest.raises(JobError, match="pigeon"):
        open_group("switch", "pigeon", 0, [("", 0)], job="x", options={"switch": daemon.control_endpoint})


@pytest.mark.parametrize("core", ["native", "python"])
@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (("reduce_scatter", "all_gather"), ("reduce_scatter 0 of 20000 int32 (sum)", "all_gather 0 of 20000 int32")),
        (("reduce", "reduce at 2"), ("reduce 0 of 20000 int32 (sum, root 0)", "reduce 0 of 20000 int32 (sum, root 2)")),
        (("broadcast", "reduce"), ("broadcast 0 of 20000 int32 (root 0)", "reduce 0 of 20000 int32 (sum, root 0)")),
        (("all_gather", "shorter all_gather"), ("all_gather 0 of 20000 int32", "all_gather 0 of 19000 int32")),
    ],
    ids=["kind", "root", "direction", "size"],
)
def test_ranks_that_mean_other_owners_all_get_one_error(
    daemon: SwitchDaemon, calls: tuple[str, str], words: tuple[str, str], core: str
) -> None:
    make: dict[str, Callable[[SwitchGroup], Any]] = {
        "reduce_scatter": lambda group: group.reduce_scatter(np.ones(20_000, np.int32)),
        "all_gather": lambda group: group.all_gather(np.ones(20_000, np.int32)),
        "shorter all_gather": lambda group: group.all_gather(np.ones(19_000, np.int32)),
        "reduce": lambda group: group.reduce(np.ones(20_000, np.int32)),
        "reduce at 2": lambda group: group.reduce(np.ones(20_000, np.int32), root=2),
        "broadcast": lambda group: group.broadcast(np.ones(20_000, np.int32)),
    }
    groups = together(daemon, f"{calls} {core}"[:30], core=core)
    futures = [make[calls[rank == 2]](group) for rank, group in enumerate(groups)]
    for future in futures:
        assert isinstance(error := future.exception(SOON_S), AggregationFailed)
        assert all(each in str(error) for each in words)
    for group in groups:
        group.close()


@pytest.mark.parametrize("core", ["native", "python"])
def test_packets_with_values_go_only_where_they_are_needed(daemon: SwitchDaemon, core: str) -> None:
    """W13: of n shards of R rows a rank sends those of the others in a reduce-scatter, its own in an all-gather."""
    groups = together(daemon, f"sizes {core}", core=core, streams=1, elements=100)
    rows, workers = 40, WORKERS
    size = rows * workers * 100
    sums = each(groups, lambda group, rank: group.reduce_scatter(np.full(size, rank, np.int32)))
    assert all((shard == 3).all() for shard in sums)
    assert all(len(shard) == rows * 100 for shard in sums)
    described = 20 + 4 * 100
    sent = rows * (workers - 1) * 420 + rows * 20 + described
    got = rows * 420 + rows * (workers - 1) * 20 + described
    for group in groups:
        assert group.counters["sent"] == rows * workers + 1
        if not group.counters["retransmitted"] and not group.counters["duplicates"]:
            assert group.counters["link_sent_bytes"] == sent
            assert group.counters["link_received_bytes"] == got
    each(groups, lambda group, rank: group.all_gather(np.full(size, rank, np.int32)))
    for group in groups:
        if not group.counters["retransmitted"] and not group.counters["duplicates"]:
            assert group.counters["link_sent_bytes"] == sent + got
            assert group.counters["link_received_bytes"] == sent + got
        group.close()
