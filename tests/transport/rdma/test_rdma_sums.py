"""Sums over RDMA in real time: workers' UC queue pairs, the switch that ends them, and what happens in between."""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.native import NativePlane
from switchagg.errors import AggregationFailed, JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from tests.transport.rdma import oracle
from tests.transport.rdma.relay import Faults, Relay
from transport.links.udp_link import UdpLink
from transport.rdma.places import elements_for, first_places, mtu_for, switch_ends
from transport.switch.rdma_switch import RdmaSwitchLoop
from transport.worker.rdma_worker import RdmaWorkerEnd, RdmaWorkerLoop

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

HOST = f"127.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
"""Addresses of this process alone: on loopback all of 127/8 is ours, and tests run side by side."""

WAIT_S = 60.0


class World:
    """A switch, workers and what lies between; closed at the end."""

    def __init__(
        self,
        job: JobConfig,
        *,
        packets: int = 16,
        native: bool = True,
        relayed: int = 64,
        v6: bool = False,
        **relay: Any,
    ) -> None:
        """relay: options of a Relay, if any; then the first `relayed` ranks have one."""
        self.job = job
        self._ending = ExitStack()
        plane = NativePlane(256, job.elements)
        self.switch = RdmaSwitchLoop(UdpLink(("::1" if v6 else f"{HOST}.9", 0)), plane, packets=packets)
        self.switch_address = self.switch._link.address
        self.switch.start()
        self._ending.callback(self.switch.stop)
        mtu, places = mtu_for(job.elements), first_places(job)[-1]
        self.ends = [
            RdmaWorkerEnd("::1" if v6 else f"{HOST}.{20 + rank}", places=places, mtu=mtu, port=0)
            for rank in range(job.workers)
        ]
        for end in self.ends:
            self._ending.callback(end.close)
        relayed = relayed if relay else 0
        self.relays: list[Relay] = []
        peers = []
        for rank, end in enumerate(self.ends):
            if rank < relayed:
                sides = (f"{HOST}.{100 + rank}", f"{HOST}.{160 + rank}")
                made = Relay(end.address, self.switch_address, sides, seed=rank, **relay)
                self._ending.callback(made.close)
                self.relays.append(made)
            peers.append(self.relays[rank].switch_side if rank < relayed else end.address)
        self.switch.admit_ends(job, peers, [end.queue_pair for end in self.ends])
        self.loops = []
        for rank, end in enumerate(self.ends):
            switch = self.relays[rank].worker_side if rank < relayed else self.switch_address
            end.connect(switch, switch_ends(job)[rank])
            loop = RdmaWorkerLoop(end, job, rank, packets=packets, native=native)
            self._ending.callback(loop.close)
            self.loops.append(loop)
        self.native = native

    def allreduce(self, stream: int, arrays: list[np.ndarray], op: str = "sum") -> list["Future[Any]"]:
        return [self.allreduce_of(rank, array, stream, op) for rank, array in enumerate(arrays)]

    def allreduce_of(self, rank: int, array: np.ndarray, stream: int = 0, op: str = "sum") -> "Future[Any]":
        call = array_call(array, op, self.job)
        return self.loops[rank].submit(stream, call)

    def close(self) -> None:
        self._ending.close()


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[World] = []

    def world(*arguments: Any, **options: Any) -> World:
        made.append(World(*arguments, **options))
        return made[-1]

    yield world
    for one in made:
        one.close()


def job_of(workers: int, mtu: int, window: int = 64, streams: int = 2, **options: Any) -> JobConfig:
    ranges = tuple(StreamConfig(stream * window, window) for stream in range(streams))
    return JobConfig(11, 4_000_000_000, workers, elements_for(mtu), ranges, **options)


def check_sums(world: World, sizes: list[int], seed: int = 1) -> None:
    """Integer sums of calls on alternating streams, with ==."""
    rng = np.random.default_rng(seed)
    calls = []
    for number, size in enumerate(sizes):
        arrays = [rng.integers(-(1 << 31), 1 << 31, size, dtype=np.int64).astype(np.int32) for _ in world.loops]
        expected = np.sum([array.astype(np.int64) for array in arrays], axis=0).astype(np.int32)
        futures = world.allreduce(number % len(world.job.streams), arrays)
        calls.append((arrays, expected, futures))
    for arrays, expected, futures in calls:
        for array, future in zip(arrays, futures, strict=True):
            future.result(WAIT_S)
            assert np.array_equal(array, expected)


@pytest.mark.parametrize(("mtu", "packets", "native"), [(1024, 16, True), (4096, 1, True), (256, 5, False)])
def test_sums_are_exact(make: Any, mtu: int, packets: int, native: bool) -> None:
    world = make(job_of(3, mtu), packets=packets, native=native)
    chunks = 1300 if native else 300  # more than the ring of frames has
    check_sums(world, [1, elements_for(mtu) * chunks + 7, 0, 5000, elements_for(mtu)])
    counters = world.switch.counters()
    dropped = {name: count for name, count in counters.items() if name.startswith("drop") and count}
    assert set(dropped) <= {"drop_duplicate", "drop_older"}
    if packets > 1:
        assert counters["messages_sent"] < counters["packets_sent"]
    for loop in world.loops:
        assert loop.counters["drop_place"] == 0
        assert loop.counters["messages_sent"] * packets >= loop.counters["sent"]


def test_sums_over_ipv6(make: Any) -> None:
    try:
        world = make(job_of(2, 1024), v6=True)
    except JobError as error:
        pytest.skip(f"needs IPv6 on loopback: {error}")
    check_sums(world, [5000, 1])


def test_floats_and_maxima_travel_as_over_udp(make: Any) -> None:
    world = make(job_of(2, 1024))
    floats = [np.linspace(-1, 1, 30_000, dtype=np.float32) * (rank + 1) for rank in range(2)]
    ints = [np.arange(10_000, dtype=np.int32) * (-1) ** rank for rank in range(2)]
    done = [*world.allreduce(0, floats), *world.allreduce(1, ints, "max")]
    for future in done:
        future.result(WAIT_S)
    assert np.array_equal(floats[0], floats[1])
    assert np.abs(floats[0] - np.linspace(-3, 3, 30_000)).max() < 1e-6
    assert ints[0].tolist() == list(range(10_000)) == ints[1].tolist()


@pytest.mark.parametrize(
    "faults",
    [{"lose": 0.05}, {"double": 0.3}, {"reorder": 0.2}, {"lose": 0.03, "double": 0.05, "reorder": 0.05, "depth": 100}],
    ids=["loss", "duplicates", "reordering", "all"],
)
def test_sums_are_exact_whatever_a_relay_does(make: Any, faults: dict[str, float]) -> None:
    """R5, R7: a message of which a packet is missing or out of order is lost to the worker, and repaired by chunk."""
    world = make(job_of(2, 1024, rto_initial_ns=50_000_000), packets=8, faults=Faults(**faults))
    check_sums(world, [251 * 400 + 3, 251 * 200, 17])
    assert all(relay.damaged == 0 and relay.passed > 0 for relay in world.relays)
    if "lose" in faults:
        assert sum(relay.lost for relay in world.relays) > 0
        assert sum(loop.counters["retransmitted"] for loop in world.loops) > 0
    if set(faults) == {"double"}:
        assert world.switch.counters()["drop_duplicate"] > 0


def test_a_lost_packet_costs_the_worker_its_message_and_the_job_nothing(make: Any) -> None:
    """R7, step by step: the first MIDDLE packet of results is lost on its way to rank 0."""
    lost: list[bytes] = []

    def drop(down: bool, body: bytes) -> bool:
        if down and body[0] == oracle.OPCODES["UC_WRITE_MIDDLE"] and not lost:
            lost.append(body)
            return True
        return False

    world = make(job_of(2, 1024, window=8, streams=1, rto_initial_ns=100_000_000), packets=8, relayed=1, drop=drop)
    arrays = [np.full(251 * 8, rank + 1, np.int32) for rank in range(2)]
    futures = [world.allreduce_of(0, arrays[0])]
    while sum(len(view.ranks) for view in world.switch.slots_of(world.job).values()) < 8:
        pass
    futures.append(world.allreduce_of(1, arrays[1]))  # its packets come in bundles: so do the results
    for future in futures:
        future.result(WAIT_S)
    assert arrays[0].tolist() == arrays[1].tolist() == [3] * (251 * 8)
    assert len(lost) == 1
    assert world.ends[0].pair.counters["dropped_messages"] == 1
    assert world.loops[0].counters["retransmitted"] >= 3
    assert world.switch.counters()["reply"] >= 3
    assert world.switch.counters()["broadcast"] == 8


def test_a_worker_whose_packets_meet_congestion_slows_down(make: Any) -> None:
    """R8: marks, CNPs of both ends, and a rate cut by DCQCN; nothing of it changes a sum."""
    world = make(job_of(2, 1024), packets=8, relayed=1, tos=3)
    check_sums(world, [251 * 300])
    marked, other = (end.pair.counters for end in world.ends)
    counters = world.switch.counters()
    assert counters["ecn_marked"] >= 300
    assert 0 < counters["cnp_sent"] <= counters["ecn_marked"]
    assert 0 < marked["cnps_received"] <= counters["cnp_sent"]
    assert marked["rate_cuts"] > 0 == other["rate_cuts"]
    assert 0 < counters["cnp_received"] <= marked["cnps_sent"]  # the results were marked, too


def test_a_worker_with_a_wrong_key_or_address_changes_nothing(make: Any) -> None:
    """R4: the switch drops and counts; the workers' calls go on once the right key comes."""
    world = make(job_of(2, 256, rto_initial_ns=20_000_000))
    right = world.ends[1]._switch
    world.ends[1]._switch = replace(right, rkey=right.rkey ^ 1)
    arrays = [np.full(59 * 8, rank + 1, np.int32) for rank in range(2)]
    futures = world.allreduce(0, arrays)
    while world.switch.counters()["drop_key"] < 4:
        pass
    assert all(view.ranks == (0,) for view in world.switch.slots_of(world.job).values())
    world.ends[1]._switch = replace(right, base=256)
    while world.switch.counters()["drop_address"] < 4:
        pass
    assert not any(future.done() for future in futures)
    world.ends[1]._switch = right
    for future in futures:
        future.result(WAIT_S)
    assert arrays[0].tolist() == [3] * (59 * 8)


@pytest.mark.parametrize("native", [False, True])
def test_a_stopped_loop_hands_over_its_calls(make: Any, native: bool) -> None:
    """The second call waits for the other rank, and no row of it holds a result."""
    world = make(job_of(2, 1024), native=native)
    first = [np.full(3000, 1, np.int32) for _ in range(2)]
    for future in world.allreduce(0, first):
        future.result(WAIT_S)
    alone = world.allreduce_of(0, np.full(3000, 5, np.int32))
    failure = AggregationFailed("the switch is lost", job=11)
    (call,) = world.loops[0].stop(failure)
    assert first[0].tolist() == [2] * 3000
    assert (call.stream, call.held.any(), call.call.array.tolist()) == (0, False, [5] * 3000)
    call.ended(None)
    assert alone.result(0) is call.call
    assert world.allreduce_of(0, first[0]).exception(0) is failure
