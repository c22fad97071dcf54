"""One host's end of real TCP flows beside a job: senders that never stop, or receivers that count. A child process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import msgspec

from emulation.children import Done, Order, Report, serve

PIECE_BYTES = 1 << 16
CONNECT_S = 10.0


class FlowEnd(msgspec.Struct, frozen=True):
    """Of `count` flows to address:port. congestion: what they use; "": this is where they go to, which takes ECN from
    whoever asks for it. ecn: to ask for it, as all that this namespace connects from now on."""

    address: str
    port: int
    count: int
    congestion: str = ""
    ecn: bool = False


class Begin(Order):
    """Connect, and send without end."""


class Count(Order):
    """Say what has come."""


class Received(Report):
    """bytes: of each flow so far, without headers, in the order in which they connected; at_ns: CLOCK_MONOTONIC."""

    bytes: tuple[int, ...]
    at_ns: int


def begin(end: FlowEnd) -> _Sender | _Receiver:
    return _Sender(end) if end.congestion else _Receiver(end)


class _Receiver:
    def __init__(self, end: FlowEnd) -> None:
        self._bytes: list[int] = []
        listener = socket.create_server((end.address, end.port), backlog=end.count)
        threading.Thread(target=self._accept, args=(listener, end.count), daemon=True).start()

    def _accept(self, listener: socket.socket, count: int) -> None:
        for place in range(count):
            taken, _ = listener.accept()
            self._bytes.append(0)
            threading.Thread(target=self._read, args=(taken, place), daemon=True).start()

    def _read(self, taken: socket.socket, place: int) -> None:
        buffer = bytearray(4 * PIECE_BYTES)
        with contextlib.suppress(OSError):
            while size := taken.recv_into(buffer):
                self._bytes[place] += size

    def __call__(self, _: Begin | Count) -> Report:
        return Received(tuple(self._bytes), time.monotonic_ns())


class _Sender:
    def __init__(self, end: FlowEnd) -> None:
        self._end = end

    def __call__(self, _: Begin | Count) -> Report:
        Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1" if self._end.ecn else "2", encoding="ascii")  # 2: agree only
        for _number in range(self._end.count):
            one = socket.socket()
            # refused where the kernel has no such control, or this namespace may not have it
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._end.congestion.encode())
            one.settimeout(CONNECT_S)
            one.connect((self._end.address, self._end.port))
            one.settimeout(None)
            threading.Thread(target=self._send, args=(one,), daemon=True).start()
        return Done()

    def _send(self, one: socket.socket) -> None:
        piece = bytes(PIECE_BYTES)
        with contextlib.suppress(OSError):
            while True:
                one.sendall(piece)


if __name__ == "__main__":
    serve(FlowEnd, Begin | Count, begin)
