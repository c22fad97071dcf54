"""Golden packets (tests/vectors/README.md) against a data plane in memory, or live, over UDP.

A vector is a test of any switch that keeps the rules: which packets come in by which port, and what goes out for each.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from switchagg.aggregator import Parent, SlotView
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.table import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig, StreamConfig
from transport.testing.jobs import Unexpected
from transport.testing.packets import describe, difference
from transport.testing.switches import Port, Switch, SwitchUnderTest

DIRECTIVES = ("switch", "job", "refuse", "evict", "packet", "expect", "seen", "counter")

OTHERS_JOB = 65_535
"""Id of a job that has all ports of a vector, so that a live switch takes packets from those of no other."""


class VectorTarget(Protocol):
    """What a vector is run against."""

    def start(self, slots: int, elements: int, ports: Sequence[int]) -> None:
        """A fresh switch; ports: all that the vector names."""

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        """Raises JobError if the switch refuses it."""

    def evict(self, job_id: int) -> None: ...

    def send(self, port: int, datagram: bytes) -> None:
        """A datagram comes in; returns once the switch has dealt with it."""

    def receive(self, port: int) -> bytes | None:
        """The next that went out by a port, None if none does."""

    def left(self) -> list[tuple[int, bytes]]:
        """What went out and was not received."""

    def seen(self, slot: int, version: int) -> SlotView: ...

    def counter(self, name: str) -> int: ...


class PlaneTarget:
    """A data plane in memory. make: from slots and elements, such as an entry of DATAPLANES."""

    def __init__(self, make: Callable[[int, int], DataPlane]) -> None:
        self._make = make
        self._out: list[tuple[int, bytes]] = []
        self.plane: DataPlane

    def start(self, slots: int, elements: int, ports: Sequence[int]) -> None:
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
    """A switch on a UDP socket; ports are sockets. make: from slots and elements; `close` ends what it made."""

    def __init__(self, make: Callable[[int, int], SwitchUnderTest]) -> None:
        self._make = make
        self._ports: dict[int, Port] = {}
        self.switch: SwitchUnderTest | None = None

    def start(self, slots: int, elements: int, ports: Sequence[int]) -> None:
        """With one slot more, for the job that makes all ports known."""
        self.switch = switch = self._make(slots + 1, elements)
        self._ports = {port: switch.open_port() for port in ports}
        if ports:
            others = JobConfig(OTHERS_JOB, 0, len(ports), 1, (StreamConfig(slots, 1),))
            switch.admit(others, [self._ports[port].address for port in ports])

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        above = None if parent is None else (self._ports[parent.port].address, parent.rank)
        self._running.admit(job, [self._ports[port].address for port in ports], above)

    def evict(self, job_id: int) -> None:
        self._running.evict(job_id)

    def send(self, port: int, datagram: bytes) -> None:
        self._running.deliver(self._ports[port], datagram)

    def receive(self, port: int) -> bytes | None:
        return self._ports[port].receive()

    def left(self) -> list[tuple[int, bytes]]:
        received = ((number, port.receive(0)) for number, port in self._ports.items())
        return [(number, data) for number, data in received if data is not None]

    def seen(self, slot: int, version: int) -> SlotView:
        view = self._running.seen(slot, version)
        if view is None:
            raise SwitchaggError("this switch doesn't say what its slots hold: leave `seen` out")
        return view

    def counter(self, name: str) -> int:
        return self._running.counters().get(name, 0)

    def close(self) -> None:
        if self.switch is not None:
            self.switch.close()

    @property
    def _running(self) -> SwitchUnderTest:
        assert self.switch is not None, "parse has seen that `switch` comes first"
        return self.switch


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
        try:
            _run_line(place, words, target, numbered)
        except (ValueError, KeyError, IndexError) as error:
            raise SwitchaggError(f"{place}: not as tests/vectors/README.md says: {error!r}") from error
    _nothing_left(latest, target)
    return packets


def run_live(text: str, dataplane: str, name: str = "") -> int:
    """`run_vector` over UDP on loopback, against a switch of ours with this data plane."""
    target = LiveTarget(lambda slots, elements: Switch(dataplane, slots=slots, elements=elements))
    try:
        return run_vector(text, target, name)
    finally:
        target.close()


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


def _run_line(place: str, words: list[str], target: VectorTarget, lines: list[tuple[str, list[str]]]) -> None:
    directive, *rest = words
    match directive:
        case "switch":
            target.start(int(rest[0]), int(rest[1]), _ports_of(lines))
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
        case "seen":
            view, wanted = target.seen(int(rest[0]), int(rest[1])), _numbers(rest[3].strip("-"))
            if (view.chunk, view.ranks) != (int(rest[2]), tuple(wanted)):
                raise Unexpected(f"{place}: the slot holds chunk {view.chunk}, of ranks {list(view.ranks)}")
        case "counter":
            if (packets := target.counter(rest[0])) != int(rest[1]):
                raise Unexpected(f"{place}: it is {packets}")


def _compare(place: str, sent: bytes | None, pattern: str) -> None:
    if sent is None:
        raise Unexpected(f"{place}: nothing was sent there")
    digits = sent.hex()
    filled = "".join(digits[at : at + 1] or "0" if sign == "*" else sign.lower() for at, sign in enumerate(pattern))
    if lines := difference(bytes.fromhex(filled), sent):
        raise Unexpected("\n".join([f"{place}: sent was {describe(sent)}", *(f"    {line}" for line in lines)]))


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


def _ports_of(lines: list[tuple[str, list[str]]]) -> list[int]:
    """All ports that a vector names, sorted."""
    ports: set[int] = set()
    for place, words in lines:
        if words[0] in ("packet", "expect"):
            ports.add(int(words[1]))
        for names in re.findall(r" ports=([\d,]+)", place):
            ports.update(_numbers(names))
        ports.update(int(port) for port in re.findall(r" parent=(\d+)", place))
    return sorted(ports)


def _numbers(text: str, between: str = ",") -> list[int]:
    return [int(part) for part in text.split(between)] if text else []
