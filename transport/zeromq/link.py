"""ZeroMqLink: bundles (`transport.links.link.Link`) over ZeroMQ, where UDP doesn't get through or shall be encrypted.

A bundle is one message: a header, and its rows. It is reliable and ordered while a peer is connected. Bundles for a
peer that has disconnected are delivered if it comes back, and lost when there is no more room for them. TCP sets the
pace, so a link is full where UDP would lose packets.

The side that sends first connects; the other answers on the same connection, so a worker needs no port that others can
reach, and no secret but its own. A peer is identified by the address of its connection and the port that it names as
its own.
"""

import select
import struct
import time
from dataclasses import replace
from functools import partial

import numpy as np
import zmq

from switchagg.errors import JobError
from switchagg.wire import Bundle
from transport.links.addresses import resolve_host
from transport.links.framing import DATAGRAM_BYTES_MAX
from transport.links.link import Address, LinkClosed
from transport.switch.ends import Log, OnFailure, SwitchEnd, bound, end_of, plane_of
from transport.switch.options import DaemonOptions
from transport.worker.ends import LinkEnd, WorkerEnd
from transport.worker.options import JoinOptions
from transport.zeromq.keys import Keys, as_keys
from transport.zeromq.sockets import Line, Socket, Station, ZeroMqOptions

BUNDLE_BYTES_MAX = 1 << 17
"""Most of one message: a longer bundle goes as several."""

RECEIVE_BUNDLES, RECEIVE_BYTES = 64, 1 << 17
"""One `receive` ends after so many bundles or bytes."""

ZERO_COPY_BYTES = 1 << 16
"""Received bundles of this length or more stay where libzmq has put them."""

MALFORMED_BYTES = 1 << 10
"""What a message that is no bundle counts in that."""

PEERS_MAX = 256
"""Peers to which connections are kept; beyond, the one that was sent to least recently is forgotten."""

OPTIONS = ZeroMqOptions(queue_messages=256, send_buffer_bytes=1 << 19, message_bytes_max=BUNDLE_BYTES_MAX)

_HEADER = struct.Struct(">4sHHII")  # magic, the sender's port, whether it can be dialled there, rows, bytes of a row
_MAGIC = b"sab1"
_RETRY_S = 0.001  # a ROUTER doesn't report when it has room for one peer


class ZeroMqLink:
    """A link on a ROUTER, where others dial, and a DEALER to each peer that it dials itself.

    bind: (host, port), port 0 for any free one. listening: whether others may dial it; a link that doesn't listen is
    reached by those alone that it has sent to. keys: encrypt, and let in only whom they allow. Raises JobError.

    Counters: sent_…, received_… as of a UdpLink; send_lost: rows for a peer that isn't there; send_would_block: sends
    that found a peer's queue full; drop_malformed: messages that are no bundle; refused: peers without a right key.
    """

    tos = None  # of a connection, not of a send
    credit_bytes = 0  # TCP's buffers are what bounds it
    segments_max = 64

    def __init__(
        self, bind: Address, *, options: ZeroMqOptions = OPTIONS, keys: Keys | None = None, listening: bool = True
    ) -> None:
        self._closed = False
        self._counts = dict.fromkeys(ZEROMQ_COUNTERS, 0)
        self._lines: dict[Address, Line] = {}
        self._callers: dict[Address, bytes | None] = {}  # identity of a peer that connected to us; None: disconnected
        self._full: set[Line] = set()
        self._crowded = False  # a caller's queue was full
        self._listening = listening
        self._station = Station(bind, options, keys, options.message_bytes_max, listening=listening)
        self._address = self._station.address
        self._router: Socket = self._station.router
        self._source = "" if self._address[0] in ("0.0.0.0", "::") else self._address[0]
        self._descriptors = select.epoll()
        self._descriptors.register(int(self._router.get(zmq.FD)), select.EPOLLIN)

    @property
    def address(self) -> Address:
        """See `Link.address`."""
        return self._address

    @property
    def counters(self) -> dict[str, int]:
        """See the class."""
        return {**self._counts, "refused": self._station.refusals.count}

    def resolve(self, address: Address) -> Address:
        """See `Link.resolve`."""
        host, port = address
        if not 1 <= port <= 65_535:
            raise JobError(f"ZeroMQ can't reach {host}:{port}: the port must be 1 to 65535")
        return host if ":" in host else resolve_host(host), port

    # Sending

    def has_room(self) -> bool:
        """See `Link.has_room`."""
        return True

    def slowness(self) -> str:
        """See `Link.slowness`."""
        return ""

    def send(self, bundle: Bundle, to: Address, tos: int | None = None) -> int:
        """See `Link.send`."""
        self._require_open()
        rows, size = bundle.shape
        if size > DATAGRAM_BYTES_MAX:
            raise ValueError(f"rows of {size} bytes: at most {DATAGRAM_BYTES_MAX}")
        together = max(1, BUNDLE_BYTES_MAX // max(1, size))
        sent = 0
        while sent < rows:
            part = bundle[sent : sent + together]
            if not self._send_part(part, to):
                break
            sent += len(part)
        return sent

    def _send_part(self, part: Bundle, to: Address) -> bool:
        """False if there is no room now, for a peer that is there."""
        rows, size = part.shape
        header = _HEADER.pack(_MAGIC, self._address[1], self._listening, rows, size)
        outcome = self._answer(header, part, to) if to in self._callers else self._call(header, part, to)
        if outcome is None:
            self._counts["send_would_block"] += 1
            return False
        if outcome:
            self._count("sent", rows, rows * size)
        else:
            self._counts["send_lost"] += rows
        return True

    def _answer(self, header: bytes, part: Bundle, to: Address) -> bool | None:
        """To one that has dialled us. False: lost, None: no room."""
        identity = self._callers[to]
        if identity is None:
            return False
        try:
            self._router.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.Again:
            self._crowded = True
            return None
        except zmq.ZMQError:  # it has hung up
            self._callers[to] = None
            return False
        self._router.send(header, zmq.NOBLOCK | zmq.SNDMORE)
        self._router.send(part.data, zmq.NOBLOCK)
        return True

    def _call(self, header: bytes, part: Bundle, to: Address) -> bool | None:
        """To one that we dial. False: lost, None: no room."""
        line = self._line_to(to)
        if line is None:
            return False
        try:
            line.socket.send(header, zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.ZMQError:
            line.hear()
            if not line.up:
                return False
            self._full.add(line)
            self._station.want_room(line, True)
            return None
        line.socket.send(part.data, zmq.NOBLOCK)
        return True

    def _line_to(self, to: Address) -> Line | None:
        """The line to a peer, which becomes the newest of all; None to an address that can't be."""
        line = self._lines.pop(to, None)
        if line is None:
            if len(self._lines) >= PEERS_MAX:
                self._hang_up(next(iter(self._lines)))
            try:
                line = self._station.dial(to, self._source)
            except JobError:
                return None
            self._descriptors.register(int(line.socket.get(zmq.FD)), select.EPOLLIN)
        self._lines[to] = line
        return line

    def _hang_up(self, address: Address) -> None:
        line = self._lines.pop(address)
        self._full.discard(line)
        self._descriptors.unregister(int(line.socket.get(zmq.FD)))
        self._station.hang_up(line)

    # Receiving

    def receive(self) -> list[tuple[Bundle, Address]]:
        """See `Link.receive`."""
        self._require_open()
        arrived: list[tuple[Bundle, Address]] = []
        taken_bytes = 0
        for source, address in [(self._router, None), *((line.socket, to) for to, line in self._lines.items())]:
            while len(arrived) < RECEIVE_BUNDLES and taken_bytes < RECEIVE_BYTES:
                try:
                    frames = source.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                except zmq.ZMQError:  # a peer's connection broke while it was read
                    continue
                taken = self._bundle(frames, address)
                if taken is None:
                    self._counts["drop_malformed"] += 1
                    taken_bytes += MALFORMED_BYTES
                else:
                    arrived.append(taken)
                    taken_bytes += taken[0].size
        return arrived

    def _bundle(self, frames: list[zmq.Frame], address: Address | None) -> tuple[Bundle, Address] | None:
        """What a message carries, and from whom; None if it is not of our protocol. address: None: from a caller."""
        identity = frames.pop(0) if address is None else None
        if len(frames) != 2 or len(frames[0]) != _HEADER.size:
            return None
        magic, port, listening, rows, size = _HEADER.unpack(frames[0].buffer)
        if magic != _MAGIC or not port or not 0 < rows <= BUNDLE_BYTES_MAX or size > DATAGRAM_BYTES_MAX:
            return None
        if rows * size != len(frames[1]) or rows * size > max(size, BUNDLE_BYTES_MAX):
            return None
        bundle: Bundle = np.frombuffer(frames[1].buffer, np.uint8).reshape(rows, size)
        if bundle.size < ZERO_COPY_BYTES:
            bundle = bundle.copy()  # libzmq's memory may be part of a larger piece, which it would keep
        self._count("received", rows, rows * size)
        if identity is not None:
            address = (str(frames[0].get("Peer-Address")), port)
            self._called_by(address, identity.bytes, bool(listening))
        assert address is not None
        return bundle, address

    def _called_by(self, address: Address, identity: bytes, listening: bool) -> None:
        """Note where answers go: on the connection that a caller has used last; to one that listens, our own."""
        if not listening:
            self._callers[address] = identity
            if len(self._callers) > PEERS_MAX:
                del self._callers[next(key for key in self._callers if key != address)]

    # Waiting and closing

    def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
        """See `Link.wait`."""
        self._require_open()
        if writable and not self._full and not self._crowded:
            return True
        crowded, self._crowded = self._crowded and writable, False
        if crowded:
            timeout_s = _RETRY_S if timeout_s is None else min(timeout_s, _RETRY_S)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            came, lines = self._station.poll(timeout_s)
            news = [line for line in lines if self._look_after(line)]
            if came or news or crowded:
                return True
            if not lines:
                return False
            if until is not None:
                timeout_s = max(0.0, until - time.monotonic())

    def _look_after(self, line: Line) -> bool:
        """Hear what became of a line; whether something has come there, or it takes messages again."""
        line.hear()
        came = bool(line.socket.poll(0, zmq.POLLIN))
        if line not in self._full or (line.up and not line.socket.poll(0, zmq.POLLOUT)):
            return came
        self._full.discard(line)
        self._station.want_room(line, False)
        return True

    def wake(self) -> None:
        """See `Link.wake`."""
        self._station.wake()

    def fileno(self) -> int:
        """See `Link.fileno`. It may also poll readable for nothing; `receive` until there is nothing clears it."""
        self._require_open()
        for polled in (self._router, *(line.socket for line in self._lines.values())):
            polled.get(zmq.EVENTS)  # consumes what doesn't concern the caller
        return self._descriptors.fileno()

    def close(self) -> None:
        """See `Link.close`."""
        if not self._closed:
            self._closed = True
            self._descriptors.close()
            self._station.close(0.0)

    def _require_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the link at {self._address[0]}:{self._address[1]} is closed")

    def _count(self, direction: str, datagrams: int, size_bytes: int) -> None:
        counts = self._counts
        counts[f"{direction}_bundles"] += 1
        counts[f"{direction}_datagrams"] += datagrams
        counts[f"{direction}_bytes"] += size_bytes


def open_worker(options: JoinOptions, host: str) -> WorkerEnd:
    """A worker's end, which nobody dials."""
    told = replace(OPTIONS, tos=options.tos)
    return LinkEnd(ZeroMqLink((host, 0), options=told, keys=as_keys(options.keys), listening=False))


def open_switch(options: DaemonOptions, log: Log, on_failure: OnFailure) -> SwitchEnd:
    """The switch's end."""
    plane = plane_of(options)
    return end_of(bound(partial(ZeroMqLink, options.bind_data, keys=options.keys), remedy=""), plane, on_failure)


ZEROMQ_COUNTERS = (
    "sent_bundles",
    "sent_datagrams",
    "sent_bytes",
    "received_bundles",
    "received_datagrams",
    "received_bytes",
    "send_lost",
    "send_would_block",
    "drop_malformed",
)
"""What a link counts, besides refused."""
