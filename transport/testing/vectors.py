"""Golden packets (tests/vectors/README.md) against a data plane in memory, or live, over UDP.

A vector is a test of any switch that keeps the rules: which packets come in by which port, and what goes out for each.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from switchagg.aggregator import Parent, SlotView
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import HEADER_BYTES, JOB_AT
from transport.testing.jobs import Unexpected
from transport.testing.joined import JoinedSwitch
from transport.testing.packets import describe, difference
from transport.testing.switches import Port, Switch, SwitchUnderTest

DIRECTIVES = ("switch", "job", "refuse", "evict", "packet", "expect", "seen", "counter")

OTHERS_JOB = 65_535
"""Id of the job of those who are in no other, where the file chooses ids."""

_NUMBERED = struct.Struct(">HHI")
"""Job, slot and generation in a packet."""


class VectorTarget(Protocol):
    """What a vector is run against."""

    def start(self, slots: int, elements: int, ports: Sequence[int], unknown_senders: Sequence[int]) -> None:
        """A fresh switch; ports: all that the vector names; unknown_senders: those that send while no job has them."""

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        """Raises JobError if the switch refuses it."""

    def evict(self, job_id: int) -> None: ...

    def send(self, port: int, datagram: bytes) -> None:
        """A datagram comes in; returns once the switch has dealt with it."""

    def receive(self, port: int) -> bytes | None:
        """The next that went out by a port, None if none does."""

    def left(self) -> list[tuple[int, bytes]]:
        """What went out and was not received."""

    def seen(self, slot: int, version: int) -> SlotView | None:
        """None: no rank was seen, and more is not known."""

    def counter(self, name: str) -> int: ...


class PlaneTarget:
    """A data plane in memory. make: from slots and elements, such as an entry of DATAPLANES."""

    def __init__(self, make: Callable[[int, int], DataPlane]) -> None:
        self._make = make
        self._out: list[tuple[int, bytes]] = []
        self.plane: DataPlane

    def start(self, slots: int, elements: int, ports: Sequence[int], unknown_senders: Sequence[int]) -> None:
        self.plane = self._make(slots, elements)

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        self.plane.admit(job, ports, parent)

    def evict(self, job_id: int) -> None:
        self.plane.evict(job_id)

    def send(self, port: int, datagram: bytes) -> None:
        for output in self.plane.process(np.frombuffer(datagram, np.uint8)[np.newaxis, :], port):
            self._out += [(to, row.tobytes()) for row in output.bundle for to in output.ports]

    def receive(self, port: int) -> bytes | None:
        index = next((i for i, (to, _) in enumerate(self._out) if to == port), None)
        return None if index is None else self._out.pop(index)[1]

    def left(self) -> list[tuple[int, bytes]]:
        return self._out

    def seen(self, slot: int, version: int) -> SlotView:
        return self.plane.seen(slot, version)

    def counter(self, name: str) -> int:
        return self.plane.counters.get(name, 0)


class LiveTarget:
    """A switch on a UDP socket; ports are sockets. make: from slots and elements; `close` ends what it made.

    A controller gives jobs other numbers than the file: then packets, and what is asked of slots, are renumbered.
    """

    def __init__(self, make: Callable[[int, int], SwitchUnderTest]) -> None:
        self._make = make
        self._ports: dict[int, Port] = {}
        self._granted: dict[int, tuple[JobConfig, JobConfig]] = {}
        self._counted: dict[str, int] = {}
        self.switch: SwitchUnderTest | None = None

    def start(self, slots: int, elements: int, ports: Sequence[int], unknown_senders: Sequence[int]) -> None:
        """Unknown senders get a job and a slot: else the switch's loop would drop their packets before its rules do."""
        self.switch = switch = self._make(slots + bool(unknown_senders), elements)
        self._ports = {port: switch.open_port() for port in ports}
        if unknown_senders:
            neighbours = JobConfig(OTHERS_JOB, 0, len(unknown_senders), 1, (StreamConfig(slots, 1),))
            switch.admit(neighbours, [self._ports[port].address for port in unknown_senders])

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        above = None if parent is None else (self._ports[parent.port].address, parent.rank)
        earlier = self._granted.get(job.job_id)
        requested = replace(job, job_id=earlier[1].job_id) if earlier else job
        self._granted[job.job_id] = (
            job,
            self._running.admit(requested, [self._ports[port].address for port in ports], above),
        )
        self._counted = self._counted or self._running.counters()

    def evict(self, job_id: int) -> None:
        self._running.evict(self._granted[job_id][1].job_id)

    def send(self, port: int, datagram: bytes) -> None:
        self._running.deliver(self._ports[port], self._renumbered(datagram, out=True))

    def receive(self, port: int) -> bytes | None:
        received = self._ports[port].receive()
        return None if received is None else self._renumbered(received, out=False)

    def left(self) -> list[tuple[int, bytes]]:
        received = ((number, port.receive(0)) for number, port in self._ports.items())
        return [(number, self._renumbered(data, out=False)) for number, data in received if data is not None]

    def seen(self, slot: int, version: int) -> SlotView | None:
        pairs = (pair for pair in self._granted.values() if pair[0].slots[0] <= slot < pair[0].slots[1])
        wanted, granted = next(pairs)
        return self._running.seen(_moved(slot, wanted, granted), version)

    def counter(self, name: str) -> int:
        return self._running.counters().get(name, 0) - self._counted.get(name, 0)

    def close(self) -> None:
        if self.switch is not None:
            self.switch.close()

    @property
    def _running(self) -> SwitchUnderTest:
        assert self.switch is not None, "the parser has seen that `switch` comes first"
        return self.switch

    def _renumbered(self, data: bytes, out: bool) -> bytes:
        """A packet of the file as the switch's job has it (out), or the other way round; jobs of the file that it never
        admits get ids that no controller gives."""
        pairs = [pair if out else pair[::-1] for pair in self._granted.values()]
        if len(data) < HEADER_BYTES or all(source == target for source, target in pairs):
            return data
        job, slot, generation = _NUMBERED.unpack_from(data, JOB_AT)
        pair = next((pair for pair in pairs if pair[0].job_id == job), None)
        if pair is None:
            job |= 0x8000
        else:
            source, target = pair
            job, slot = target.job_id, _moved(slot, source, target)
            generation = (generation + target.generation - source.generation) % MODULUS
        return data[:JOB_AT] + _NUMBERED.pack(job, slot, generation) + data[JOB_AT + _NUMBERED.size :]


def _moved(slot: int, source: JobConfig, target: JobConfig) -> int:
    """A slot of the same stream; what was outside of all stays outside."""
    for old, new in zip(source.streams, target.streams, strict=True):
        if 0 <= slot - old.first_slot < old.window_slots:
            return slot - old.first_slot + new.first_slot
    return target.slots[1] + slot % 256


def run_vector(text: str, target: VectorTarget, name: str = "") -> int:
    """Run a vector; returns the number of its packets. name: of the file, for messages.

    Raises Unexpected where the switch does something else, with the line and what differs, field by field;
    SwitchaggError for a line that is none.
    """
    packets, latest, numbered = 0, name, _parsed(text, name)
    for place, words in numbered:
        if words[0] != "expect":
            _nothing_left(latest, target)
        if words[0] == "packet":
            packets, latest = packets + 1, place
        with _read(place):
            if words[0] == "switch":
                target.start(int(words[1]), int(words[2]), *_ports_of(numbered))
            elif words[0] in ("seen", "counter"):
                _look(place, words, target)
            else:
                _act(place, words, target)
    _nothing_left(latest, target)
    return packets


def live_target(dataplane: str, control: str | None = None) -> LiveTarget:
    """For `run_vector` over UDP: on loopback, a switch of ours with this data plane, or that of a control address,
    "tcp://host:port"."""

    def make(slots: int, elements: int) -> SwitchUnderTest:
        return Switch(dataplane, slots=slots, elements=elements) if control is None else JoinedSwitch(control)

    return LiveTarget(make)


def suits(text: str, dataplane: str) -> bool:
    """Whether a data plane has the rule of a vector: not all can be below another switch, or have partial sums."""
    kind = DATAPLANES[dataplane]
    return (kind.leaf or " parent=" not in text) and (kind.partial or " partial=" not in text)


def _parsed(text: str, name: str) -> list[tuple[str, list[str]]]:
    lines: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split("#")[0].split():
            place = f"{name}:{number}: {' '.join(words)}"
            if words[0] not in DIRECTIVES:
                raise SwitchaggError(f"{place}: a line begins with {', '.join(DIRECTIVES)}")
            if (words[0] == "switch") != (not lines):
                raise SwitchaggError(f"{place}: `switch SLOTS ELEMENTS` is the first line, and only that")
            lines.append((place, words))
    return lines


@contextmanager
def _read(place: str) -> Iterator[None]:
    """Raises SwitchaggError for a line whose words are not those of its directive."""
    try:
        yield
    except (ValueError, KeyError, IndexError) as error:
        raise SwitchaggError(f"{place}: not as tests/vectors/README.md says: {error!r}") from error


def _act(place: str, words: list[str], target: VectorTarget) -> None:
    directive, *rest = words
    match directive:
        case "job":
            target.admit(*_job_of(rest))
        case "refuse":
            try:
                target.admit(*_job_of(rest))
            except JobError:
                return
            raise Unexpected(f"{place}: the switch took the job")
        case "evict":
            target.evict(int(rest[0]))
        case "packet":
            target.send(int(rest[0]), bytes.fromhex("".join(rest[1:])))
        case "expect":
            _compare(place, target.receive(int(rest[0])), "".join(rest[1:]))


def _look(place: str, words: list[str], target: VectorTarget) -> None:
    if words[0] == "counter":
        if (packets := target.counter(words[1])) != int(words[2]):
            raise Unexpected(f"{place}: it is {packets}")
        return
    _, slot, version, chunk, names = words
    view, ranks = target.seen(int(slot), int(version)), tuple(_numbers(names.strip("-")))
    if view is None and ranks:
        raise Unexpected(f"{place}: no rank was seen")
    if view is not None and (view.chunk, view.ranks) != (int(chunk), ranks):
        raise Unexpected(f"{place}: the slot holds chunk {view.chunk}, of ranks {list(view.ranks)}")


def _compare(place: str, output: bytes | None, pattern: str) -> None:
    if output is None:
        raise Unexpected(f"{place}: nothing was sent there")
    digits = output.hex()
    filled = "".join(digits[at : at + 1] or "0" if sign == "*" else sign.lower() for at, sign in enumerate(pattern))
    if lines := difference(bytes.fromhex(filled), output):
        raise Unexpected("\n".join([f"{place}: sent was {describe(output)}", *(f"    {line}" for line in lines)]))


def _nothing_left(packet: str, target: VectorTarget) -> None:
    if left := target.left():
        lines = [f"    to port {port}: {describe(data)}" for port, data in left]
        raise Unexpected("\n".join([f"{packet}: nothing that the file expects is this:", *lines]))


def _job_of(words: Sequence[str]) -> tuple[JobConfig, list[int], Parent | None]:
    fields = dict(word.split("=") for word in words)
    streams = tuple(StreamConfig(*_numbers(part, "+")) for part in fields["streams"].split(","))
    backups, close_after_ns = _numbers(fields.get("partial", "0,0"))
    job = JobConfig(
        job_id=int(fields["id"]),
        generation=int(fields["generation"]),
        workers=int(fields["workers"]),
        elements=int(fields["elements"]),
        streams=streams,
        backups=backups,
        close_after_ns=close_after_ns,
    )
    parent = Parent(*_numbers(fields["parent"])) if "parent" in fields else None
    return job, _numbers(fields["ports"]), parent


def _ports_of(lines: list[tuple[str, list[str]]]) -> tuple[list[int], list[int]]:
    """All ports that a vector names, and of these those that send while no job has them."""
    ports: set[int] = set()
    unknown_senders: set[int] = set()
    jobs: dict[int, set[int]] = {}
    for place, (directive, *rest) in lines:
        if directive in ("job", "refuse"):
            with _read(place):
                job, numbers, parent = _job_of(rest)
            numbers = numbers if parent is None else [*numbers, parent.port]
            ports.update(numbers)
            if directive == "job":
                jobs[job.job_id] = set(numbers)
        elif directive == "evict":
            jobs.pop(int(rest[0]), None)
        elif directive in ("packet", "expect"):
            ports.add(port := int(rest[0]))
            if directive == "packet" and not any(port in numbers for numbers in jobs.values()):
                unknown_senders.add(port)
    return sorted(ports), sorted(unknown_senders)


def _numbers(text: str, between: str = ",") -> list[int]:
    return [int(part) for part in text.split(between)] if text else []
