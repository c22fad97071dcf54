"""The fastest data plane that works on this machine: each is compared with the reference before it is used.

The test is short (some milliseconds), always the same, and meant for what goes wrong on a machine and not in the code:
a library that is missing, built from other sources, or miscompiled. The tests of the repository do the rest.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import SwitchaggError
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import HEADER_BYTES, Bundle, Op, Packet, Route, encode

ELEMENTS_MOST = 1024
SLOTS_LEAST = 6
TURNS = 6
SEED = 1

WORKERS = 3
PORTS = (4, 5, 6)
OTHER = JobConfig(9, 1, 1, 1, (StreamConfig(5, 1),))
"""A second job: one worker, at port 4 as well, so that the same port sends for both."""


@dataclass(frozen=True)
class Choice:
    """The plane to use, and why not each faster one: name -> reason, in the order they were tried."""

    name: str
    passed_over: dict[str, str]

    def __str__(self) -> str:
        """For example "reference (native passed over: libswitchagg.so was not built; …)"."""
        reasons = "; ".join(f"{name} passed over: {reason}" for name, reason in self.passed_over.items())
        return f"{self.name} ({reasons})" if reasons else self.name


class Datagram(NamedTuple):
    """A packet that arrives by a port, and a text on what is special about it."""

    what: str
    data: bytes
    port: int


def fastest(slots: int, elements: int) -> Choice:
    """The first `tested` plane that passes for a switch of this size; `reference` if none does.

    `xdp` is not among them: it needs root and the names of interfaces, and on veth it is the slower.
    """
    passed_over: dict[str, str] = {}
    for name in (name for name, kind in DATAPLANES.items() if kind.tested):
        reason = fault(name, slots, elements)
        if not reason:
            return Choice(name, passed_over)
        passed_over[name] = reason
    return Choice("reference", passed_over)


def fault(name: str, slots: int, elements: int) -> str:
    """Why this data plane can't be used for a switch of this size: one line; "" if it can."""
    try:
        return difference(DATAPLANES[name], max(slots, SLOTS_LEAST), elements)
    except SwitchaggError as error:
        return str(error).removeprefix(f"data plane {name}: ")
    except Exception as error:  # whatever it is, the next plane serves
        return f"its self-test failed: {type(error).__name__}: {' '.join(str(error).split())}"


def difference(maker: Callable[[int, int], DataPlane], slots: int, elements: int) -> str:
    """The first packet on which a data plane and the reference differ, as one line; "" if there is none.

    maker(slots, elements) as in DATAPLANES; slots: SLOTS_LEAST or more. Raises what the plane raises.
    """
    plane, reference = maker(slots, elements), DATAPLANES["reference"](slots, elements)
    chance = random.Random(SEED)
    width = min(elements, ELEMENTS_MOST)
    first = JobConfig(3, MODULUS - 1, WORKERS, width, (StreamConfig(0, 2), StreamConfig(2, 1)))
    number = 0
    for job in (first, replace(first, generation=0)):  # the second ends the first
        for tested in (plane, reference):
            tested.admit(job, PORTS)
            tested.admit(OTHER, PORTS[:1])
        for rows in bundles(traffic(job, chance), chance):
            wrong = first_difference(plane, reference, rows)
            if wrong is not None:
                return f"its self-test failed at packet {number + wrong}, {rows[wrong].what}"
            number += len(rows)
        for slot in range(*job.slots):
            for version in (0, 1):
                if plane.seen(slot, version) != reference.seen(slot, version):
                    return f"its self-test failed: after packet {number - 1} it holds another chunk in slot {slot}"
        for tested in (plane, reference):
            tested.evict(OTHER.job_id)
    for counter, packets in reference.counters.items():
        if plane.counters.get(counter, 0) != packets:
            return f"its self-test failed: {counter} counts {plane.counters.get(counter, 0)} packets, not {packets}"
    return ""


def first_difference(plane: DataPlane, reference: DataPlane, rows: list[Datagram]) -> int | None:
    """Index of the first datagram of a bundle that the two answer differently; None if they agree."""
    bundle, port = as_bundle(rows), rows[0].port
    expected: dict[int, list[tuple[int, bytes]]] = {}
    for index in range(len(rows)):
        for to, frame in frames(reference, bundle[index : index + 1], port):
            expected.setdefault(to, []).append((index, frame))
    actual: dict[int, list[bytes]] = {}
    for to, frame in frames(plane, bundle.copy(), port):
        actual.setdefault(to, []).append(frame)
    wrong = []
    for to in expected.keys() | actual.keys():
        wanted, got = expected.get(to, []), actual.get(to, [])
        for place in range(max(len(wanted), len(got))):
            if place >= len(wanted):
                wrong.append(len(rows) - 1)  # one answer too many
                break
            if place >= len(got) or got[place] != wanted[place][1]:
                wrong.append(wanted[place][0])
                break
    return min(wrong, default=None)


def frames(plane: DataPlane, bundle: Bundle, port: int) -> Iterator[tuple[int, bytes]]:
    """(port, frame) of all that goes out."""
    for output in plane.process(bundle, port):
        for row in output.bundle:
            yield from ((to, row.tobytes()) for to in output.ports)


def as_bundle(rows: list[Datagram]) -> Bundle:
    return np.frombuffer(b"".join(row.data for row in rows), np.uint8).reshape(len(rows), -1)


def bundles(datagrams: Iterator[Datagram], chance: random.Random) -> Iterator[list[Datagram]]:
    """The datagrams in bundles of equal port and size, 1 to 5 each, as a link hands them over."""
    waiting: dict[tuple[int, int], list[Datagram]] = {}
    for datagram in datagrams:
        key = (datagram.port, len(datagram.data))
        waiting.setdefault(key, []).append(datagram)
        if len(waiting[key]) >= chance.randint(1, 5):
            yield waiting.pop(key)
    yield from waiting.values()


def traffic(job: JobConfig, chance: random.Random) -> Iterator[Datagram]:
    """Packets of a job's workers over some turns of their slots, in disorder, and of unknown senders.

    Chunk numbers pass 2**32 on the way; most chunks are completed, some repeated, some come too late.
    """
    values = np.random.default_rng(SEED)
    for turn in range(-TURNS // 2, TURNS // 2):
        due = [
            contribution(job, stream, offset, version, turn, rank, values)
            for stream, config in enumerate(job.streams)
            for offset in range(config.window_slots)
            for version in (0, 1)
            for rank in range(WORKERS)
        ]
        chance.shuffle(due)
        for packet in due:
            port = PORTS[packet.rank]
            fate = chance.random()
            if fate >= 0.05:  # the rest is lost
                yield Datagram(f"rank {packet.rank}'s share of chunk {packet.chunk}", encode(packet), port)
            if fate > 0.7:
                again = replace(packet, retransmission=True)
                yield Datagram(f"rank {packet.rank}'s chunk {packet.chunk} once more", encode(again), port)
            if 0.5 < fate < 0.6:
                step = 2 * job.streams[packet.stream].window_slots
                late = replace(packet, chunk=(packet.chunk - step) % MODULUS)
                yield Datagram(f"chunk {late.chunk}, which is long over", encode(late), port)
            if 0.3 < fate < 0.5:
                yield unknown_sender(packet, port, chance)
        alone = Packet(OTHER.job_id, OTHER.generation, 0, 0, Op.MAX, 5, turn % 2, turn % 2, np.array([turn], np.int32))
        yield Datagram("a packet of another job at the same port", encode(alone), PORTS[0])


def contribution(
    job: JobConfig, stream: int, offset: int, version: int, turn: int, rank: int, values: np.random.Generator
) -> Packet:
    """A rank's packet. Odd turns take the largest value, even ones the sum, both of all int32; routes take turns."""
    config = job.streams[stream]
    route = Route((turn + offset) % len(Route))
    owner = (turn + version) % WORKERS if route else 0
    gives = route is Route.ALL or (rank == owner) == (route is Route.FROM_OWNER)
    return Packet(
        job=job.job_id,
        generation=job.generation,
        stream=stream,
        rank=rank,
        op=Op.MAX if turn % 2 else Op.SUM,
        slot=config.first_slot + offset,
        version=version,
        chunk=(offset + (2 * turn + version) * config.window_slots) % MODULUS,
        values=values.integers(-(2**31), 2**31, job.elements if gives else 0).astype(np.int32),
        route=route,
        owner=owner,
        marked=bool(values.random() < 0.2),
    )


def unknown_sender(packet: Packet, port: int, chance: random.Random) -> Datagram:
    """A packet that breaks one rule."""
    name, changed = chance.choice(
        (
            ("an unknown job", {"job": 77}),
            ("another generation", {"generation": (packet.generation + 1) % MODULUS}),
            ("a stream the job hasn't", {"stream": 2}),
            ("a slot the stream hasn't", {"slot": 4}),
            ("a rank the job hasn't", {"rank": WORKERS}),
            ("an owner the job hasn't", {"route": Route.TO_OWNER, "owner": WORKERS}),
            ("a result", {"result": True}),
            ("another rank's port", {}),
            ("a chunk far ahead", {"chunk": (packet.chunk + (1 << 30)) % MODULUS}),
            ("a value too many", {"values": np.zeros(len(packet.values) + 1, np.int32)}),
            ("a header cut short", None),
            ("a wrong magic number", None),
        )
    )
    if name == "a header cut short":
        return Datagram(name, encode(packet)[: HEADER_BYTES - 1], port)
    if name == "a wrong magic number":
        return Datagram(name, b"\0" + encode(packet)[1:], port)
    if name == "another rank's port":
        port = PORTS[(packet.rank + 1) % WORKERS]
    return Datagram(name, encode(replace(packet, **(changed or {}))), port)
