"""The native switch loop over loopback: exact sums over bad links, faults from a seed, queues, DSCP and ECN."""

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faulty_link import FaultyLink
from test_native_impair import fates
from test_switch_loop import EchoPlane

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.wire import Op, Packet, Route, decode, encode
from transport.links.link import Address
from transport.links.udp_link import UdpLink
from transport.switch.impairments import Impairments, LinkImpairments, parse_impairments
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.worker.worker_loop import WorkerLoop

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

LOOPBACK = ("127.0.0.1", 0)
LIVENESS_S = 120.0
PERFECT = Impairments()


class Bench:
    """A native switch and plain links, one per rank of the job it is given first."""

    def __init__(
        self, job: JobConfig, impairments: Impairments | None = None, at: Address = LOOPBACK, **link: Any
    ) -> None:
        self.job = job
        self.links = [UdpLink(at, **link) for _ in range(job.workers)]
        switch_link = UdpLink(at, **link)
        self.address: Address = switch_link.address
        end = max(s.first_slot + s.window_slots for s in job.streams)
        self.switch = NativeSwitchLoop(
            switch_link, DATAPLANES["native"](2 * end, job.elements), impairments=impairments
        )
        self.switch.start()
        self.switch.admit(job, [link.address for link in self.links])
        self.workers: list[WorkerLoop] = []

    def start_workers(self) -> None:
        self.workers = [WorkerLoop(link, self.job, rank, self.address) for rank, link in enumerate(self.links)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for link in self.links:
            link.close()
        self.switch.stop()

    def frames(self, chunks: Sequence[int], rank: int = 0, owner: int | None = None) -> np.ndarray:
        """Packets of a rank, one per chunk, each value the chunk's number plus the rank's. owner: reduce-scatter."""
        rows = []
        for chunk in chunks:
            slot, version = self.job.place(0, chunk)
            values = np.full(0 if rank == owner else self.job.elements, chunk + rank, np.int32)
            packet = Packet(self.job.job_id, self.job.generation, 0, rank, Op.SUM, slot, version, chunk, values)
            if owner is not None:
                packet = replace(packet, route=Route.TO_OWNER, owner=owner)
            rows.append(np.frombuffer(encode(packet), np.uint8))
        return np.stack(rows)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The switch does nothing meanwhile, and finds together what was sent."""
        held, queued = threading.Event(), threading.Event()
        holder = threading.Thread(target=self.switch._ask, args=(lambda: (held.set(), queued.wait(LIVENESS_S)),))
        holder.start()
        assert held.wait(LIVENESS_S)
        try:
            yield
        finally:
            queued.set()
            holder.join()

    def arrivals(self, rank: int, quiet_s: float = 0.3) -> list[int]:
        """Chunks of the results that reach a rank, in order, until nothing has come for a while."""
        chunks: list[int] = []
        while self.links[rank].wait(quiet_s):
            for bundle, *_ in self.links[rank].receive():
                chunks.extend(decode(row.tobytes()).chunk for row in bundle)
        return chunks


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def maker(*args: Any, **options: Any) -> Bench:
        made.append(Bench(*args, **options))
        return made[-1]

    yield maker
    for one in made:
        one.close()


def job_of(workers: int, elements: int = 32, window: int = 4, **options: int) -> JobConfig:
    return JobConfig(
        job_id=7, generation=3, workers=workers, elements=elements, streams=(StreamConfig(0, window),), **options
    )


def allreduce(bench: Bench, length: int, seed: int) -> tuple[list[np.ndarray], np.ndarray, list[Future[Any]]]:
    chance = np.random.default_rng(seed)
    arrays = [chance.integers(-(1 << 31), 1 << 31, length, np.int64).astype(np.int32) for _ in bench.workers]
    expected = np.sum(np.stack(arrays).astype(np.int64), axis=0).astype(np.int32)
    pairs = zip(bench.workers, arrays, strict=True)
    return arrays, expected, [worker.submit(0, array_call(array, "sum", bench.job)) for worker, array in pairs]


def check_sums(bench: Bench, calls: int = 3, length: int = 2_000) -> None:
    for call in range(calls):
        arrays, expected, futures = allreduce(bench, length + call, call)
        for future in futures:
            future.result(LIVENESS_S)
        for array in arrays:
            np.testing.assert_array_equal(array, expected)


# ---- sums


@pytest.mark.parametrize("window", [2, 3, 4])
def test_sums_are_exact_over_bad_links(bench: Callable[..., Bench], window: int) -> None:
    words = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,span=2ms,jitter=200us,seed=11"
    one = bench(job_of(4, window=window), parse_impairments(words))
    one.start_workers()
    check_sums(one)
    counters = Counter(one.switch.counters())  # the data plane leaves out zeros
    for way in ("up", "down"):
        for what in ("lost", "corrupted", "duplicated", "held_back"):
            assert counters[f"{way}_{what}"] > 0
    assert counters["drop_older"] + counters["drop_duplicate"] > 0  # the faults were such that order mattered


def test_sums_are_exact_at_a_rate_with_short_queues(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(3, window=16), parse_impairments("rate=20mbit,queue=2kb,delay=300us,seed=5"))
    one.start_workers()
    check_sums(one)
    counters = one.switch.counters()
    assert counters["up_drop_queue_full"] + counters["drop_queue_full"] > 0


@pytest.mark.parametrize("gso", [None, False])
@pytest.mark.parametrize("elements", [1, 360, 2240, 16_000])
def test_sums_are_exact_at_every_size_of_packet(bench: Callable[..., Bench], elements: int, gso: bool | None) -> None:
    one = bench(job_of(2, elements=elements, window=16), gso=gso)
    one.start_workers()
    check_sums(one, length=40 * elements + 3)
    assert one.switch.counters()["drop_queue_full"] == 0


@pytest.mark.parametrize("words", ["", "loss=2%,rate=100mbit,delay=100us,seed=2"])
def test_sums_are_exact_over_ipv6(bench: Callable[..., Bench], words: str) -> None:
    try:
        UdpLink(("::1", 0)).close()
    except JobError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    one = bench(job_of(2, window=8), parse_impairments(words) if words else None, ("::1", 0))
    one.start_workers()
    check_sums(one)


# ---- faults


def seen_chunks(bench: Callable[..., Bench], impairments: Impairments, together: bool, count: int = 256) -> list[int]:
    """What a lonely worker gets back, whose packets went out as bundles or one by one."""
    one = bench(job_of(1, elements=2, window=count), impairments, gso=None if together else False, segments_max=64)
    frames = one.frames(range(count))
    if together:
        assert one.links[0].send(frames, one.address) == count
    else:
        for row in range(count):
            assert one.links[0].send(frames[row : row + 1], one.address) == 1
    return one.arrivals(0)


@pytest.mark.parametrize("seed", [1, 2])
def test_bundling_does_not_change_which_packets_are_hit(bench: Callable[..., Bench], seed: int) -> None:
    share = 0.2
    faults = LinkImpairments(loss=share, corrupt=share)
    up = [fate[1] for fate in fates(256, seed, 0, 0, loss=share, corrupt=share)]
    down = iter(fates(256, seed, 0, 1, loss=share, corrupt=share))
    expected = [chunk for chunk in range(256) if up[chunk] and next(down)[1]]
    for together in (True, False):
        assert seen_chunks(bench, Impairments(faults, faults, seed), together) == expected


def test_duplicates_and_late_packets_follow_from_the_seed(bench: Callable[..., Bench]) -> None:
    down = LinkImpairments(duplicate=0.3, reorder=0.3, span_ns=20_000_000)
    drawn = fates(256, 9, 0, 1, duplicate=0.3, reorder=0.3, span_ns=20_000_000)
    got = seen_chunks(bench, Impairments(down=down, seed=9), together=True)
    assert sorted(got) == sorted(chunk for chunk, fate in enumerate(drawn) for _ in range(fate[1]))
    assert got != sorted(got)


@pytest.mark.parametrize(("both", "down", "least_s"), [("delay=30ms", "", 0.060), ("", "delay=30ms", 0.030)])
def test_a_delay_is_no_shorter_than_configured_and_keeps_the_order(
    bench: Callable[..., Bench], both: str, down: str, least_s: float
) -> None:
    one = bench(job_of(1, window=64), parse_impairments(both, down=down))
    begin = time.monotonic()
    one.links[0].send(one.frames(range(64)), one.address)
    assert one.links[0].wait(LIVENESS_S)
    assert time.monotonic() - begin >= least_s
    assert one.arrivals(0) == list(range(64))


def test_a_rate_is_not_exceeded(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1, elements=360, window=64), Impairments(down=LinkImpairments(rate_bps=10_000_000)))
    begin = time.monotonic()
    one.links[0].send(one.frames(range(64)), one.address)
    got: list[int] = []
    while len(got) < 64:
        assert one.links[0].wait(LIVENESS_S)
        for bundle, *_ in one.links[0].receive():
            got.extend(decode(row.tobytes()).chunk for row in bundle)
    assert time.monotonic() - begin >= 64 * (20 + 4 * 360 + 42) * 8 / 10_000_000
    assert got == list(range(64))


def test_a_queue_drops_its_tail(bench: Callable[..., Bench]) -> None:
    limit = 10 * (20 + 4 * 360 + 42)
    down = LinkImpairments(rate_bps=100_000, queue_bytes=limit)  # 120 ms a packet: all 64 come before one has left
    one = bench(job_of(1, elements=360, window=64), Impairments(down=down), segments_max=44)
    one.links[0].send(one.frames(range(44)), one.address)
    assert one.arrivals(0, quiet_s=1.0) == list(range(10))
    assert one.switch.counters()["drop_queue_full"] == 34


# ---- DSCP and ECN


def plain_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(LOOPBACK)
    made.settimeout(LIVENESS_S)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    return made


def receive_with_tos(worker: socket.socket) -> tuple[int, int]:
    """Chunk and TOS of the next result."""
    data, ancillary, _, _ = worker.recvmsg(2048, 64)
    (tos,) = [content[0] for level, kind, content in ancillary if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)]
    return decode(data).chunk, tos


@pytest.mark.parametrize("impairments", [None, parse_impairments("delay=1ms"), parse_impairments("rate=1mbit")])
def test_results_carry_the_dscp_that_completed_them(
    bench: Callable[..., Bench], impairments: Impairments | None
) -> None:
    one = bench(job_of(2), impairments)
    with plain_socket() as a, plain_socket() as b:
        one.switch.admit(replace(one.job, generation=4), [a.getsockname(), b.getsockname()])
        one.job = replace(one.job, generation=4)
        for chunk, tos in enumerate([46 << 2, 0, 46 << 2 | 2]):
            a.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8 << 2)
            a.sendto(one.frames([chunk])[0], one.address)
            while not one.switch.seen(*one.job.place(0, chunk)).ranks:
                time.sleep(0.001)
            b.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            b.sendto(one.frames([chunk], rank=1)[0], one.address)
            for worker in (a, b):
                assert receive_with_tos(worker) == (chunk, tos)


def test_urgent_results_overtake_and_a_long_queue_marks(bench: Callable[..., Bench]) -> None:
    down = LinkImpairments(rate_bps=50_000, ecn_threshold_bytes=3 * (20 + 4 * 360 + 42))
    one = bench(job_of(1, elements=360, window=16), Impairments(down=down))
    with plain_socket() as worker:
        one.job = replace(one.job, generation=4)
        one.switch.admit(one.job, [worker.getsockname()])
        frames = one.frames(range(7))
        for chunk in range(7):
            dscp = 46 if chunk == 6 else 0
            worker.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2 | 2)
            worker.sendto(frames[chunk], one.address)
        got = [receive_with_tos(worker) for _ in range(7)]
    assert [chunk for chunk, _ in got] == [0, 6, 1, 2, 3, 4, 5]  # 0 was on the wire already
    assert {chunk: tos & 3 for chunk, tos in got} == {0: 2, 1: 2, 2: 2, 3: 2, 4: 3, 5: 3, 6: 3}
    assert one.switch.counters()["ecn_marked"] == 3


# ---- what goes wrong


@pytest.mark.parametrize("impairments", [None, parse_impairments("rate=50mbit,delay=1ms")])
def test_a_port_that_vanishes_harms_no_other_job(bench: Callable[..., Bench], impairments: Impairments | None) -> None:
    one = bench(job_of(4, retry_limit=1_000), impairments)
    one.start_workers()
    check_sums(one, calls=1)
    _, _, futures = allreduce(one, 200_000, 1)
    one.workers[3].close()  # its socket is gone: the kernel answers with ICMP errors
    other = replace(one.job, job_id=8, streams=(StreamConfig(4, 4),))
    links = [UdpLink(LOOPBACK) for _ in range(2)]
    one.switch.admit(replace(other, workers=2), [link.address for link in links])
    one.switch.evict(one.job.job_id)
    later = [WorkerLoop(link, replace(other, workers=2), rank, one.address) for rank, link in enumerate(links)]
    values = [np.arange(5_000, dtype=np.int32) * (rank + 1) for rank in range(2)]
    for future in [w.submit(0, array_call(v, "sum", other)) for w, v in zip(later, values, strict=True)]:
        future.result(LIVENESS_S)
    np.testing.assert_array_equal(values[0], np.arange(5_000) * 3)
    assert one.switch.failure is None
    assert futures[3].exception(LIVENESS_S) is not None
    for worker in later:
        worker.close()


@pytest.mark.parametrize("impairments", [None, parse_impairments("rate=200mbit,queue=100kb")])
def test_a_flood_of_one_port_starves_no_other(bench: Callable[..., Bench], impairments: Impairments | None) -> None:
    one = bench(job_of(3, window=16), impairments)
    one.start_workers()
    flooder = UdpLink(LOOPBACK)
    job = replace(one.job, job_id=8, workers=1, streams=(StreamConfig(16, 16),))
    one.switch.admit(job, [flooder.address])
    slot, version = job.place(0, 0)
    packet = Packet(8, job.generation, 0, 0, Op.SUM, slot, version, 0, np.ones(job.elements, np.int32))
    bundle = np.repeat(np.frombuffer(encode(packet), np.uint8)[np.newaxis], 64, axis=0)
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            flooder.send(bundle, one.address)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        check_sums(one)
        assert one.switch.counters()["reply"] > 0
    finally:
        ended.set()
        thread.join(LIVENESS_S)
        flooder.close()


def test_an_evicted_job_s_port_leaves_no_packets_in_flight(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1, window=64), parse_impairments("delay=100ms,rate=1mbit"))
    one.links[0].send(one.frames(range(64)), one.address)
    while not one.switch.counters()["link_received_datagrams"]:
        time.sleep(0.001)
    one.switch.evict(7)
    assert one.arrivals(0) == []
    one.switch.admit(replace(one.job, generation=4), [one.links[0].address])
    one.job = replace(one.job, generation=4)
    one.links[0].send(one.frames(range(8)), one.address)
    assert one.links[0].wait(LIVENESS_S)
    assert one.arrivals(0) == list(range(8))


def test_results_of_several_arrivals_leave_in_whole_sends(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1, window=80), segments_max=16)
    link = one.links[0]
    if not (link.gso and link.gro):
        pytest.skip("this kernel has no UDP_SEGMENT or no UDP_GRO")
    with one.held():
        for first in range(0, 80, 5):
            link.send(one.frames(range(first, first + 5)), one.address)
    assert one.arrivals(0) == list(range(80))
    assert one.switch.counters()["link_sent_bundles"] == 80 / 16


def test_results_with_and_without_values_reach_a_worker_in_the_order_of_chunks(bench: Callable[..., Bench]) -> None:
    """Workers take a chunk for lost when results of four later ones have come (W8)."""
    one = bench(job_of(2, window=48))
    with one.held():
        for rank, first in itertools.product(range(2), range(0, 48, 8)):
            frames = one.frames(range(first, first + 8), rank, owner=first // 8 % 2)
            one.links[rank].send(frames, one.address)
    assert one.arrivals(0) == one.arrivals(1) == list(range(48))


def test_a_plane_or_link_of_another_kind_is_refused() -> None:
    link = UdpLink(LOOPBACK)
    with pytest.raises(JobError, match="NativePlane on a UdpLink"):
        NativeSwitchLoop(link, EchoPlane())  # type: ignore[arg-type]
    with pytest.raises(JobError, match="NativePlane on a UdpLink"):
        NativeSwitchLoop(FaultyLink(link, 0), DATAPLANES["native"](8, 4))  # type: ignore[arg-type]
    link.close()
