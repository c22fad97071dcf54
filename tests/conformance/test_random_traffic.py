"""Every data plane against the reference on seeded random traffic: same bytes, same ports, same order, same counters.

The traffic knows the rules well enough to reach deep states (turns, completions, repeats, chunk numbers that wrap) and
breaks each of them now and then: strangers of every kind, garbage, forged lengths, generation changes, evictions.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from switchagg.dataplane import DATAPLANES, DataPlane
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import FLAG_RESULT, HEADER_BYTES, Bundle, Op, Packet, encode

OTHERS = [name for name in DATAPLANES if name != "reference"]


class Traffic:
    """Jobs on one switch, and what their workers, and strangers, send it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.jobs: dict[int, tuple[JobConfig, list[int]]] = {}
        self.turn: dict[tuple[int, int, int], int] = {}
        first = 0
        for job_id in range(self.rng.randint(1, 3)):
            streams = []
            for _ in range(self.rng.randint(1, 2)):
                streams.append(StreamConfig(first, self.rng.randint(1, 3)))
                first += streams[-1].window_slots
            workers = self.rng.choice([1, 2, 3, 5])
            job = JobConfig(job_id, self.rng.randrange(MODULUS), workers, self.rng.choice([1, 3, 8]), tuple(streams))
            self.jobs[job_id] = (job, [10 * job_id + rank for rank in range(workers)])
        self.slots = first

    def start(self, plane: DataPlane) -> None:
        for job, ports in self.jobs.values():
            plane.admit(job, ports)

    def packet(self) -> tuple[bytes, int]:
        """One datagram and the port it comes in by: mostly a member's, near the chunk its slot is at."""
        rng = self.rng
        job, ports = self.jobs[rng.choice(list(self.jobs))]
        stream = rng.randrange(len(job.streams))
        config = job.streams[stream]
        offset, version, rank = rng.randrange(config.window_slots), rng.randrange(2), rng.randrange(job.workers)
        key = (job.job_id, config.first_slot + offset, version)
        if rng.random() < 0.06:
            self.turn[key] = self.turn.get(key, -1) + rng.choice([1, 1, 1, 2, MODULUS // (4 * config.window_slots) - 3])
        turn = self.turn.get(key, 0) + rng.choice([0] * 12 + [-1, 1])
        packet = Packet(
            job=job.job_id,
            generation=job.generation,
            stream=stream,
            rank=rank,
            op=rng.choice([Op.SUM, Op.SUM, Op.MAX]),
            slot=config.first_slot + offset,
            version=version,
            chunk=(offset + (2 * turn + version) * config.window_slots) % MODULUS,
            values=self.values.integers(-(2**31), 2**31, job.elements).astype(np.int32),
            retransmission=rng.random() < 0.3,
        )
        port = ports[rank]
        if rng.random() < 0.15:
            packet, port = self.strange(packet, port)
        data = encode(packet)
        return (self.damaged(data) if rng.random() < 0.05 else data), port

    def strange(self, packet: Packet, port: int) -> tuple[Packet, int]:
        rng = self.rng
        changes = (
            {"job": rng.randrange(5)},
            {"generation": (packet.generation + rng.choice([-1, 1])) % MODULUS},
            {"stream": rng.randrange(4)},
            {"slot": rng.randrange(self.slots + 2)},
            {"rank": rng.randrange(8)},
            {"result": True},
            {"chunk": rng.randrange(MODULUS)},
            {"values": packet.values[:-1] if len(packet.values) > 1 else np.zeros(2, np.int32)},
            {},
        )
        change = rng.choice(changes)
        return replace(packet, **change), port if change else rng.randrange(40)

    def damaged(self, data: bytes) -> bytes:
        kind = self.rng.randrange(4)
        if kind == 0:
            return data[: self.rng.randrange(1, len(data) + 1)]
        if kind == 1:
            return data + bytes(self.rng.randrange(1, 5))
        if kind == 2:
            return self.rng.randbytes(self.rng.randrange(1, 2 * HEADER_BYTES))
        at = self.rng.choice([2, 3, self.rng.randrange(HEADER_BYTES)])
        return data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :]

    def bundles(self, packets: int) -> Iterator[tuple[Bundle, int]]:
        """Packets in bundles of equal size and port, as a link hands them over; small windows make conflicts common."""
        waiting: dict[tuple[int, int], list[bytes]] = {}
        for _ in range(packets):
            data, port = self.packet()
            waiting.setdefault((port, len(data)), []).append(data)
            for key in [k for k in waiting if len(waiting[k]) >= self.rng.choice([1, 2, 9])]:
                rows = waiting.pop(key)
                yield np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1), key[0]

    def change(self, planes: list[DataPlane]) -> None:
        """A generation ends, or a job leaves and comes back."""
        job, ports = self.rng.choice(list(self.jobs.values()))
        if self.rng.random() < 0.3:
            for plane in planes:
                plane.evict(job.job_id)
            return
        job = replace(job, generation=(job.generation + 1) % MODULUS)
        self.jobs[job.job_id] = (job, ports)
        self.turn = {key: turn for key, turn in self.turn.items() if key[0] != job.job_id}
        for plane in planes:
            plane.admit(job, ports)


def sent(plane: DataPlane, bundle: Bundle, port: int) -> list[tuple[int, bytes]]:
    """(port, frame) of everything that goes out, in order for each port."""
    frames = [(p, row.tobytes()) for out in plane.process(bundle, port) for row in out.bundle for p in out.ports]
    return sorted(frames, key=lambda frame: frame[0])  # stable: the order per port is kept


@pytest.mark.parametrize("dataplane", OTHERS)
def test_agrees_with_the_reference(dataplane: str, seed: int) -> None:
    traffic = Traffic(seed)
    planes = [DATAPLANES[name](traffic.slots, 8) for name in ("reference", dataplane)]
    for plane in planes:
        traffic.start(plane)
    for bundle, port in traffic.bundles(600):
        before = bundle.copy()
        expected, actual = (sent(plane, bundle, port) for plane in planes)
        assert expected == actual
        assert np.array_equal(bundle, before), "a data plane must not write into what it was given"
        assert all(row[3] & FLAG_RESULT for _, row in actual)
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


def test_traffic_reaches_every_verdict_and_reason() -> None:
    counters: dict[str, int] = {}
    for seed in range(60):
        traffic = Traffic(seed)
        plane = DATAPLANES["batched"](traffic.slots, 8)
        traffic.start(plane)
        for bundle, port in traffic.bundles(600):
            plane.process(bundle, port)
        for name, packets in plane.counters.items():
            counters[name] = counters.get(name, 0) + packets
    drops = (
        "short magic wire_version op flags length result job generation stream slot rank port elements older duplicate"
    )
    assert set(counters) == {"absorbed", "broadcast", "reply", *(f"drop_{name}" for name in drops.split())}
    assert min(counters.values()) >= 10
