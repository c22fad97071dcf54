"""ATP's and ESA's aggregators and server: exact sums under any order, loss and duplication, in one and two levels."""

import random

import numpy as np
import pytest

from emulation.scenario.bounds import NetworkParameters, bound
from emulation.scenario.topologies.topology import STAR, Fabric
from emulation.sim.atp.aggregators import Aggregators, ChunkKey, Fallback, Indexes, Preemptive, Update
from emulation.sim.atp.atp_simulation import AtpServer
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.errors import AggregationFailed
from switchagg.wire import Op
from transport.group.method_name import parse

WORKERS, SLOTS, TURNS = 5, 3, 4
RACKS = {1: (0b00111, 0b11000), 0: (0b11111,)}


class World:
    """Two jobs on shared aggregators, every packet by itself: delivered in any order, lost, duplicated, resent."""

    def __init__(
        self,
        seed: int,
        levels: int,
        aggregators: int,
        server: type[Fallback] = Fallback,
        kind: type[Aggregators] = Aggregators,
    ) -> None:
        self.random = random.Random(seed)
        self.levels = levels
        racks = RACKS[levels - 1]
        self.racks = {
            rank: number for number, ranks in enumerate(racks) for rank in range(WORKERS) if ranks >> rank & 1
        }
        self.below = racks
        self.leaves = [kind(aggregators) for _ in racks]
        self.root = kind(aggregators) if levels == 2 else None
        self.values = {
            (job, rank, chunk): np.int32([self.random.randrange(-(2**31), 2**31) for _ in range(2)])
            for job in (1, 2)
            for rank in range(WORKERS)
            for chunk in range(SLOTS * TURNS)
        }
        self.servers = {job: server(WORKERS, Indexes(job, range(SLOTS), aggregators)) for job in (1, 2)}
        self.index = {
            (job, rank): dict(Indexes(job, range(SLOTS), aggregators).of) for job in (1, 2) for rank in range(WORKERS)
        }
        self.next = {(job, rank, slot): slot for job in (1, 2) for rank in range(WORKERS) for slot in range(SLOTS)}
        self.results: dict[tuple[int, int, int], np.ndarray] = {}
        self.flying: list = []

    def key(self, job: int, chunk: int) -> ChunkKey:
        return ChunkKey(job, chunk % SLOTS, chunk // SLOTS % 2, chunk)

    def send(self, job: int, rank: int, slot: int, *, resend: bool) -> None:
        chunk = self.next[job, rank, slot]
        index = self.index[job, rank][slot]
        op = Op.MAX if chunk % 2 else Op.SUM
        values, priority = self.values[job, rank, chunk], 2 - job
        update = Update(self.key(job, chunk), index, 1 << rank, op, values, resend, priority=priority)
        self.flying.append(("leaf", self.racks[rank], update))

    def deliver(self, where: str, at: int, packet) -> None:
        if where == "leaf":
            above = ("root", 0) if self.root else ("server", 0)
            self.flying += [(*above, update) for update in self.leaves[at].take(packet, self.below[at])]
        elif where == "root":
            self.flying += [("server", 0, update) for update in self.root.take(packet, 2**WORKERS - 1)]
        elif where == "server":
            result = self.servers[packet.key.job].take(packet)
            if result:
                self.flying.append(("down", 0, result))
        elif where == "down":
            for switch in [self.root] if self.root else []:
                switch.free(packet.key, packet.index)
            self.flying += [
                ("leaf_down", leaf, packet) for leaf, ranks in enumerate(self.below) if ranks & packet.ranks
            ]
        elif where == "leaf_down":
            self.leaves[at].free(packet.key, packet.index)
            ranks = packet.ranks & self.below[at]
            self.flying += [("worker", rank, packet) for rank in range(WORKERS) if ranks >> rank & 1]
        else:
            job, slot, _, chunk = packet.key
            if self.next[job, at, slot] == chunk:
                self.results[job, at, chunk] = packet.values
                self.index[job, at][slot] = packet.next_index
                self.next[job, at, slot] += SLOTS
                if self.next[job, at, slot] < SLOTS * TURNS:
                    self.send(job, at, slot, resend=False)

    def run(self, loss: float, duplicate: float) -> None:
        for place in self.next:
            self.send(*place, resend=False)
        for _ in range(200_000):
            open_ = [place for place, chunk in self.next.items() if chunk < SLOTS * TURNS]
            if not open_:
                return
            if not self.flying or self.random.random() < 0.02:
                self.send(*self.random.choice(open_), resend=True)
                continue
            where, at, packet = self.flying.pop(self.random.randrange(len(self.flying)))
            if self.random.random() < duplicate:
                self.flying.append((where, at, packet))
            if self.random.random() >= loss:
                self.deliver(where, at, packet)
        raise AssertionError(f"no end: {len(self.flying)} in flight, waiting for {open_}")

    def wrong(self) -> int:
        found = 0
        for (job, _, chunk), got in self.results.items():
            given = [self.values[job, other, chunk] for other in range(WORKERS)]
            right = np.max(given, 0) if chunk % 2 else np.sum(given, 0, dtype=np.int32)
            found += int(np.count_nonzero(got != right))
        return found


@pytest.mark.parametrize("aggregators", [1, 3, 4, 64])
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("kind", [Aggregators, Preemptive])
def test_every_sum_is_exact_in_any_order(
    kind: type[Aggregators], levels: int, aggregators: int, request: pytest.FixtureRequest
) -> None:
    for seed in range(max(1, request.config.getoption("--seeds") // 8)):
        world = World(seed, levels, aggregators, kind=kind)
        world.run(loss=0.1, duplicate=0.1)
        assert len(world.results) == 2 * WORKERS * SLOTS * TURNS
        assert world.wrong() == 0, seed


def test_more_urgent_packets_take_what_others_hold() -> None:
    """Whose partial sum goes on as it is, once; a chunk whose sum has gone up leaves nothing behind."""
    switch = Preemptive(1)

    def take(chunk: int, rank: int, value: int, priority: int) -> list[tuple[int, int, list[int], bool]]:
        update = Update(ChunkKey(1, 0, 0, chunk), 0, 1 << rank, Op.SUM, np.int32([value]), priority=priority)
        return [(sent.key.chunk, sent.ranks, [*sent.values], sent.collided) for sent in switch.take(update, 0b111)]

    assert take(1, 0, 5, 3) == take(1, 2, 6, 3) == []
    assert take(2, 0, 1, 3) == [(2, 0b001, [1], True)], "as urgent"
    assert take(3, 1, 2, 2) == [(1, 0b101, [11], True)]
    assert take(3, 0, 3, 2) == []
    assert take(3, 2, 4, 2) == [(3, 0b111, [9], False)]
    assert take(4, 0, 7, 7) == []
    assert switch.counters["evicted"] == 1


class Careless(Fallback):
    """Adds whatever has something new."""

    def _countable(self, update: Update, counted: int) -> bool:
        return bool(update.ranks & ~counted)


def test_a_server_that_adds_overlapping_parts_is_wrong() -> None:
    wrong = 0
    for seed in range(25):
        world = World(seed, 1, 3, Careless)
        world.run(loss=0.1, duplicate=0.1)
        wrong += world.wrong()
    assert wrong


def test_slots_of_a_job_have_aggregators_of_their_own() -> None:
    indexes = Indexes(7, range(100, 164), 64)
    assert sorted(indexes.of.values()) == list(range(64))
    scarce = Indexes(7, range(100, 164), 8)
    assert set(scarce.of.values()) == set(range(8))


@pytest.mark.parametrize(("fabric", "loss"), [(STAR, 0.0), (STAR, 0.02), (Fabric("leaf_spine", 2, 4.0), 0.02)])
def test_allreduces_in_virtual_time_are_exact(fabric: Fabric, loss: float) -> None:
    """Also with fewer aggregators than chunks in flight, where most is summed by the server."""
    for method, aggregators in (("atp", 0), ("atp", 1), ("esa", 1)):
        link = LinkConfig(200_000_000, loss=loss, duplicate=loss, reorder=loss, corrupt=loss)
        config = SimulationConfig(workers=4, link=link, fabric=fabric, aggregators=aggregators, window_slots=32)
        timing = time_allreduce(config, method, 100_000)
        assert timing.wrong_elements == 0
        counters = timing.switch_counters
        assert (counters["collided"] > 0) >= ((method, aggregators) == ("atp", 1))
        assert (counters["drop_checksum"] > 0) == (timing.drop_checksum > counters["drop_checksum"]) == (loss > 0)
        assert timing.drop_checksum == pytest.approx(timing.faults["corrupted"], abs=3)  # some are still under way


def test_bounds_count_the_links_that_atp_uses() -> None:
    """A sum for each rack and one for the server, which is in the first; nothing passes a worker's link twice."""
    name = parse("atp", virtual=True)
    for fabric, busiest_arrays in ((STAR, 1.0), (Fabric("leaf_spine", 2, 4.0), 1.0)):
        network = NetworkParameters(8, 200_000_000, 1500, 360, fabric=fabric)
        least = bound(name, 4_000_000, network)
        assert least.traffic_factor == busiest_arrays
        link = LinkConfig(200_000_000)
        took = time_allreduce(SimulationConfig(workers=8, link=link, fabric=fabric), "atp", 1_000_000)
        assert 0.9 < bound(name, 1_000_000, network).communication_ns / took.duration_ns < 1.0


def test_a_server_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtpServer, "receive", lambda *_: None)
    config = SimulationConfig(workers=2, link=LinkConfig(200_000_000), retry_limit=3)
    with pytest.raises(AggregationFailed, match="no result from parameter server h3 after 4 timeouts in a row"):
        time_allreduce(config, "atp", 10_000)


def test_it_exists_in_virtual_time_only() -> None:
    with pytest.raises(ValueError, match="method atp exists in virtual time only"):
        parse("atp")
