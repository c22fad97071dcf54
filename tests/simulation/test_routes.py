"""Chunks that some ranks give and others get, under any faults: S1 to S6 with routes, on every plane in memory.

The workers are as small as can be: each has one chunk of every slot in flight (W6), repeats it until its
result comes (W5), and knows what that must be.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from hypothesis import given
from hypothesis import strategies as st

from switchagg.aggregator import Aggregator
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import OWNERS, Op, Packet, Route, Values, decode, encode

ELEMENTS, CHUNKS = 3, 40
SWITCH = -1
Make = Callable[[int, int], DataPlane]


class WrongResult(AssertionError):
    """A worker took what is not the result of its chunk."""


class Network:
    """Workers of one job, a switch, and packets that get lost, come twice, or arrive turns of their slot later."""

    def __init__(self, make: Make, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loss, self.copies, self.late = (self.rng.choice(some) for some in ((0, 0.1, 0.3), (0, 0.3), (0, 0.2)))
        self.workers, self.window = self.rng.choice([2, 3, 5]), self.rng.choice([1, 2, 4])
        self.job = JobConfig(1, 7, self.workers, ELEMENTS, (StreamConfig(0, self.window),))
        self.plane = make(self.window, ELEMENTS)
        self.plane.admit(self.job, range(self.workers))
        self.first = MODULUS - 2 * self.window  # what fresh slots hold (S7): the numbers pass 2**32 two turns later
        self.awaited = [dict.fromkeys(range(self.first, self.first + self.window), False) for _ in range(self.workers)]
        self.done = 0
        self.now = 0.0
        self.events: list[tuple[float, int, int, int, bytes]] = []
        self.numbers = 0

    def contribution(self, rank: int, chunk: int) -> Packet:
        """The same each time it is asked for; routes, owners and ops vary from chunk to chunk."""
        drawn = random.Random(chunk)
        route, owner, op = drawn.choice(list(Route)), drawn.randrange(self.workers), drawn.choice(list(Op))
        gives = route is Route.ALL or (rank == owner) == (route is Route.FROM_OWNER)
        values = np.random.default_rng(chunk * OWNERS + rank).integers(-(2**31), 2**31, ELEMENTS * gives)
        slot, version = self.job.place(0, chunk)
        owner = owner if route else 0
        number = chunk % MODULUS
        return Packet(1, 7, 0, rank, op, slot, version, number, values.astype(np.int32), route=route, owner=owner)

    def wanted(self, rank: int, chunk: int) -> Values:
        given = [packet for packet in (self.contribution(r, chunk) for r in range(self.workers)) if packet.values.size]
        own = self.contribution(rank, chunk)
        if own.route and own.values.size:
            return own.values[:0]
        values = np.stack([packet.values for packet in given]).astype(np.int64)
        combined = values.max(axis=0) if own.op is Op.MAX else values.sum(axis=0)
        return combined.astype(np.uint32).view(np.int32)

    def run(self) -> None:
        for rank in range(self.workers):
            for chunk in list(self.awaited[rank]):
                self.send(rank, chunk)
        while self.done < self.workers * CHUNKS:
            assert self.numbers < 500 * CHUNKS, "they get nowhere"
            self.now, _, to, source, data = heapq.heappop(self.events)
            if not data:
                self.send(to, source, again=True)
            elif to == SWITCH:
                for output in self.plane.process(np.frombuffer(data, np.uint8)[np.newaxis, :], source):
                    for row in output.bundle:
                        for port in output.ports:
                            self.transmit(port, SWITCH, row.tobytes())
            else:
                self.receive(to, decode(data))

    def send(self, rank: int, chunk: int, again: bool = False) -> None:
        if chunk in self.awaited[rank]:
            self.transmit(SWITCH, rank, encode(replace(self.contribution(rank, chunk), retransmission=again)))
            self.at(8 * self.rng.uniform(1, 1.3), rank, chunk, b"")

    def receive(self, rank: int, result: Packet) -> None:
        chunk = next((c for c in self.awaited[rank] if c % MODULUS == result.chunk), None)
        if chunk is None:
            return
        own = self.contribution(rank, chunk)
        wanted = replace(own, result=True, values=self.wanted(rank, chunk), rank=result.rank)
        if result != wanted:
            raise WrongResult(f"rank {rank}, chunk {chunk}: {result}, not {wanted}")
        del self.awaited[rank][chunk]
        self.done += 1
        if chunk + self.window < self.first + CHUNKS:
            self.awaited[rank][chunk + self.window] = False
            self.send(rank, chunk + self.window)

    def transmit(self, to: int, source: int, data: bytes) -> None:
        for _ in range((self.rng.random() >= self.loss) + (self.rng.random() < self.copies)):
            late = self.rng.uniform(2, 40) if self.rng.random() < self.late else 0
            self.at(self.rng.uniform(1, 1.3) + late, to, source, data)

    def at(self, delay: float, to: int, source: int, data: bytes) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (self.now + delay, self.numbers, to, source, data))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dataplane", WITHOUT_P4)
def test_all_get_what_is_theirs(dataplane: str, seed: int) -> None:
    Network(DATAPLANES[dataplane], seed).run()


def leak(make: Make, packets: list[tuple[int, Route, int, Op, int]]) -> list[int]:
    """What a job that sends nothing but zeros gets, from slots that held others' sums before, and beside such slots."""
    plane = make(2, 1)
    for slot in (0, 1):
        job = JobConfig(10 + slot, 1, 1, 1, (StreamConfig(slot, 1),))
        plane.admit(job, [slot])
        for version in (0, 1):
            secret = Packet(job.job_id, 1, 0, 0, Op.SUM, slot, version, version, np.array([99], np.int32))
            plane.process(np.frombuffer(encode(secret), np.uint8)[np.newaxis, :], slot)
    plane.evict(10)
    plane.admit(JobConfig(1, 2, 3, 1, (StreamConfig(0, 1),)), [0, 1, 2])
    got = []
    for rank, route, owner, op, chunk in packets:
        gives = route is Route.ALL or (rank == owner) == (route is Route.FROM_OWNER)
        owner = owner if route else 0
        zeros = np.zeros(int(gives), np.int32)
        packet = Packet(1, 2, 0, rank, op, 0, chunk % 2, chunk, zeros, route=route, owner=owner)
        for output in plane.process(np.frombuffer(encode(packet), np.uint8)[np.newaxis, :], rank):
            got += [value for row in output.bundle for value in decode(row.tobytes()).values.tolist()]
    return got


sent = st.tuples(
    st.integers(0, 2), st.sampled_from(Route), st.integers(0, 2), st.sampled_from(Op), st.sampled_from([0, 1, 2, 3])
)


@pytest.mark.parametrize("dataplane", WITHOUT_P4)
@given(st.lists(sent, max_size=16))
def test_no_packet_reads_what_another_job_left(dataplane: str, packets: list[tuple[int, Route, int, Op, int]]) -> None:
    """Whatever routes its workers mix: a job that sends zeros gets zeros."""
    assert not any(leak(DATAPLANES[dataplane], packets))


class Keeps(Aggregator):
    """A wrong rule: a header-only packet leaves the sums as they are also where it is a chunk's first (S4)."""

    def _combine(self, packet: Packet, *, clear: bool = False, write: bool = False, read: bool) -> Values:
        return super()._combine(packet, write=write, read=read)


class WritesFirst(Aggregator):
    """A wrong rule: values are written only if nobody was seen before, though that rank may have given nothing (S4)."""

    def _combine(self, packet: Packet, *, clear: bool = False, write: bool = False, read: bool) -> Values:
        first = self.seen(packet.slot, packet.version).ranks == (packet.rank,)
        return super()._combine(packet, write=first and write, read=read)


def wrong(rule: type[Aggregator]) -> Make:
    def make(slots: int, elements: int) -> DataPlane:
        plane = ReferencePlane(slots, elements)
        plane._aggregator = rule(slots, elements)
        plane.counters = plane._aggregator.counters
        return plane

    return make


def test_a_rule_that_clears_nothing_leaks() -> None:
    nobody_gives = [(rank, Route.TO_OWNER, rank, Op.SUM, 0) for rank in range(3)]
    assert any(leak(wrong(Keeps), nobody_gives))
    assert not any(leak(DATAPLANES["reference"], nobody_gives))


def test_a_rule_that_writes_for_the_first_packet_alone_is_found() -> None:
    with pytest.raises(WrongResult):
        Network(wrong(WritesFirst), 1).run()
