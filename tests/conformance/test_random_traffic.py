"""Every data plane against the reference on seeded random traffic: same bytes, same ports, same order, same counters.

The traffic knows the rules well enough to reach deep states (turns, completions, repeats, chunk numbers that wrap) and
breaks each of them now and then: unknown senders of every kind, garbage, forged lengths, generation changes, evictions.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4

from switchagg.aggregator import Parent
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import DecodeError
from switchagg.job import MAX_CHILDREN, MODULUS, JobConfig, StreamConfig
from switchagg.native.library import LEAF_OUTCOMES
from switchagg.wire import (
    FLAG_RESULT,
    HEADER_BYTES,
    OWNERS,
    Bundle,
    Op,
    Packet,
    Route,
    Values,
    decode,
    encode,
)

OTHERS = [name for name in WITHOUT_P4 if name != "reference"]  # test_p4_planes.py has the rest
ELEMENTS = (1, 3, 8, 17, 64, 360)  # also odd, and more than any vector register holds
WORKERS = (1, 2, 3, 5, 64)
HALF = MODULUS // 2
PARENT = Parent(900, 6)
MARKS = ("True, by True", "True, by False", "False, by False")
NEAR = 1 << 16
"""Chunk numbers this close to 2**32, on either side of it, count as near the wrap-around."""


class Traffic:
    """Jobs on one switch, and packets from their workers and from unknown senders."""

    def __init__(
        self,
        seed: int,
        elements: Sequence[int] = ELEMENTS,
        routes: bool = True,
        parent: Parent | None = None,
    ) -> None:
        """parent: that of all jobs, which sends results."""
        self.rng = random.Random(seed)
        self.routes = routes
        self.parent = parent
        self.values = np.random.default_rng(seed)
        self.jobs: dict[int, tuple[JobConfig, list[int]]] = {}
        self.last_rank: dict[tuple[int, int, int], int] = {}
        first = 0
        apart = self.rng.choice([0, 100])  # jobs that share ports, and E, come mixed in one bundle
        sizes = self.rng.choices(elements, k=self.rng.choice([1, 3]))
        for job_id in range(self.rng.randint(1, 3)):
            workers = min(self.rng.choice(WORKERS), MAX_CHILDREN - (parent is not None))
            crowded = workers > 5  # one slot, or none would be complete in time
            streams = []
            for _ in range(1 if crowded else self.rng.randint(1, 2)):
                streams.append(StreamConfig(first, 1 if crowded else self.rng.randint(1, 3)))
                first += streams[-1].window_slots
            job = JobConfig(job_id, self.rng.randrange(MODULUS), workers, self.rng.choice(sizes), tuple(streams))
            self.jobs[job_id] = (job, [apart * job_id + rank for rank in range(workers)])
        self.slots = first

    def start(self, plane: DataPlane) -> None:
        """Admit the jobs; what the first plane holds says which chunks are due."""
        self.seen = getattr(self, "seen", plane.seen)
        for job, ports in self.jobs.values():
            self.admit(plane, job, ports)

    def admit(self, plane: DataPlane, job: JobConfig, ports: Sequence[int]) -> None:
        plane.admit(job, ports, *([self.parent] if self.parent else []))

    def packet(self) -> tuple[bytes, int]:
        """One datagram and the port it comes in by: mostly a member's, near the chunk its slot is at."""
        rng = self.rng
        ((job, ports),) = rng.choices(list(self.jobs.values()), [8 + job.workers for job, _ in self.jobs.values()])
        stream = rng.randrange(len(job.streams))
        config = job.streams[stream]
        offset, version = rng.randrange(config.window_slots), rng.randrange(2)
        key = (job.job_id, config.first_slot + offset, version)
        calm = 1 if job.workers <= 5 else 40  # 64 workers need time to complete anything
        rank = self.rank(key, job.workers)
        ahead = 2 * config.window_slots
        chunk = self.held(*key[1:]) + rng.choice([0] * 12 * calm + [-ahead, ahead, ahead, self.far(ahead)])
        route, owner = self.route(chunk // ahead + offset, job.workers, calm)
        packet = Packet(
            job=job.job_id,
            generation=job.generation,
            stream=stream,
            rank=rank,
            op=rng.choice([Op.SUM, Op.SUM, Op.MAX]),
            slot=config.first_slot + offset,
            version=version,
            chunk=chunk % MODULUS,
            values=self.drawn(job.elements if gives(route, owner, rank) else 0),
            retransmission=rng.random() < 0.3,
            route=route,
            owner=owner,
            marked=rng.random() < 0.15,
        )
        port = ports[rank]
        if self.parent and rng.random() < 0.25:
            packet, port = replace(packet, result=True, values=self.drawn(job.elements)), self.parent.port
        if rng.random() < 0.15 / calm:
            packet, port = self.strange(packet, port)
        data = encode(packet)
        return (self.damaged(data) if rng.random() < 0.05 / calm else data), port

    def drawn(self, elements: int) -> Values:
        return self.values.integers(-(2**31), 2**31, elements).astype(np.int32)

    def route(self, turn: int, workers: int, calm: int) -> tuple[Route, int]:
        """Of the chunk, and now and then another: a faulty worker's."""
        if not self.routes or workers == 1 or (self.parent and self.rng.random() < 0.95):
            return Route.ALL, 0
        if self.rng.random() < 0.1 / calm:
            turn = self.rng.randrange(1000)
        route = Route(turn % 3)
        return route, turn // 3 % workers if route else 0

    def rank(self, key: tuple[int, int, int], workers: int) -> int:
        """Mostly the rank after the last one: 64 of them must get round."""
        if self.rng.random() < 0.2:
            return self.rng.randrange(workers)
        self.last_rank[key] = (self.last_rank.get(key, -1) + 1) % workers
        return self.last_rank[key]

    def held(self, slot: int, version: int) -> int:
        try:
            return self.seen(slot, version).chunk
        except KeyError:  # its job is evicted
            return 0

    def far(self, ahead: int) -> int:
        """How far ahead of the chunk held no worker sends; `ahead`: how far it does."""
        return self.rng.choice([1, ahead // 2, 2 * ahead, 3 * ahead, 1 << 30, HALF - 1, HALF, HALF + 1])

    def strange(self, packet: Packet, port: int) -> tuple[Packet, int]:
        rng = self.rng
        changes = (
            {"job": rng.randrange(5)},
            {"generation": (packet.generation + rng.choice([-1, 1])) % MODULUS},
            {"stream": rng.randrange(4)},
            {"slot": rng.randrange(self.slots + 2)},
            {"rank": rng.randrange(64)},
            {"close": True},
            {"result": True},
            {"chunk": rng.randrange(MODULUS)},
            {"values": packet.values[:-1] if len(packet.values) > 1 else np.zeros(2, np.int32)},
            {},
        )
        if self.routes:
            route = {"route": Route(rng.randint(1, 2))}
            changes += (route | {"owner": rng.randrange(OWNERS)}, route | {"values": packet.values[:0]})
        change = rng.choice(changes)
        return replace(packet, **change), port if change else rng.randrange(240)

    def damaged(self, data: bytes) -> bytes:
        kind = self.rng.randrange(4)
        if kind == 0:
            return data[: self.rng.randrange(1, len(data) + 1)]
        if kind == 1:
            return data + bytes(self.rng.randrange(1, 5))
        if kind == 2:
            return self.rng.randbytes(self.rng.randrange(1, 2 * HEADER_BYTES))
        at = self.rng.choice([2, 3, self.rng.randrange(HEADER_BYTES)])
        bits = 1 << self.rng.randrange(8)
        if at == 2 and (bits & 6 or not self.routes):
            bits = 6 if self.routes else 8  # both bits of a route: another one, or none that exists
        return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]

    def bundles(self, packets: int) -> Iterator[tuple[Bundle, int]]:
        """Packets in bundles of equal size and port, as a link hands them over; small windows make conflicts common."""
        waiting: dict[tuple[int, int], list[bytes]] = {}
        crowded = any(job.workers > 5 for job, _ in self.jobs.values())  # each of 64 ports would wait for long
        most = 1 if crowded else self.rng.choice([2, 9, 30])
        for _ in range(packets):
            data, port = self.packet()
            waiting.setdefault((port, len(data)), []).append(data)
            for key in [k for k in waiting if len(waiting[k]) >= self.rng.randint(1, most)]:
                rows = waiting.pop(key)
                skew = self.rng.randrange(8)  # a bundle may lie anywhere
                yield np.frombuffer(bytes(skew) + b"".join(rows), np.uint8)[skew:].reshape(len(rows), -1), key[0]

    def change(self, planes: list[DataPlane]) -> None:
        """A generation ends, or a job leaves and comes back."""
        job, ports = self.rng.choice(list(self.jobs.values()))
        if self.rng.random() < 0.3:
            for plane in planes:
                plane.evict(job.job_id)
            return
        job = replace(job, generation=(job.generation + 1) % MODULUS)
        self.jobs[job.job_id] = (job, ports)
        for plane in planes:
            self.admit(plane, job, ports)


def gives(route: Route, owner: int, rank: int) -> bool:
    return route is Route.ALL or (rank == owner) == (route is Route.FROM_OWNER)


def sent(plane: DataPlane, bundle: Bundle, port: int) -> list[tuple[int, bytes]]:
    """(port, frame) of everything that goes out, in order for each port."""
    frames = [(p, row.tobytes()) for out in plane.process(bundle, port) for row in out.bundle for p in out.ports]
    return sorted(frames, key=lambda frame: frame[0])  # stable: the order per port is kept


@pytest.mark.parametrize("dataplane", OTHERS)
def test_agrees_with_the_reference(dataplane: str, seed: int) -> None:
    check_agreement(DATAPLANES[dataplane], seed)


@pytest.mark.parametrize("dataplane", [name for name in OTHERS if DATAPLANES[name].leaf])
def test_agrees_with_the_reference_below_another_switch(dataplane: str, seed: int) -> None:
    check_agreement(DATAPLANES[dataplane], seed, packets=300, parent=PARENT)


def check_agreement(
    make: Callable[[int, int], DataPlane],
    seed: int,
    packets: int = 600,
    elements: Sequence[int] = ELEMENTS,
    routes: bool = True,
    parent: Parent | None = None,
    kind: type[Traffic] = Traffic,
) -> int:
    """Show the reference and a plane made by `make` the same traffic; how many packets it was."""
    traffic = kind(seed, elements, routes, parent)
    planes = [maker(traffic.slots, max(elements)) for maker in (DATAPLANES["reference"], make)]
    for plane in planes:
        traffic.start(plane)
    for bundle, port in traffic.bundles(packets):
        before = bundle.copy()
        expected, actual = (sent(plane, bundle, port) for plane in planes)
        assert expected == actual
        assert np.array_equal(bundle, before), "a data plane must not write into what it was given"
        assert all(row[3] & FLAG_RESULT for to, row in actual if parent is None or to != parent.port)
        if traffic.rng.random() < 0.02:
            traffic.change(planes)
    assert planes[0].counters == planes[1].counters
    for job, _ in traffic.jobs.values():
        for stream in job.streams:
            for slot in range(stream.first_slot, stream.first_slot + stream.window_slots):
                for version in (0, 1):
                    try:
                        view = planes[0].seen(slot, version)
                    except KeyError:
                        continue
                    assert view == planes[1].seen(slot, version)
    return sum(planes[0].counters.values())


class Watch:
    """A reference switch that takes packets one by one and notes what happened to which kind of packet."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.plane = DATAPLANES["reference"](traffic.slots, max(ELEMENTS))
        traffic.start(self.plane)
        self.first_generations = {job.job_id: job.generation for job, _ in traffic.jobs.values()}
        self.crossed: set[tuple[int, int]] = set()
        self.last_sent = ""
        self.reached: Counter[str] = Counter()

    def take(self, row: Bundle, port: int) -> None:
        before = dict(self.plane.counters)
        try:
            packet = decode(row.tobytes())
            held = self.plane.seen(packet.slot, packet.version).chunk
        except (DecodeError, KeyError):
            packet, held = None, 0
        results = self.plane.process(row[np.newaxis, :], port)
        (outcome,) = (name for name, packets in self.plane.counters.items() if packets != before.get(name, 0))
        self.reached[outcome] += 1
        if packet is None:
            return
        job = self.traffic.jobs.get(packet.job)
        if outcome == "drop_generation" and job and packet.generation == job[0].generation - 1:
            self.reached["stale generation"] += 1
        if outcome == "drop_rank" and packet.close:
            self.reached["CLOSE"] += 1
        for result in results[:1]:
            self.reached[f"{outcome}, marked: {decode(result.bundle[0].tobytes()).marked}, by {packet.marked}"] += 1
        if outcome == "drop_older" and packet.chunk > MODULUS - NEAR and held < NEAR:
            self.reached["older across the wrap-around"] += 1
        if job and outcome in ("broadcast", "reply", "absorbed"):
            self.accepted(packet, outcome, job[0], held)

    def accepted(self, packet: Packet, outcome: str, job: JobConfig, held: int) -> None:
        reached, place = self.reached, (packet.slot, packet.version)
        if outcome != "absorbed":
            if self.last_sent not in ("", f"{outcome} {packet.job}"):
                reached["results of one bundle that go different ways"] += 1
            if outcome == "broadcast" and self.last_sent.startswith(outcome) and self.last_sent[10:] != str(packet.job):
                reached["broadcasts of two jobs in a row"] += 1
            self.last_sent = f"{outcome} {packet.job}"
        if held > MODULUS - NEAR and packet.chunk < NEAR:
            self.crossed.add(place)
            reached["taken over across the wrap-around"] += 1
        if place in self.crossed and packet.chunk < NEAR:
            reached[f"{outcome} after the wrap-around"] += 1
        reached[f"{outcome} of {job.workers} workers"] += 1
        reached[f"{outcome} of {packet.route.name}, {'values' if packet.values.size else 'header-only'}"] += 1
        reached[f"{outcome} of {job.elements} elements, {packet.op.name}"] += 1
        if job.generation != self.first_generations[packet.job]:
            reached[f"{outcome} in a later generation"] += 1


def test_traffic_reaches_every_verdict_and_reason() -> None:
    reached: Counter[str] = Counter()
    for seed in range(80):
        traffic = Traffic(seed)
        watch = Watch(traffic)
        for bundle, port in traffic.bundles(600):
            reached["unaligned bundle"] += bundle.ctypes.data % 4 != 0
            watch.last_sent = ""
            for row in bundle:
                watch.take(row, port)
            if traffic.rng.random() < 0.02:
                traffic.change([watch.plane])
        reached += watch.reached
    drops = "short magic wire_version op flags length result job generation stream slot rank port owner elements"
    verdicts = ("absorbed", "broadcast", "reply")
    kinds = [
        "ALL, values",
        *(f"{route.name}, {size}" for route in list(Route)[1:] for size in ("values", "header-only")),
    ]
    wanted = [
        *(f"drop_{name}" for name in (*drops.split(), "older", "early", "duplicate")),
        *verdicts,
        *(f"{verdict} {what}" for verdict in verdicts for what in ("after the wrap-around", "in a later generation")),
        *(f"{verdict} of {workers} workers" for verdict in verdicts for workers in WORKERS),
        *(f"{verdict} of {e} elements, {op.name}" for verdict in verdicts for e in ELEMENTS for op in Op),
        *(f"{verdict} of {kind}" for verdict in verdicts for kind in kinds),
        *("older across the wrap-around", "taken over across the wrap-around", "stale generation"),
        *(f"{verdict}, marked: {marks}" for verdict in verdicts[1:] for marks in MARKS),
        *(
            "unaligned bundle",
            "results of one bundle that go different ways",
            "broadcasts of two jobs in a row",
            "CLOSE",
        ),
    ]
    wanted.remove("absorbed of 1 workers")  # one worker is complete at once
    assert [f"{name}: {reached[name]}" for name in wanted if reached[name] < 5] == []
    assert {name for name in reached if name.startswith("drop_")} <= set(wanted)


def test_traffic_below_another_switch_reaches_every_outcome() -> None:
    reached: Counter[str] = Counter()
    for seed in range(30):
        traffic = Traffic(seed, (3, 8), parent=PARENT)
        plane = DATAPLANES["reference"](traffic.slots, 8)
        traffic.start(plane)
        for bundle, port in traffic.bundles(600):
            plane.process(bundle, port)
        reached += Counter(plane.counters)
    wanted = (
        *LEAF_OUTCOMES,
        "broadcast",
        "reply",
        "absorbed",
        "drop_older",
        "drop_early",
        "drop_duplicate",
        "drop_result",
    )
    assert [f"{name}: {reached[name]}" for name in wanted if reached[name] < 10] == []
