"""A port's queue in C, driven without a clock: departures, priority, marks, byte limit and pool, all exact."""

import ctypes
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from switchagg.native import library
from switchagg.native.headers import SA_NEVER_MARK

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

FRAMING = 42
NEVER = (1 << 63) - 1

QUEUED, MARKED, FULL = range(3)
ECT0, CE = 2, 3
POOL = 64


class Packet(ctypes.Structure):
    _fields_ = [
        ("next", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
        ("port", ctypes.c_uint32),
        ("direction", ctypes.c_uint8),
        ("tos", ctypes.c_uint8),
        ("unused", ctypes.c_uint16),
    ]


class Queue(ctypes.Structure):
    _fields_ = [
        ("held_bytes", ctypes.c_uint64),
        ("held_packets", ctypes.c_uint64),
        ("marked", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 1024),
    ]


Pointer = Any  # ctypes.POINTER(Packet)


class Bench:
    """A pool and one queue; packets are distinguished by their `port`."""

    def __init__(
        self, rate_bps: int = 0, limit: int = 1 << 40, threshold: int = SA_NEVER_MARK, pool: int = POOL
    ) -> None:
        from transport.switch.native_switch_loop import QueueConfig

        self.c = library.load()
        packet = ctypes.POINTER(Packet)
        self.c.sa_pool_new.restype = ctypes.c_void_p
        self.c.sa_pool_new.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
        self.c.sa_pool_free.argtypes = [ctypes.c_void_p]
        self.c.sa_pool_take.restype = packet
        self.c.sa_pool_take.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint8]
        self.c.sa_pool_share.restype = packet
        self.c.sa_pool_share.argtypes = [ctypes.c_void_p, packet]
        self.c.sa_pool_give.argtypes = [ctypes.c_void_p, packet]
        self.c.sa_pool_give.restype = None
        self.c.sa_pool_used.argtypes = [ctypes.c_void_p]
        self.c.sa_queue_enqueue.argtypes = [ctypes.POINTER(Queue), packet, ctypes.c_int64]
        self.c.sa_queue_departure_ns.argtypes = [ctypes.POINTER(Queue)]
        self.c.sa_queue_departure_ns.restype = ctypes.c_int64
        self.c.sa_queue_depart.argtypes = [ctypes.POINTER(Queue), ctypes.c_int64]
        self.c.sa_queue_depart.restype = packet
        self.c.sa_queue_put_back.argtypes = [ctypes.POINTER(Queue), packet]
        self.c.sa_queue_clear.argtypes = [ctypes.POINTER(Queue), ctypes.c_void_p]
        self.pool = self.c.sa_pool_new(pool, 2048)
        self.queue = Queue()
        self.c.sa_queue_init(ctypes.byref(self.queue), ctypes.byref(QueueConfig(rate_bps, limit, threshold, FRAMING)))

    def packet(self, size: int, tos: int = 0, name: int = 0) -> Pointer:
        packet = self.c.sa_pool_take(self.pool, bytes(size), size, tos)
        if packet:
            packet.contents.port = name
        return packet

    def enqueue(self, size: int, tos: int = 0, name: int = 0, now_ns: int = 0) -> int:
        packet = self.packet(size, tos, name)
        verdict: int = self.c.sa_queue_enqueue(ctypes.byref(self.queue), packet, now_ns)
        if verdict == FULL:
            self.c.sa_pool_give(self.pool, packet)
        return verdict

    @property
    def departure_ns(self) -> int:
        time_ns: int = self.c.sa_queue_departure_ns(ctypes.byref(self.queue))
        return time_ns

    def depart(self, now_ns: int = 0) -> Packet | None:
        """A copy of the packet that has left, given back to the pool."""
        packet = self.c.sa_queue_depart(ctypes.byref(self.queue), now_ns)
        if not packet:
            return None
        copy = Packet.from_buffer_copy(packet.contents)
        self.c.sa_pool_give(self.pool, packet)
        return copy

    def names(self) -> list[int]:
        """Empty the queue."""
        return [packet.port for packet in iter(self.depart, None)]

    @property
    def used(self) -> int:
        packets: int = self.c.sa_pool_used(self.pool)
        return packets


@pytest.fixture
def bench() -> Iterator[Any]:
    made: list[Bench] = []

    def maker(*args: int, **options: int) -> Bench:
        made.append(Bench(*args, **options))
        return made[-1]

    yield maker
    for one in made:
        one.c.sa_queue_clear(ctypes.byref(one.queue), one.pool)
        assert one.used == 0, "packets have leaked"
        one.c.sa_pool_free(one.pool)


@pytest.mark.parametrize("rate_bps", [1_000, 7_777_777, 10**9, 400 * 10**9 + 1])
def test_back_to_back_frames_take_exactly_their_bits(bench: Any, rate_bps: int) -> None:
    one = bench(rate_bps)
    sizes = [20 + 97 * i % 1460 for i in range(50)]
    start, bits = 12_345, 0
    for name, size in enumerate(sizes):
        assert one.enqueue(size, 0, name, start) == QUEUED
    for name, size in enumerate(sizes):
        bits += 8 * (size + FRAMING)
        due = start + ceil(Fraction(bits * 10**9, rate_bps))
        assert one.departure_ns == due
        assert one.depart(due - 1) is None
        assert one.depart(due).port == name
    assert one.departure_ns == NEVER
    assert one.queue.held_bytes == 0


def test_a_pause_lets_the_wire_fall_idle(bench: Any) -> None:
    one = bench(8_000)  # a byte per millisecond
    one.enqueue(58, now_ns=5)
    assert one.departure_ns == 100_000_005
    assert one.depart(100_000_005) is not None
    one.enqueue(58, now_ns=300_000_000)
    assert one.departure_ns == 400_000_000


def test_without_a_rate_packets_leave_at_once(bench: Any) -> None:
    one = bench()
    assert one.departure_ns == NEVER
    one.enqueue(100, now_ns=77)
    assert one.departure_ns == 0


def test_priority_is_strict_and_order_kept_inside_a_class(bench: Any) -> None:
    one = bench()
    for name, dscp in enumerate([0, 46, 7, 8, 63, 46, 0, 56, 9]):
        one.enqueue(100, dscp << 2, name)
    assert one.names() == [4, 7, 1, 5, 3, 8, 0, 2, 6]  # classes 7 7 5 5 1 1 0 0 0


def test_nothing_on_the_wire_is_interrupted(bench: Any) -> None:
    one = bench(8_000)
    one.enqueue(58, 0, 1)
    one.enqueue(58, 0, 2)
    one.enqueue(58, 46 << 2, 3, now_ns=1)
    assert [one.depart(time_ns).port for time_ns in (100_000_000, 200_000_000, 300_000_000)] == [1, 3, 2]


def test_marks_begin_exactly_above_the_threshold(bench: Any) -> None:
    one = bench(threshold=300)
    verdicts = [one.enqueue(58, ECT0) for _ in range(6)]  # holds 0, 100, 200, 300, 400, 500 bytes before each
    assert verdicts == [QUEUED] * 4 + [MARKED] * 2
    assert [one.enqueue(58, tos) for tos in (0, 1, ECT0, CE)] == [QUEUED, MARKED, MARKED, QUEUED]
    assert one.queue.marked == 4
    left = [packet.tos for packet in iter(one.depart, None)]
    assert left == [ECT0] * 4 + [CE] * 2 + [0, CE, CE, CE]


def test_marks_keep_the_dscp(bench: Any) -> None:
    one = bench(threshold=0)
    one.enqueue(58)
    one.enqueue(58, 46 << 2 | ECT0)
    assert one.depart().tos == 46 << 2 | CE


def test_the_byte_limit_counts_framing_and_the_arriving_packet(bench: Any) -> None:
    one = bench(limit=300)
    assert [one.enqueue(58) for _ in range(4)] == [QUEUED] * 3 + [FULL]
    assert one.queue.held_bytes == 300
    one.depart()
    assert one.enqueue(59) == FULL
    assert one.enqueue(58) == QUEUED


def test_the_byte_limit_is_each_class_s_own(bench: Any) -> None:
    one = bench(limit=200)
    assert [one.enqueue(58, tos) for tos in (0, 0, 0, 0xE0, 0x20, 0xE1, 0xE2)] == (
        [QUEUED, QUEUED, FULL, QUEUED, QUEUED, QUEUED, FULL]
    )
    assert one.depart().tos == 0xE0
    packet = one.c.sa_queue_depart(ctypes.byref(one.queue), 0)
    assert one.enqueue(158, 0xE0) == QUEUED
    one.c.sa_queue_put_back(ctypes.byref(one.queue), packet)
    assert one.enqueue(58, 0xE0) == FULL
    assert one.enqueue(58, 0x20) == QUEUED


def test_a_packet_on_the_wire_is_held_until_its_last_bit_has_left(bench: Any) -> None:
    one = bench(8_000, limit=200)
    assert [one.enqueue(58) for _ in range(3)] == [QUEUED, QUEUED, FULL]
    assert one.depart(99_999_999) is None
    assert one.enqueue(58, now_ns=99_999_999) == FULL
    assert one.depart(100_000_000) is not None
    assert one.enqueue(58, now_ns=100_000_000) == QUEUED


def test_what_is_put_back_is_first_again(bench: Any) -> None:
    one = bench()
    for name in range(3):
        one.enqueue(58, 0, name)
    taken = [one.c.sa_queue_depart(ctypes.byref(one.queue), 0) for _ in range(3)]
    one.enqueue(58, 0, 3)
    for packet in reversed(taken):
        one.c.sa_queue_put_back(ctypes.byref(one.queue), packet)
    assert one.queue.held_bytes == 400
    assert one.names() == [0, 1, 2, 3]
    elsewhere = one.packet(58)  # not the memory that was the tail before
    one.c.sa_queue_put_back(ctypes.byref(one.queue), one.packet(58, 0, 4))
    one.enqueue(58, 0, 5)
    assert one.names() == [4, 5]
    one.c.sa_pool_give(one.pool, elsewhere)


def test_an_exhausted_pool_reports_it_and_recovers(bench: Any) -> None:
    one = bench(pool=3)
    packets = [one.packet(10) for _ in range(3)]
    assert all(packets)
    assert not one.packet(10)
    assert not one.c.sa_pool_share(one.pool, packets[0])
    one.c.sa_pool_give(one.pool, packets.pop())
    shared = one.c.sa_pool_share(one.pool, packets[0])
    assert shared.contents.buffer == packets[0].contents.buffer
    assert one.used == 3
    for packet in (*packets, shared):
        one.c.sa_pool_give(one.pool, packet)
    fresh = [one.packet(10) for _ in range(3)]
    assert len({packet.contents.buffer for packet in fresh}) == 3  # a shared buffer came back once
    for packet in fresh:
        one.c.sa_pool_give(one.pool, packet)


@dataclass
class Model:
    """The queue's contract with exact fractions, one decision at a time."""

    rate_bps: int
    limit: int
    threshold: int
    classes: list[deque[tuple[int, int, int]]] = field(default_factory=lambda: [deque() for _ in range(8)])
    wire: tuple[int, int, int] | None = None
    free: Fraction = Fraction(0)
    held: int = 0
    held_of: list[int] = field(default_factory=lambda: [0] * 8)  # by class

    def serve(self) -> None:
        self.wire = next((c.popleft() for c in reversed(self.classes) if c), None)
        if self.wire:
            self.free += Fraction(8 * self.wire[1] * 10**9, self.rate_bps)

    def enqueue(self, size: int, tos: int, name: int, now_ns: int) -> int:
        framed = size + FRAMING
        if self.held_of[tos >> 5] + framed > self.limit:
            return FULL
        mark = self.held > self.threshold and tos & 3 in (1, 2)
        self.held += framed
        self.held_of[tos >> 5] += framed
        self.classes[tos >> 5].append((name, framed, tos | CE if mark else tos))
        if self.wire is None:
            self.free = max(self.free, Fraction(now_ns))
            self.serve()
        return MARKED if mark else QUEUED

    @property
    def departure_ns(self) -> int:
        return NEVER if self.wire is None else ceil(self.free)

    def depart(self) -> tuple[int, int, int]:
        assert self.wire is not None
        left = self.wire
        self.held -= left[1]
        self.held_of[left[2] >> 5] -= left[1]
        self.serve()
        return left


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_is_served_as_specified(bench: Any, seed: int) -> None:
    chance = random.Random(seed)
    rate = chance.choice([10**6, 123_456_789, 10**9, 99 * 10**9])
    limit, threshold = chance.randrange(2_000, 10_000), chance.randrange(30_000)
    one, model = bench(rate, limit, threshold), Model(rate, limit, threshold)
    now_ns, outcomes = 0, set()
    full_ns = 1500 * 8 * 10**9 // rate
    for name in range(2_000):
        now_ns += chance.choice([0, 0, chance.randrange(full_ns), chance.randrange(20 * full_ns)])
        while model.departure_ns <= now_ns:
            assert one.departure_ns == model.departure_ns
            packet = one.depart(model.departure_ns)
            assert (packet.port, packet.tos) == model.depart()[::2]
        size, tos = chance.randrange(20, 1460), chance.randrange(256)
        verdict = one.enqueue(size, tos, name, now_ns)
        outcomes.add(verdict)
        assert verdict == model.enqueue(size, tos, name, now_ns)
        assert one.queue.held_bytes == model.held
    assert QUEUED in outcomes
