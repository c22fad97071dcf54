"""call: W3, W4. Calls of all workers are run against an exact sum, without packets."""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchagg.call import ChunkedCall, make_call
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op


def job(workers: int, elements: int) -> JobConfig:
    return JobConfig(1, 1, workers, elements, (StreamConfig(0, 4),))


def run(calls: list[ChunkedCall], rng: random.Random) -> None:
    """Move every chunk through an exact switch: any order among the ready ones, in groups of any size."""
    waiting: set[int] = set()
    sent = 0
    done = 0
    while done < calls[0].chunks:
        assert all(c.ready_chunks == calls[0].ready_chunks for c in calls)
        waiting |= set(range(sent, calls[0].ready_chunks))
        sent = calls[0].ready_chunks
        positions = sorted(rng.sample(sorted(waiting), rng.randint(1, min(len(waiting), 9))))
        waiting -= set(positions)
        reads = [c.read(positions) for c in calls]
        assert all(list(r[1]) == list(reads[0][1]) for r in reads)
        stacked = np.stack([r[0] for r in reads]).astype(np.int64)
        results = np.where(np.array(reads[0][1])[:, None] == Op.MAX, stacked.max(axis=0), stacked.sum(axis=0))
        order = rng.sample(range(len(positions)), len(positions))
        for call in calls:
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
    calls = [make_call(around[1:-1], "sum", job(workers, elements)) for around in surroundings]
    run(calls, rng)
    for around in surroundings:
        assert around[1:-1].tolist() == want.tolist()
        assert (around[0], around[-1]) == (7, 7)  # results stay inside the array


def test_max() -> None:
    values = np.random.default_rng(1).integers(-(2**31), 2**31, (4, 50)).astype(np.int32)
    want = values.max(axis=0)
    calls = [make_call(v, "max", job(4, 8)) for v in values]
    run(calls, random.Random(1))
    assert all((v == want).all() for v in values)


def test_int64_wraps_as_int64_does() -> None:
    values = [np.array([2**63 - 1, -(2**63), -1], np.int64) for _ in range(2)]
    run([make_call(v, "sum", job(2, 6)) for v in values], random.Random(1))
    assert values[0].tolist() == values[1].tolist() == [-2, 0, -2]


def test_layout_sends_exponents_a_group_ahead() -> None:
    """W4 with E = 2: five data chunks in groups of two: S0 S1 D0 D1 S2 D2 D3 D4."""
    call = make_call(np.arange(1, 11, dtype=np.float32), "sum", job(1, 2))
    assert call.chunks == 8
    assert call.ready_chunks == 2
    values, ops = call.read([0, 1])
    assert list(ops) == [Op.MAX, Op.MAX]
    assert values.tolist() == [[2, 3], [3, 4]]  # chunks [1 2] [3 4] | [5 6] [7 8]
    call.write([1], values[1:])
    assert call.ready_chunks == 2  # group 0 is what everything waits for
    call.write([0], values[:1])
    assert call.ready_chunks == 8 - 1  # S2 comes before the data of group 1; the last group waits for it
    values, ops = call.read([4])
    assert (list(ops), values.tolist()) == ([Op.MAX], [[4, -32768]])
    call.write([4], values)
    assert call.ready_chunks == 8


def test_empty_array_has_no_chunks() -> None:
    for dtype in (np.float32, np.int64):
        assert make_call(np.empty(0, dtype), "sum", job(2, 8)).chunks == 0


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
        make_call(array, op, job(2, elements))
