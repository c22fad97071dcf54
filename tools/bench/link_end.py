"""An end of a link of the benchmark: a process alone in a namespace that executes commands.

    python -m tools.bench.link_end '{"member": 0, "addresses": […]}'

Commands open a candidate, and run messages of one size from member 0 to member 1.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import msgspec
import numpy as np

from emulation.testbed.children import ChildCommand, ChildReport, Done, serve
from transport.meshes.mesh import MessageReceived, MessageSent
from transport.meshes.mesh_loop import CREDIT_BYTES
from transport.meshes.mesh_opening import connect_mesh

OPEN_S = 20.0
RUN_S = 60.0
MESSAGES_BELOW = 4


class EndPlace(msgspec.Struct, frozen=True):
    """addresses: of both members; each candidate has a port of its own."""

    member: int
    addresses: tuple[str, ...]
    bytes_most: int


class OpenCandidate(ChildCommand):
    contender: str
    port: int


class RunTransfer(ChildCommand):
    contender: str
    size_bytes: int
    count: int


class TransferMeasured(ChildReport):
    """duration_ns: at the receiver, from the first message to the last."""

    duration_ns: int
    cpu_ns: int


class LinkCandidate(Protocol):
    """An end of a candidate."""

    def send(self, data: memoryview, count: int) -> None:
        """Send this `count` times."""

    def receive(self, size_bytes: int, count: int) -> int:
        """Take as many; ns from the first to the last."""

    def close(self) -> None: ...


class MeshCandidate:
    """A mesh, driven as by `transport.meshes.mesh_loop`: with the byte credit that groups have, or four messages."""

    def __init__(self, link: str, member: int, addresses: list[tuple[str, int]]) -> None:
        self._mesh = connect_mesh(link, member, addresses, job="bench", method="links", timeout_s=OPEN_S)

    def send(self, data: memoryview, count: int) -> None:
        mesh, size, below, started, ended = self._mesh, len(data), 0, 0, 0
        credit = max(CREDIT_BYTES, MESSAGES_BELOW * size)
        until = time.monotonic() + RUN_S
        while ended < count:
            while started < count and below < credit:
                mesh.send(1, started.to_bytes(16, "big"), data, started)
                started += 1
                below += size
            events = mesh.receive()
            back = sum(isinstance(event, MessageSent) for event in events)
            ended += back
            below -= back * size
            if not back:
                _check(until, f"{ended} of {count} messages sent", events)
                mesh.wait(0.05)

    def receive(self, size_bytes: int, count: int) -> int:
        mesh, received, begun_ns, last_ns = self._mesh, 0, 0, 0
        until = time.monotonic() + RUN_S
        while received < count:
            events = mesh.receive()
            for event in events:
                if isinstance(event, MessageReceived):
                    if len(event.data) != size_bytes or event.head != received.to_bytes(16, "big"):
                        raise RuntimeError(f"message {received} came as {event.head.hex()}, {len(event.data)} bytes")
                    received += 1
                    last_ns = time.monotonic_ns()
                    begun_ns = begun_ns or last_ns
            if not events:
                mesh.wait(0.05)
            _check(until, f"{received} of {count} messages came", events)
        while mesh.receive():  # acknowledgements go out
            pass
        return last_ns - begun_ns

    def close(self) -> None:
        self._mesh.close(0.0)


def _check(until: float, words: str, events: Any) -> None:
    lost = [event for event in events if not isinstance(event, MessageReceived | MessageSent)]
    if lost or time.monotonic() > until:
        raise RuntimeError(f"{words}: {lost[0].reason if lost else 'no more came'}")


def opened(contender: str, member: int, addresses: list[tuple[str, int]]) -> LinkCandidate:
    """`plain WAY`, or the name of a link."""
    kind, _, way = contender.partition(" ")
    if kind == "plain":
        from tools.bench.plain_zeromq import PlainEnd

        return PlainEnd(way, member, addresses[1])
    return MeshCandidate(contender, member, addresses)


class LinkExecutor:
    """Executes commands."""

    def __init__(self, place: EndPlace) -> None:
        self._place = place
        self._data = np.random.default_rng(7).integers(0, 256, place.bytes_most, np.uint8).data
        self._ends: dict[str, LinkCandidate] = {}

    def carry_out(self, order: OpenCandidate | RunTransfer) -> ChildReport:
        """The answer to one order."""
        if isinstance(order, OpenCandidate):
            addresses = [(host, order.port) for host in self._place.addresses]
            self._ends[order.contender] = opened(order.contender, self._place.member, addresses)
            return Done()
        cpu_ns, duration_ns, end = time.process_time_ns(), 0, self._ends[order.contender]
        if self._place.member:
            duration_ns = end.receive(order.size_bytes, order.count)
        else:
            end.send(self._data[: order.size_bytes], order.count)
        return TransferMeasured(duration_ns, time.process_time_ns() - cpu_ns)


if __name__ == "__main__":
    serve(EndPlace, OpenCandidate | RunTransfer, lambda place: LinkExecutor(place).carry_out)
