"""Every group keeps `transport.contracts.group_contract`: sums, order, refusals, failures and endings, by any
method."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

from switchagg.calls.call_request import CallRequest, own_shard
from switchagg.description import REQUESTED_OPS, CallSignature
from switchagg.errors import AggregationFailed
from tests.transport.contracts.groups import COLLECTIVES, KINDS, SOON_S
from transport.contracts.group_contract import AllreduceGroup, Matching

WORKERS = 3
TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
Groups = list[Any]
NOTHING = np.empty(0, np.uint8)


@pytest.fixture(scope="module", params=KINDS)
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with KINDS[request.param](WORKERS) as opened:
        yield opened


@pytest.fixture(scope="module", params=COLLECTIVES)
def collectives(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with COLLECTIVES[request.param](WORKERS) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def fresh(request: pytest.FixtureRequest) -> Iterator[Groups]:
    """Groups that the test may ruin."""
    with KINDS[request.param](2) as opened:
        yield opened


def urgency(group: Any, number: int) -> int:
    """A priority that the group has."""
    return int(group.classes[number % len(group.classes)]) if group.classes else number


def ready(futures: list[Any]) -> list[Any]:
    return [future.result(SOON_S) for future in futures]


def inputs(elements: int, dtype: str, workers: int = WORKERS) -> list[Any]:
    return [np.random.default_rng(rank).integers(-60, 60, elements).astype(dtype) for rank in range(workers)]


def test_attributes_of_a_group(groups: Groups) -> None:
    for rank, group in enumerate(groups):
        assert isinstance(group, AllreduceGroup)
        assert (group.rank, group.workers, group.failure) == (rank, WORKERS, None)
        assert group.matching in get_args(Matching)
        assert bool(group.classes) == (group.matching == "class")
        assert all(isinstance(count, int) for count in group.counters.values())
        assert {type(word) for word in (group.method, group.link, group.core)} == {str}
        assert isinstance(group.status(), dict)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("elements", [1, 1000, 100_003])
def test_sums_are_exact_and_in_place(groups: Groups, dtype: str, elements: int) -> None:
    given = inputs(elements, dtype)
    total = given[0] + given[1] + given[2]
    found = ready([group.allreduce(given[rank], priority=urgency(group, 0)) for rank, group in enumerate(groups)])
    for mine, array in zip(given, found, strict=True):
        assert array is mine
        assert np.array_equal(array, total)


def test_calls_match_in_any_order_that_the_group_allows(groups: Groups) -> None:
    count = 24
    pending: list[dict[int, Any]] = []
    for rank, group in enumerate(groups):
        order = list(range(count))
        if group.matching != "order":
            order = [int(number) for number in np.random.default_rng(rank).permutation(count)]
        if group.matching == "class":
            order.sort(key=lambda number, first=rank: ((number + first) % 3, number))  # type: ignore[misc]
        pending.append(
            {
                number: group.allreduce(
                    np.full(2000, number + rank, np.int32), key=1000 + number, priority=urgency(group, number)
                )
                for number in order
            }
        )
    for futures in pending:
        assert [int(futures[number].result(SOON_S)[-1]) for number in range(count)] == [
            3 + 3 * number for number in range(count)
        ]


def test_a_credit_changes_nothing_but_the_pace(groups: Groups) -> None:
    for credit_bytes in (1, None):
        pending = []
        for group in groups:
            group.set_credit(credit_bytes)
            priorities = [urgency(group, -number) for number in range(5)]
            pending.append([group.allreduce(np.ones(20_000, np.int32), priority=one) for one in priorities])
        for futures in pending:
            assert [int(array.sum()) for array in ready(futures)] == [60_000] * 5


@pytest.mark.parametrize(
    ("array", "op"),
    [
        (np.zeros((2, 2), np.float32), "sum"),
        (np.zeros(8, np.float32)[::2], "sum"),
        (np.zeros(2, np.float32), "median"),
        (np.array(["x"]), "sum"),
        (np.zeros(2, ">i4"), "sum"),
        (np.broadcast_to(np.float32(0), 3), "sum"),
    ],
    ids=["2-D", "strided", "op", "text", "byte order", "read-only"],
)
def test_impossible_calls_are_refused_at_once_and_change_nothing(groups: Groups, array: Any, op: str) -> None:
    for group in groups:
        with pytest.raises(ValueError, match=r"array|op|dtype"):
            group.allreduce(array, op)
    ones = [group.allreduce(np.ones(3, np.int32), priority=urgency(group, 0)) for group in groups]
    assert [array.tolist() for array in ready(ones)] == [[3, 3, 3]] * WORKERS


ELSEWHERE = CallSignature("all_to_all", "sum", np.dtype(np.float32), 7)
PRODUCT = CallSignature("allreduce", "sum", np.dtype(np.float32), 7, 0, REQUESTED_OPS.index(("product", "")))

COMPARISON, GATHERED = CallRequest("barrier", signature=ELSEWHERE), CallRequest("all_gather", signature=PRODUCT)


@pytest.mark.parametrize("name", ["switch@udp", "ring@tcp", "auto@tcp"])
def test_calls_that_travel_as_others_are_compared_as_what_they_are(name: str) -> None:
    with COLLECTIVES[name](2) as groups:
        ready([group.submit(COMPARISON, NOTHING) for group in groups])
        found = ready([group.submit(GATHERED, np.full(2, rank)) for rank, group in enumerate(groups)])
        assert [array.tolist() for array in found] == [[0, 1]] * 2
        for future in (groups[0].submit(COMPARISON, NOTHING), groups[1].submit(GATHERED, np.zeros(2))):
            error = str(future.exception(SOON_S))
            assert re.search(r"all_to_all 2 of 7 float32, .*allreduce 2 of 7 float32 \(product\)", error) or re.search(
                r"allreduce 2 of 7 float32 \(product\), .*all_to_all 2 of 7 float32", error
            ), error


def test_a_rank_that_leaves_ends_the_calls_of_all(fresh: Groups) -> None:
    pending = fresh[0].allreduce(np.ones(1000, np.float32), priority=urgency(fresh[0], 0))
    fresh[1].close()
    fresh[1].close()
    assert isinstance(pending.exception(SOON_S), AggregationFailed)
    assert isinstance(fresh[0].failure, Exception)
    for group in fresh:
        later = group.allreduce(np.ones(1, np.float32), priority=urgency(group, 0))
        assert isinstance(later.exception(SOON_S), AggregationFailed)


@pytest.mark.parametrize("elements", [0, 1, 1001])
def test_every_collective_gives_what_numpy_says(collectives: Groups, elements: int) -> None:
    given = inputs(elements, "int32")
    total = given[0] + given[1] + given[2]
    for root in (0, WORKERS - 1):
        sums = ready([group.allreduce(given[rank].copy()) for rank, group in enumerate(collectives)])
        largest = ready([group.allreduce(given[rank].copy(), "max") for rank, group in enumerate(collectives)])
        shards = ready([group.reduce_scatter(given[rank].copy()) for rank, group in enumerate(collectives)])
        gathered = ready([group.all_gather(given[rank].copy()) for rank, group in enumerate(collectives)])
        told = ready([group.broadcast(given[rank].copy(), root) for rank, group in enumerate(collectives)])
        reduced = ready([group.reduce(given[rank].copy(), root=root) for rank, group in enumerate(collectives)])
        assert np.array_equal(reduced[root], total)
        assert ready([group.barrier() for group in collectives]) == [None] * WORKERS
        parts = [own_shard(array, place, WORKERS) for place, array in enumerate(given)]
        for rank in range(WORKERS):
            assert np.array_equal(sums[rank], total)
            assert np.array_equal(largest[rank], np.maximum.reduce(given))
            assert np.array_equal(shards[rank], own_shard(total, rank, WORKERS))
            assert np.array_equal(gathered[rank], np.concatenate(parts))
            assert np.array_equal(told[rank], given[root])


@pytest.mark.parametrize("dtype", TYPES)
def test_any_number_type(collectives: Groups, dtype: str) -> None:
    given = inputs(501, dtype)
    for array in ready([group.allreduce(given[rank].copy()) for rank, group in enumerate(collectives)]):
        assert array.dtype == dtype
        assert np.array_equal(array, given[0] + given[1] + given[2])
    told = ready([group.broadcast(given[rank].copy(), 1) for rank, group in enumerate(collectives)])
    assert all(one.tobytes() == given[1].tobytes() for one in told)
    if np.dtype(dtype).itemsize <= 4:
        largest = ready([group.allreduce(given[rank].copy(), "max") for rank, group in enumerate(collectives)])
        assert all(np.array_equal(one, np.maximum.reduce(given)) for one in largest)


def test_wrong_roots_and_types_are_refused(collectives: Groups) -> None:
    for group in collectives:
        with pytest.raises(ValueError, match=f"root {WORKERS}: 0 to"):
            group.broadcast(np.zeros(2), WORKERS)
        for wrong in ({"key": 1.5}, {"priority": "0"}):
            with pytest.raises(ValueError, match="whole numbers"):
                group.allreduce(np.ones(3, np.int32), **wrong)
    sums = [group.allreduce(np.ones(3, np.int32), key=np.int64(3)) for group in collectives]
    assert [int(array[0]) for array in ready(sums)] == [WORKERS] * WORKERS


def test_a_barrier_waits_for_all(collectives: Groups) -> None:
    first = [group.barrier() for group in collectives[:2]]
    assert not any(future.done() for future in first)
    assert ready([*first, collectives[2].barrier()]) == [None] * WORKERS
