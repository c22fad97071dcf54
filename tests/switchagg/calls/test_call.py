"""call: W3, W4. Calls of all workers are run against an exact sum, without packets."""

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call, split
from switchagg.calls.chunked_call import ChunkedCall
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import EVERYONE, Layout, Shares, run_of, shares_of
from switchagg.wire import Op, Route, givers, op_of


def job(workers: int, elements: int) -> JobConfig:
    return JobConfig(1, 1, workers, elements, (StreamConfig(0, 4),))


def chunked(array: NDArray[Any], op: str, job: JobConfig, shares: Shares = EVERYONE) -> ChunkedCall:
    """As `chunked_call`, also where the call is small (W15)."""
    return ChunkedCall(array_call(array, op, job, shares=shares), job.elements, job.workers)


def run(calls: list[ChunkedCall], rng: random.Random) -> None:
    """Move every chunk through an exact switch: any order among the ready ones, in groups of any size."""
    waiting: set[int] = set()
    sent = 0
    done = 0
    run = rng.choice([1, 2, 16])
    for rank, call in enumerate(calls):
        call.shares = call.shares._replace(run=run)
        call.begin(rank)
    everyone = (1 << len(calls)) - 1
    while done < calls[0].chunks:
        assert all(c.ready_chunks == calls[0].ready_chunks for c in calls)
        waiting |= set(range(sent, calls[0].ready_chunks))
        sent = calls[0].ready_chunks
        positions = sorted(rng.sample(sorted(waiting), rng.randint(1, min(len(waiting), 9))))
        kinds = [calls[0].kind(p) for p in positions]
        assert all([c.kind(p) for p in positions] == kinds for c in calls)
        kind = kinds[0]
        positions = [p for p, its in zip(positions, kinds, strict=True) if its == kind]
        waiting -= set(positions)
        giving = givers(kind, everyone)
        stacked = np.stack([c.read(positions) for rank, c in enumerate(calls) if giving >> rank & 1]).astype(np.int64)
        results = stacked.max(axis=0) if op_of(kind) is Op.MAX else stacked.sum(axis=0)
        order = rng.sample(range(len(positions)), len(positions))
        for rank, call in enumerate(calls):
            if giving == everyone or not giving >> rank & 1:
                call.write([positions[i] for i in order], results[order].astype(np.uint32).view(np.int32))
        done += len(positions)


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [(dtype, e) for dtype in (np.int32, np.float32) for e in (1, 3, 8, 32)]
    + [(dtype, e) for dtype in (np.int64, np.float64) for e in (3, 8, 32)],
)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_sum(dtype: type, size: int, elements: int) -> None:
    rng, workers = random.Random(size * elements), 3
    contributions = np.random.default_rng(size).integers(-(2**20), 2**20, (workers, size)).astype(dtype)
    want = contributions.sum(axis=0)  # exact in every type: 22 bits
    surroundings = [np.full(size + 2, 7, dtype) for _ in range(workers)]
    for around, contribution in zip(surroundings, contributions, strict=True):
        around[1:-1] = contribution
    calls = [chunked(around[1:-1], "sum", job(workers, elements)) for around in surroundings]
    run(calls, rng)
    for around in surroundings:
        assert around[1:-1].tolist() == want.tolist()
        assert (around[0], around[-1]) == (7, 7)  # results stay inside the array


def test_max() -> None:
    values = np.random.default_rng(1).integers(-(2**31), 2**31, (4, 50)).astype(np.int32)
    want = values.max(axis=0)
    calls = [chunked(v, "max", job(4, 8)) for v in values]
    run(calls, random.Random(1))
    assert all((v == want).all() for v in values)


def test_int64_wraps_as_int64_does() -> None:
    values = [np.array([2**63 - 1, -(2**63), -1], np.int64) for _ in range(2)]
    run([chunked(v, "sum", job(2, 6)) for v in values], random.Random(1))
    assert values[0].tolist() == values[1].tolist() == [-2, 0, -2]


def test_layout_sends_exponents_a_group_ahead() -> None:
    """W4 with E = 2: five data chunks in groups of two: S0 S1 D0 D1 S2 D2 D3 D4."""
    call = chunked(np.arange(1, 11, dtype=np.float32), "sum", job(1, 2))
    assert call.chunks == 8
    assert call.ready_chunks == 2
    assert [op_of(call.kind(position)) for position in range(4)] == [Op.MAX, Op.MAX, Op.SUM, Op.SUM]
    values = call.read([0, 1])
    assert values.tolist() == [[2, 3], [3, 4]]  # chunks [1 2] [3 4] | [5 6] [7 8]
    call.write([1], values[1:])
    assert call.ready_chunks == 2  # group 0 is what everything waits for
    call.write([0], values[:1])
    assert call.ready_chunks == 8 - 1  # S2 comes before the data of group 1; the last group waits for it
    values = call.read([4])
    assert (call.kind(4), values.tolist()) == (call.kind(0), [[4, -32768]])
    call.write([4], values)
    assert call.ready_chunks == 8


def test_empty_array_has_no_chunks() -> None:
    for dtype in (np.float32, np.int64):
        assert chunked(np.empty(0, dtype), "sum", job(2, 8)).chunks == 0


@pytest.mark.parametrize(
    ("array", "op", "elements"),
    [
        (np.zeros((2, 2), np.float32), "sum", 8),
        (np.zeros(8, np.float32)[::2], "sum", 8),
        (np.zeros(8, np.float16), "sum", 8),
        (np.zeros(8, np.float32), "max", 8),
        (np.zeros(8, np.int64), "max", 8),
        (np.zeros(8, np.float32), "product", 8),
        (np.zeros(8, np.float64), "sum", 2),
        (np.frombuffer(bytes(8), np.float32), "sum", 8),
    ],
)
def test_what_the_switch_cannot_do_is_refused(array: NDArray[Any], op: str, elements: int) -> None:
    with pytest.raises(ValueError, match=r"array|op|elements"):
        array_call(array, op, job(2, elements))


# ---- whose values are whose (W13, W14)


def test_every_value_lies_in_one_data_chunk_of_its_owner(seed: int) -> None:
    rng = random.Random(seed)
    workers, unit, width = rng.randint(2, 9), rng.choice([1, 2, 8]), rng.randint(1, 40)
    count, run = unit * rng.choice([0, 1, workers - 1, rng.randint(0, 3000)]), rng.choice([1, 3, 16])
    layout = Layout(Shares(Route.TO_OWNER, None, unit, run=run), count, width, workers)
    owned: list[list[int]] = [[] for _ in range(workers)]
    for chunk in range(layout.chunks):
        low, high = layout.span(chunk)
        assert 0 <= low <= high <= count
        assert high - low <= width
        owned[layout.owner(chunk)].extend(range(low, high))
    for rank, values in enumerate(owned):
        assert values == list(
            range(unit * (rank * (count // unit) // workers), unit * ((rank + 1) * (count // unit) // workers))
        )
    whole = Layout(Shares(Route.FROM_OWNER, 1), count, width, workers)
    assert [value for chunk in range(whole.chunks) for value in range(*whole.span(chunk))] == list(range(count))
    assert {whole.owner(chunk) for chunk in range(whole.chunks)} <= {1}


def test_w11_the_parts_of_a_split_call_are_its_rows_in_proportion_to_the_windows(seed: int) -> None:
    rng = random.Random(seed)
    workers, windows = rng.randint(1, 5), [rng.randint(1, 9) for _ in range(rng.randint(2, 4))]
    config = JobConfig(1, 1, workers, 4, tuple(StreamConfig(100 * k, w) for k, w in enumerate(windows)))
    array = np.zeros(rng.randint(0, 1500), np.int32)
    shares = Shares(rng.choice(list(Route)), rng.choice([None, 0]))
    if shares.route is Route.ALL:
        shares = Shares()
    call = array_call(array, "sum", config, shares=shares)
    width = len(call.array) // max(1, len(array)) * 4

    def rows(of: Shares) -> list[tuple[int, int, int]]:
        layout = Layout(of, len(call.array), width, workers)
        return [(layout.owner(chunk), *layout.span(chunk)) for chunk in range(layout.chunks)]

    whole = rows(call.shares) if len(array) else []
    cut = split(call, config, dict(enumerate(windows)))
    parts = list(map(rows, cut.values()))
    if len(whole) <= min(windows):
        assert not cut
    if cut:
        assert sorted(chain.from_iterable(parts)) == sorted(whole)
        shards = len({owner for owner, _, _ in whole})
        for part, window in zip(parts, windows, strict=True):
            assert abs(len(part) - len(whole) * window / sum(windows)) <= shards


def test_shards_take_turns_of_runs_that_fill_a_quarter_of_the_window() -> None:
    """Three ranks, W = 24: runs of two rows, the last of one."""
    layout = Layout(Shares(Route.FROM_OWNER, None, run=run_of(24, 3)), 3 * 30, 10, 3)
    assert [layout.owner(chunk) for chunk in range(layout.chunks)] == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert [layout.span(chunk)[0] for chunk in range(layout.chunks)] == [0, 10, 30, 40, 60, 70, 20, 50, 80]


def collective(kind: str, arrays: list[NDArray[Any]], op: str, root: int, elements: int, routed: bool) -> None:
    """All ranks' calls of one kind, in place, through the exact switch; all that may not change is checked."""
    shares = shares_of(kind, root)._replace(routed=routed)  # type: ignore[arg-type]
    calls = [chunked(array, op, job(len(arrays), elements), shares=shares) for array in arrays]
    run(calls, random.Random(elements))


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 63, 64, 1000, 1001])
def test_reduce_scatter_and_reduce_give_the_bits_of_an_allreduce(size: int, dtype: str, routed: bool) -> None:
    workers, elements = 3, 8
    given = (np.random.default_rng(size).standard_normal((workers, size)) * 1e6).astype(dtype)
    reduced = [array.copy() for array in given]
    collective("reduce", reduced, "sum", 1, elements, routed)
    whole = [array.copy() for array in given]
    collective("allreduce", whole, "sum", 0, elements, routed)
    assert reduced[1].tobytes() == whole[0].tobytes()
    scattered = [array.copy() for array in given]
    collective("reduce_scatter", scattered, "sum", 0, elements, routed)
    for rank in range(workers):
        low, high = rank * size // workers, (rank + 1) * size // workers
        alone = [array[low:high].copy() for array in given]
        collective("allreduce", alone, "sum", 0, elements, routed)
        assert scattered[rank][low:high].tobytes() == alone[0].tobytes()
        assert np.dtype(dtype).kind == "f" or (scattered[rank][low:high] == given.sum(axis=0)[low:high]).all()


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float32", "int64", "complex128"])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 129, 1000])
def test_all_gather_and_broadcast_move_any_bits(size: int, dtype: str, routed: bool) -> None:
    workers, elements = 4, 5
    bits = np.random.default_rng(size).integers(0, 256, (workers, size * np.dtype(dtype).itemsize)).astype(np.uint8)
    given = [row.view(dtype) for row in bits]
    told = [array.copy() for array in given]
    collective("broadcast", told, "sum", 2, elements, routed)
    assert all(array.tobytes() == given[2].tobytes() for array in told)
    gathered = [array.copy() for array in given]
    collective("all_gather", gathered, "sum", 0, elements, routed)
    bounds = [rank * size // workers for rank in range(workers + 1)]
    want = b"".join(given[rank][bounds[rank] : bounds[rank + 1]].tobytes() for rank in range(workers))
    assert all(array.tobytes() == want for array in gathered)


def test_a_maximum_has_an_owner_too() -> None:
    given = np.random.default_rng(1).integers(-(2**31), 2**31, (3, 50)).astype(np.int32)
    for routed in (True, False):
        arrays = [array.copy() for array in given]
        collective("reduce", arrays, "max", 2, 8, routed)
        assert (arrays[2] == given.max(axis=0)).all()
