"""One end of a link of the benchmark: a process in a namespace of its own that carries out orders.

    python -m emulation.bench.links.link_end '{"member": 0, "addresses": […]}'

Orders come in on stdin and answers go out on stdout, a JSON object per line: `open` a contender, `run` messages of one
size from member 0 to member 1, `close` it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from typing import Any, Protocol

import numpy as np

from transport.meshes.loop import CREDIT_BYTES
from transport.meshes.mesh import Received, Sent
from transport.meshes.opening import connect_mesh

OPEN_S = 20.0
RUN_S = 60.0
MESSAGES_BELOW = 4


class End(Protocol):
    """One end of one contender."""

    def send(self, data: memoryview, count: int) -> None:
        """Send this `count` times."""

    def receive(self, size_bytes: int, count: int) -> int:
        """Take as many; ns from the first to the last."""

    def close(self) -> None: ...


class MeshEnd:
    """A mesh, driven as `transport.meshes.loop` drives it: with the byte credit that groups have, or four messages."""

    def __init__(self, link: str, member: int, addresses: list[tuple[str, int]]) -> None:
        self._mesh = connect_mesh(link, member, addresses, job="bench", method="links", timeout_s=OPEN_S)

    def send(self, data: memoryview, count: int) -> None:
        mesh, size, below, begun, ended = self._mesh, len(data), 0, 0, 0
        credit = max(CREDIT_BYTES, MESSAGES_BELOW * size)
        until = time.monotonic() + RUN_S
        while ended < count:
            while begun < count and below < credit:
                mesh.send(1, begun.to_bytes(16, "big"), data, begun)
                begun += 1
                below += size
            events = mesh.receive()
            back = sum(isinstance(event, Sent) for event in events)
            ended += back
            below -= back * size
            if not back:
                _check(until, f"{ended} of {count} messages sent", events)
                mesh.wait(0.05)

    def receive(self, size_bytes: int, count: int) -> int:
        mesh, taken, begun_ns, last_ns = self._mesh, 0, 0, 0
        until = time.monotonic() + RUN_S
        while taken < count:
            events = mesh.receive()
            for event in events:
                if isinstance(event, Received):
                    if len(event.data) != size_bytes or event.head != taken.to_bytes(16, "big"):
                        raise RuntimeError(f"message {taken} came as {event.head.hex()}, {len(event.data)} bytes")
                    taken += 1
                    last_ns = time.monotonic_ns()
                    begun_ns = begun_ns or last_ns
            if not events:
                mesh.wait(0.05)
            _check(until, f"{taken} of {count} messages came", events)
        while mesh.receive():  # acknowledgements go out
            pass
        return last_ns - begun_ns

    def close(self) -> None:
        self._mesh.close(0.0)


def _check(until: float, words: str, events: Any) -> None:
    lost = [event for event in events if not isinstance(event, Received | Sent)]
    if lost or time.monotonic() > until:
        raise RuntimeError(f"{words}: {lost[0].reason if lost else 'no more came'}")


def opened(contender: str, member: int, addresses: list[tuple[str, int]]) -> End:
    """`plain WAY`, or the name of a link."""
    kind, _, way = contender.partition(" ")
    if kind == "plain":
        from emulation.bench.links.plain_zeromq import PlainEnd

        return PlainEnd(way, member, addresses[1])
    return MeshEnd(contender, member, addresses)


class LinkEnd:
    """Carries out orders. place: member, addresses (of both; each contender has a port of its own), bytes_most."""

    def __init__(self, place: dict[str, Any]) -> None:
        self._member, self._hosts = place["member"], place["addresses"]
        self._data = np.random.default_rng(7).integers(0, 256, place["bytes_most"], np.uint8).data
        self._ends: dict[str, End] = {}

    def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        """The answer to one order."""
        name = order["contender"]
        if order["do"] == "open":
            addresses = [(host, order["port"]) for host in self._hosts]
            self._ends[name] = opened(name, self._member, addresses)
            return {}
        if order["do"] == "close":
            self._ends.pop(name).close()
            return {}
        size, count = order["bytes"], order["count"]
        cpu_ns = time.process_time_ns()
        duration_ns = 0
        if self._member:
            duration_ns = self._ends[name].receive(size, count)
        else:
            self._ends[name].send(self._data[:size], count)
        return {"duration_ns": duration_ns, "cpu_ns": time.process_time_ns() - cpu_ns}


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Until stdin ends, or an order can't be carried out: then the last line is `failed`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    try:
        end = LinkEnd(json.loads(sys.argv[1]))
        gc.freeze()
        _say({"ready": True})
        for line in sys.stdin:
            _say(end.carry_out(json.loads(line)))
    except Exception as error:
        _say({"failed": " ".join(str(error).split())[:400] or type(error).__name__})
    os._exit(0)


if __name__ == "__main__":
    main()
