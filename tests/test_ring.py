"""The ring's schedule alone: messages are carried in any order that a seed chooses."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from transport.collectives.ring import SEGMENT_BYTES, Message, RingAllreduce, bytes_sent


def run_ring(
    arrays: Sequence[NDArray[Any]], seed: int, segment_bytes: int = SEGMENT_BYTES, op: Any = "sum"
) -> tuple[list[int], list[Message]]:
    """Allreduce in place; returns the bytes each rank sent, and all messages. Any message in the air may come next."""
    chance = random.Random(seed)
    workers = len(arrays)
    ranks = [RingAllreduce(rank, workers, op, segment_bytes) for rank in range(workers)]
    sent = [0] * workers
    air: list[tuple[int, Message]] = []
    carried: list[Message] = []

    def drain(rank: int) -> None:
        for message in ranks[rank].messages_to_send():
            sent[rank] += len(message.data)
            air.append(((rank + 1) % workers, message))

    for rank, array in enumerate(arrays):
        ranks[rank].start(array)
        drain(rank)
    while air:
        to, message = air.pop(chance.randrange(len(air)))
        carried.append(message)
        ranks[to].receive(*message)
        drain(to)
    assert all(rank.done for rank in ranks)
    return sent, carried


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize(("workers", "elements"), [(2, 10), (3, 1000), (4, 4096), (5, 4096), (8, 3), (1, 7), (3, 0)])
def test_every_rank_holds_the_exact_sum(workers: int, elements: int, dtype: str) -> None:
    generator = np.random.default_rng(workers * 100_000 + elements)
    arrays = [generator.integers(-1000, 1000, elements).astype(dtype) for _ in range(workers)]
    expected = np.sum(arrays, axis=0, dtype=dtype)
    run_ring(arrays, seed=1, segment_bytes=512)
    for array in arrays:
        assert np.array_equal(array, expected)


def test_max() -> None:
    arrays = [np.array([rank, -rank, 5], np.int32) for rank in range(3)]
    run_ring(arrays, seed=1, op="max")
    for array in arrays:
        assert array.tolist() == [2, 0, 5]


def test_float_results_are_bit_identical_on_all_ranks_and_in_any_order_of_delivery() -> None:
    generator = np.random.default_rng(7)
    inputs = [generator.standard_normal(5000).astype(np.float32) for _ in range(5)]
    results = set()
    for seed in range(5):
        arrays = [array.copy() for array in inputs]
        run_ring(arrays, seed, segment_bytes=256)
        results.update(array.tobytes() for array in arrays)
    assert len(results) == 1


@pytest.mark.parametrize(("workers", "elements"), [(2, 1000), (3, 1000), (4, 1001), (7, 1000), (8, 5)])
def test_each_rank_sends_two_times_n_minus_1_nths_of_the_array(workers: int, elements: int) -> None:
    arrays = [np.ones(elements, np.float32) for _ in range(workers)]
    sent, _ = run_ring(arrays, seed=3, segment_bytes=64)
    assert sent == [bytes_sent(rank, workers, elements, 4) for rank in range(workers)]
    assert sum(sent) == 2 * (workers - 1) * elements * 4  # all chunks take 2(n-1) steps: exact, however n divides
    if elements % workers == 0:
        assert sent == [2 * (workers - 1) * elements * 4 // workers] * workers


def test_a_segment_is_forwarded_as_soon_as_it_arrives() -> None:
    """Pipelining: a segment of step 0 comes in, and goes out in step 1 while the rest of its chunk is missing."""
    ring = RingAllreduce(0, 3, segment_bytes=8)
    ring.start(np.ones(12, np.float32))
    assert [(m.step, m.segment) for m in ring.messages_to_send()] == [(0, 0), (0, 1)]
    ring.receive(0, 1, np.ones(2, np.float32).tobytes())
    (message,) = ring.messages_to_send()
    assert (message.step, message.segment) == (1, 1)
    assert np.frombuffer(message.data, np.float32).tolist() == [2, 2]
    assert not ring.done


def test_a_message_that_is_not_expected_is_refused() -> None:
    ring = RingAllreduce(0, 2)
    ring.start(np.zeros(8, np.float32))
    data = bytes(16)
    with pytest.raises(ValueError, match="not expected"):
        ring.receive(2, 0, data)
    with pytest.raises(ValueError, match="different sizes"):
        ring.receive(0, 0, bytes(20))
    ring.receive(0, 0, data)
    with pytest.raises(ValueError, match="came twice"):
        ring.receive(0, 0, data)


def test_default_segments_fill_whole_frames() -> None:
    assert SEGMENT_BYTES % 1448 == 0
    assert SEGMENT_BYTES % 8 == 0
