"""A host's end of real TCP flows beside a job: the flows start or end there. A child process.

A thread of it has all its sockets, none of which blocks. Times are CLOCK_MONOTONIC, which all namespaces share.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from emulation.results.shares import LOOK_NS, FinishedFlow
from emulation.scenario.scenario_flows import Arrival, Arrivals
from emulation.testbed.children import ChildCommand, ChildReport, Done, give_up, serve

PIECE_BYTES = 1 << 16
LOOKS_MOST = 4_096  # then every second one is forgotten
RECEIVER = -1
WAIT_NS = 1_000_000_000  # with nothing due
SETTINGS = Path("/proc/sys/net/ipv4")  # of this namespace


class FlowEnd(msgspec.Struct, frozen=True):
    """One end of a scenario entry's flows, which go to address:port. sources: the senders' addresses; source: this
    end's index in them, or RECEIVER. congestion: the senders' control; ecn: whether this namespace's connections ask
    for ECN from now on; the receiver always agrees to it."""

    address: str
    port: int
    arrivals: Arrivals
    sources: tuple[str, ...]
    source: int
    congestion: str = ""
    ecn: bool = False


class BeginFlows(ChildCommand):
    """The run starts at at_ns: what is due from then on is sent, and counted where it goes to."""

    at_ns: int


class CountFlows(ChildCommand):
    """Say what became of it."""


class ReceivedFlows(ChildReport):
    """looks: the time, and what each flow has brought by then, without headers; in order of time, the last one now. Of
    an entry whose flows end, what those of each source have brought."""

    looks: tuple[tuple[int, ...], ...]


class SentFlows(ChildReport):
    """Of flows that end: those that did, from connecting until the receiver had closed after the last byte; how many
    didn't; and how much later than they were due all of them began."""

    finished: tuple[FinishedFlow, ...]
    unfinished: int
    late_ns: tuple[int, ...]


def begin(end: FlowEnd) -> _Sender | _Receiver:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _Receiver(end) if end.source == RECEIVER else _Sender(end)


def _start(loop: Callable[[int], None], at_ns: int) -> None:
    """A thread whose failure is ours."""

    def run() -> None:
        try:
            loop(at_ns)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.EADDRNOTAVAIL):
                give_up(OSError(f"too many flows at once ({error.strerror}); allowed: less [[flows]] load or count"))
            give_up(error)
        except Exception as error:
            give_up(error)

    threading.Thread(target=run, daemon=True).start()


class _Receiver:
    def __init__(self, end: FlowEnd) -> None:
        self._sources = end.sources
        self._endless = end.arrivals.endless
        self._bytes = [0] * (end.arrivals.count if self._endless else len(end.sources))
        self._accepted = [0] * len(end.sources)
        self._looks: list[tuple[int, ...]] = []
        self._buffer = bytearray(4 * PIECE_BYTES)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((end.address, end.port), backlog=socket.SOMAXCONN)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __call__(self, order: BeginFlows | CountFlows) -> ChildReport:
        if isinstance(order, BeginFlows):
            _start(self._run, order.at_ns)
            return Done()
        return ReceivedFlows((*self._looks, self._look()))

    def _look(self) -> tuple[int, ...]:
        return (time.monotonic_ns(), *self._bytes)

    def _run(self, at_ns: int) -> None:
        due_ns, every_ns = at_ns, LOOK_NS
        while True:
            for key, _ in self._selector.select(max(0, due_ns - time.monotonic_ns()) / 1e9):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.fileobj, key.data)  # type: ignore[arg-type]  # sockets alone
            if time.monotonic_ns() >= due_ns:
                self._looks.append(self._look())
                due_ns += every_ns
            if len(self._looks) == LOOKS_MOST:
                del self._looks[1::2]
                every_ns *= 2

    def _accept(self) -> None:
        connection, (address, _) = self._listener.accept()
        connection.setblocking(False)
        source = self._sources.index(address)
        number = source
        if self._endless:  # they take the sources in turn
            number += self._accepted[source] * len(self._sources)
            self._accepted[source] += 1
        self._selector.register(connection, selectors.EVENT_READ, number)

    def _read(self, connection: socket.socket, number: int) -> None:
        size = 0
        with contextlib.suppress(ConnectionError):  # a sender that stopped without end
            size = connection.recv_into(self._buffer)
        self._bytes[number] += size
        if not size:
            self._selector.unregister(connection)
            connection.close()


@dataclass(eq=False)
class _Flow:
    """left_bytes: to be sent; of a flow without end as many as it may send at once."""

    socket: socket.socket
    size_bytes: int
    left_bytes: int
    begun_ns: int


class _Sender:
    def __init__(self, end: FlowEnd) -> None:
        self._end = end
        self._selector = selectors.DefaultSelector()
        self._piece = memoryview(bytes(PIECE_BYTES))
        self._open: set[_Flow] = set()
        self._finished: list[FinishedFlow] = []
        self._late_ns: list[int] = []
        self._socket().close()  # to be refused before the run

    def __call__(self, order: BeginFlows | CountFlows) -> ChildReport:
        if isinstance(order, BeginFlows):
            (SETTINGS / "tcp_ecn").write_text("1" if self._end.ecn else "2", encoding="ascii")  # 2: agree only
            _start(self._run, order.at_ns)
            return Done()
        return SentFlows(tuple(self._finished), len(self._open), tuple(self._late_ns))

    def _socket(self) -> socket.socket:
        connection = socket.socket()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._end.congestion.encode())
        except OSError as error:
            there = (SETTINGS / "tcp_available_congestion_control").read_text(encoding="ascii").strip()
            raise ValueError(
                f"TCP {self._end.congestion} can't be had here ({error.strerror}); this kernel has: {there}"
            ) from error
        connection.setblocking(False)
        return connection

    def _run(self, at_ns: int) -> None:
        arrivals = self._end.arrivals
        coming = (arrival for arrival in arrivals if arrival.source == self._end.source)
        stop_ns = arrivals.stop_ns if arrivals.endless else 0
        due = next(coming, None)
        while True:
            now_ns = time.monotonic_ns() - at_ns
            if due is not None and due.at_ns <= now_ns:
                due = self._connect(due, coming, at_ns)
            if 0 < stop_ns <= now_ns:
                self._stop()
                stop_ns = 0
            later_ns = [*([] if due is None else [due.at_ns]), *([stop_ns] if stop_ns else [])]
            wait_ns = min(later_ns, default=now_ns + WAIT_NS) - (time.monotonic_ns() - at_ns)
            for key, _ in self._selector.select(max(0, wait_ns) / 1e9):
                self._go_on(key.data)

    def _connect(self, due: Arrival | None, coming: Iterator[Arrival], at_ns: int) -> Arrival | None:
        """All flows that are due; the next one that isn't."""
        while due is not None and due.at_ns <= time.monotonic_ns() - at_ns:
            connection, begun_ns = self._socket(), time.monotonic_ns()
            if (number := connection.connect_ex((self._end.address, self._end.port))) not in (0, errno.EINPROGRESS):
                raise OSError(number, f"can't connect to {self._end.address}")
            flow = _Flow(connection, due.size_bytes, due.size_bytes or PIECE_BYTES, begun_ns)
            self._selector.register(connection, selectors.EVENT_WRITE, flow)
            self._open.add(flow)
            self._late_ns.append(begun_ns - at_ns - due.at_ns)
            due = next(coming, None)
        return due

    def _go_on(self, flow: _Flow) -> None:
        if not flow.left_bytes:
            flow.socket.recv(1)  # nothing but the end, when all has been read
            self._finished.append(FinishedFlow(flow.size_bytes, time.monotonic_ns() - flow.begun_ns))
            self._close(flow)
            return
        with contextlib.suppress(BlockingIOError):
            size = flow.socket.send(self._piece[: flow.left_bytes])
            if flow.size_bytes:
                flow.left_bytes -= size
        if not flow.left_bytes:
            flow.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(flow.socket, selectors.EVENT_READ, flow)

    def _stop(self) -> None:
        for flow in list(self._open):
            self._close(flow)

    def _close(self, flow: _Flow) -> None:
        self._selector.unregister(flow.socket)
        self._open.discard(flow)
        flow.socket.close()


if __name__ == "__main__":
    serve(FlowEnd, BeginFlows | CountFlows, begin)
