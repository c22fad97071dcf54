"""The TCP ring over loopback: exact sums, odd sizes, and what a rank hears when another dies."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed, JobError
from transport.collectives.tcp_ring import CALL_BYTES, Address, TcpRing, congestion_control_of


def free_addresses(count: int) -> list[Address]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    addresses = [one.getsockname() for one in held]
    for one in held:
        one.close()
    return addresses


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def on_every_rank(workers: int, act: Callable[[int, TcpRing], Any]) -> list[Any]:
    """What `act` returned or raised on each rank, each in a thread with its own ring."""
    addresses, found = free_addresses(workers), [None] * workers

    def run(rank: int) -> None:
        try:
            with TcpRing.connect(rank, addresses, timeout_s=20) as ring:
                found[rank] = act(rank, ring)
        except Exception as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.mark.parametrize("workers", range(2, 9))
@pytest.mark.parametrize("elements", [0, 1, 7, 1000, 3 * CALL_BYTES // 4 + 11])
def test_every_rank_holds_the_exact_sum_call_after_call(workers: int, elements: int) -> None:
    inputs = [np.random.default_rng(r).integers(-(2**31), 2**31, elements).astype(np.int32) for r in range(workers)]
    expected = np.sum(inputs, axis=0, dtype=np.int32) if elements else np.zeros(0, np.int32)

    def act(rank: int, ring: TcpRing) -> list[NDArray[Any]]:
        arrays = [inputs[rank].copy(), inputs[rank].copy() + np.int32(rank)]
        for array in arrays:
            ring.allreduce(array)
        return arrays

    more = np.int32(sum(range(workers)))
    for found in on_every_rank(workers, act):
        assert not isinstance(found, Exception), found
        assert np.array_equal(found[0], expected)
        assert np.array_equal(found[1], expected + more)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_other_types_and_max(dtype: str) -> None:
    def act(rank: int, ring: TcpRing) -> tuple[NDArray[Any], NDArray[Any]]:
        summed, largest = (np.arange(10_001).astype(dtype) * (rank - 1) for _ in range(2))
        ring.allreduce(summed)
        ring.allreduce(largest, "max")
        return summed, largest

    for found in on_every_rank(4, act):
        assert np.array_equal(found[0], np.arange(10_001).astype(dtype) * 2)
        assert np.array_equal(found[1], np.arange(10_001).astype(dtype) * 2)


def test_float_results_are_bit_identical_on_all_ranks() -> None:
    inputs = [np.random.default_rng(rank).standard_normal(50_003).astype(np.float32) for rank in range(5)]

    def act(rank: int, ring: TcpRing) -> bytes:
        array = inputs[rank].copy()
        ring.allreduce(array)
        return array.tobytes()

    assert len(set(on_every_rank(5, act))) == 1


def test_elements_that_come_in_pieces_are_put_together() -> None:
    mine, theirs = np.arange(50, dtype=np.int64), np.arange(50, dtype=np.int64) * 1_000_003
    (left, feed), (right, drain) = tcp_pair(), tcp_pair()
    with TcpRing(0, 2, left, right) as ring:  # the test is rank 1
        stream = struct.pack(">QQ", 1, 400) + theirs[25:].tobytes() + (mine + theirs)[:25].tobytes()

        def feed_slowly() -> None:
            for at in range(0, len(stream), 5):
                feed.sendall(stream[at : at + 5])
                time.sleep(0.001)

        feeder = threading.Thread(target=feed_slowly)
        feeder.start()
        ring.allreduce(mine, timeout_s=20)
        feeder.join()
    assert np.array_equal(mine, np.arange(50) * 1_000_004)
    received = b"".join(iter(lambda: drain.recv(1 << 16), b""))
    assert received == struct.pack(">QQ", 1, 400) + np.arange(25).tobytes() + mine[25:].tobytes()
    feed.close()
    drain.close()


def test_one_worker_needs_nobody() -> None:
    with TcpRing.connect(0, [("127.0.0.1", 1)]) as ring:
        array = np.arange(5, dtype=np.int32)
        ring.allreduce(array)
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_a_rank_that_dies_is_named_by_its_neighbours_and_stops_all_at_once() -> None:
    begun = time.monotonic()

    def act(rank: int, ring: TcpRing) -> None:
        if rank == 2:
            return  # leaves without a word
        ring.allreduce(np.ones(10_000_000, np.float32), timeout_s=30)

    found = on_every_rank(4, act)
    assert time.monotonic() - begun < 20
    for rank in (0, 1, 3):
        assert isinstance(found[rank], AggregationFailed), found[rank]
    for rank in (1, 3):
        assert "rank 2" in str(found[rank])
        assert 2 in found[rank].missing


def test_a_rank_that_stalls_is_named_after_the_time_limit() -> None:
    over = threading.Event()

    def act(rank: int, ring: TcpRing) -> None:
        if rank == 1:
            over.wait(20)
            return
        try:
            ring.allreduce(np.ones(1000, np.float32), timeout_s=0.3)
        finally:
            over.set()

    found = on_every_rank(2, act)
    assert isinstance(found[0], AggregationFailed)
    assert "nothing moved for 0.3 s, waiting for rank 1" in str(found[0])


def test_a_broken_ring_stays_broken() -> None:
    def act(rank: int, ring: TcpRing) -> str:
        with pytest.raises(AggregationFailed) as first:
            ring.allreduce(np.ones(1000 + rank, np.float32))
        with pytest.raises(AggregationFailed) as second:
            ring.allreduce(np.ones(1000, np.float32))
        return f"{first.value}, {second.value}"

    found = on_every_rank(2, act)
    assert any("all ranks must make the same calls" in str(words) for words in found)


def test_a_neighbour_that_never_comes_is_named() -> None:
    addresses = free_addresses(3)
    with pytest.raises(JobError, match=r"ring rank 0: no connection to rank 1 at 127\.0\.0\.1"):
        TcpRing.connect(0, addresses, timeout_s=0.2)


def test_an_unknown_congestion_control_is_refused_by_name() -> None:
    with pytest.raises(JobError, match="TCP congestion control nonsense: the kernel refuses it here"):
        TcpRing.connect(0, free_addresses(2), congestion_control="nonsense", timeout_s=1)


def test_congestion_control_is_read_back() -> None:
    used = on_every_rank(2, lambda _rank, ring: ring.congestion_control)
    with socket.socket() as plain:
        assert used == [congestion_control_of(plain)] * 2
