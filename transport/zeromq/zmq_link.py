"""ZeroMqLink: bundles (`transport.links.link.Link`) over ZeroMQ, where UDP doesn't get through or shall be encrypted.

A bundle is one message: a header, and its rows. It is reliable and ordered while a peer is connected. Bundles for a
peer that has disconnected are delivered if it comes back, and lost when there is no more room for them. TCP sets the
pace, so a link is full where UDP would lose packets.

The side that sends first connects; the other answers on the same connection, so a worker needs no port that others can
reach, and no secret but its own. A peer is identified by the address of its connection, the port that it names as
its own, and where the answering side knows it, by a secret: a member of a switch's job by that of its join (C15), since
others at its address could name its port, with keys too.
"""

import select
import struct
import time

import numpy as np
import zmq

from switchagg.errors import JobError
from switchagg.wire import Bundle
from transport.links.addresses import resolve_host, with_secret
from transport.links.framing import DATAGRAM_BYTES_MAX
from transport.links.link import Address, Arrival, LinkClosed
from transport.zeromq.keys import Keys
from transport.zeromq.zmq_sockets import Socket, Sockets, ZeroMqOptions, ZmqConnection

BUNDLE_BYTES_MAX = 1 << 17
"""Most of one message: a longer bundle goes as several."""

RECEIVE_BUNDLES, RECEIVE_BYTES = 64, 1 << 17
"""A `receive` ends after so many bundles or bytes."""

ZERO_COPY_BYTES = 1 << 16
"""Received bundles of this length or more stay where libzmq has put them."""

MALFORMED_BYTES = 1 << 10
"""A message that is no bundle counts so many bytes."""

MEMBERS_MAX = 4096
"""Peers with a secret that are known; beyond, the one named first is forgotten."""

PEERS_MAX = 256
"""Peers to which connections are kept; beyond, the one that was sent to least recently is forgotten."""

OPTIONS = ZeroMqOptions(
    queue_messages=256, send_buffer_bytes=1 << 19, message_bytes_max=BUNDLE_BYTES_MAX, silence_s=4.0
)
"""silence_s: short, since a fresh connection costs nothing here but packets that are sent again (W7)."""

_HEADER = struct.Struct(">4sHHIIQ")  # magic, the sender's port, whether it listens there, rows, their bytes, secret
_MAGIC = b"sab2"
_RETRY_S = 0.001  # a ROUTER doesn't report when it has room for one peer


class ZeroMqLink:
    """A link on a ROUTER, to which others connect, and a DEALER to each peer that it connects to itself.

    bind: (host, port), port 0 for any free one. listening: whether others may connect to it; a link that doesn't
    listen is reached only by peers that it has sent to. keys: encrypt, and refuse others than they allow. `secret`,
    if set, is in each of its messages: the other side resolves `with_secret(address, secret)`. Raises JobError.

    Counters: sent_…, received_… as of a UdpLink; send_lost: rows for a peer that isn't there; send_would_block: sends
    that found a peer's queue full; drop_malformed: messages that are no bundle; refused: peers without a right key.
    """

    tos = None  # A connection has it, a send can't.
    credit_bytes = 0  # TCP's buffers are what bounds it
    segments_max = 64

    def __init__(
        self, bind: Address, *, options: ZeroMqOptions = OPTIONS, keys: Keys | None = None, listening: bool = True
    ) -> None:
        self._closed = False
        self._counts = dict.fromkeys(ZEROMQ_COUNTERS, 0)
        self._connections: dict[Address, ZmqConnection] = {}
        self.secret = 0
        self._inbound: dict[Address, bytes | None] = {}  # identity of a peer that connected to us; None: disconnected
        self._members: dict[Address, bytes | None] = {}  # the same for peers with a secret
        self._full: set[ZmqConnection] = set()
        self._inbound_full = False  # the queue of a peer that connected to us was full
        self._listening = listening
        self._sockets = Sockets(bind, options, keys, options.message_bytes_max, listening=listening)
        self._address = self._sockets.address
        self._router: Socket = self._sockets.router
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
        return {**self._counts, "refused": self._sockets.refusals.count}

    def resolve(self, address: Address) -> Address:
        """See `Link.resolve`."""
        host, port = address
        if not 1 <= port <= 65_535:
            raise JobError(f"ZeroMQ can't reach {host}:{port}: the port must be 1 to 65535")
        host, slash, secret = host.partition("/")
        resolved = f"{host if ':' in host else resolve_host(host)}{slash}{secret}", port
        if secret:
            self._members.setdefault(resolved, None)
            if len(self._members) > MEMBERS_MAX:
                del self._members[next(iter(self._members))]
        return resolved

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
        sent_rows = 0
        while sent_rows < rows:
            part = bundle[sent_rows : sent_rows + together]
            if not self._send_part(part, to):
                break
            sent_rows += len(part)
        return sent_rows

    def _send_part(self, part: Bundle, to: Address) -> bool:
        """False if there is no room now, for a connected peer."""
        rows, size = part.shape
        header = _HEADER.pack(_MAGIC, self._address[1], self._listening, rows, size, self.secret)
        callers = self._members if to in self._members else self._inbound
        outcome = (self._send_inbound if to in callers else self._send_outbound)(header, part, to)
        if outcome is None:
            self._counts["send_would_block"] += 1
            return False
        if outcome:
            self._count("sent", rows, rows * size)
        else:
            self._counts["send_lost"] += rows
        return True

    def _send_inbound(self, header: bytes, part: Bundle, to: Address) -> bool | None:
        """Send to a peer that connected to us. False: it is lost, None: there is no room."""
        callers = self._members if to in self._members else self._inbound
        identity = callers[to]
        if identity is None:
            return False
        try:
            self._router.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.Again:
            self._inbound_full = True
            return None
        except zmq.ZMQError:  # it has disconnected
            callers[to] = None
            return False
        self._router.send(header, zmq.NOBLOCK | zmq.SNDMORE)
        self._router.send(part.data, zmq.NOBLOCK)
        return True

    def _send_outbound(self, header: bytes, part: Bundle, to: Address) -> bool | None:
        """Send on a connection of ours. False: it is lost, None: there is no room."""
        connection = self._connection_to(to)
        if connection is None:
            return False
        try:
            connection.socket.send(header, zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.ZMQError:
            connection.read_monitor()
            if not connection.up:
                return False
            self._full.add(connection)
            self._sockets.want_room(connection, True)
            return None
        connection.socket.send(part.data, zmq.NOBLOCK)
        return True

    def _connection_to(self, to: Address) -> ZmqConnection | None:
        """The connection to a peer, moved to the end of the least-recently-used order; None for an impossible
        address."""
        connection = self._connections.pop(to, None)
        if connection is None:
            if len(self._connections) >= PEERS_MAX:
                self._disconnect(next(iter(self._connections)))
            try:
                connection = self._sockets.connect(to, self._source)
            except JobError:
                return None
            self._descriptors.register(int(connection.socket.get(zmq.FD)), select.EPOLLIN)
        self._connections[to] = connection
        return connection

    def _disconnect(self, address: Address) -> None:
        connection = self._connections.pop(address)
        self._full.discard(connection)
        self._descriptors.unregister(int(connection.socket.get(zmq.FD)))
        self._sockets.disconnect(connection)

    # Receiving

    def set_tos(self, tos: int) -> None:
        """See `Link.set_tos`: it has none."""

    def receive(self) -> list[Arrival]:
        """See `Link.receive`."""
        self._require_open()
        arrived: list[Arrival] = []
        taken_bytes = 0
        for source, address in [
            (self._router, None),
            *((connection.socket, to) for to, connection in self._connections.items()),
        ]:
            while len(arrived) < RECEIVE_BUNDLES and taken_bytes < RECEIVE_BYTES:
                try:
                    frames = source.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                except zmq.ZMQError:  # a peer's connection broke while it was read
                    continue
                arrival = self._bundle(frames, address)
                if arrival is None:
                    self._counts["drop_malformed"] += 1
                    taken_bytes += MALFORMED_BYTES
                else:
                    arrived.append((*arrival, 0))
                    taken_bytes += arrival[0].size
        return arrived

    def _bundle(self, frames: list[zmq.Frame], address: Address | None) -> tuple[Bundle, Address] | None:
        """A message's bundle and sender; None if it is not of our protocol. address: None if it came in at the
        ROUTER."""
        identity = frames.pop(0) if address is None else None
        if len(frames) != 2 or len(frames[0]) != _HEADER.size:
            return None
        magic, port, listening, rows, size, secret = _HEADER.unpack(frames[0].buffer)
        if magic != _MAGIC or not port or not 0 < rows <= BUNDLE_BYTES_MAX or size > DATAGRAM_BYTES_MAX:
            return None
        if rows * size != len(frames[1]) or rows * size > max(size, BUNDLE_BYTES_MAX):
            return None
        bundle: Bundle = np.frombuffer(frames[1].buffer, np.uint8).reshape(rows, size)
        if bundle.size < ZERO_COPY_BYTES:
            bundle = bundle.copy()  # libzmq's memory may be part of a larger piece, which it would keep
        self._count("received", rows, rows * size)
        if identity is not None:
            address = with_secret((str(frames[0].get("Peer-Address")), port), secret)
            self._note_inbound(address, identity.bytes, bool(listening))
        assert address is not None
        return bundle, address

    def _note_inbound(self, address: Address, identity: bytes, listening: bool) -> None:
        """Note where answers go: of a peer with a secret that we know, its latest connection to us; of one without, its
        first that still stands; to a peer that listens, one of our own."""
        if address in self._members:
            self._members[address] = identity
        elif not listening and "/" not in address[0]:
            self._inbound[address] = self._inbound.get(address) or identity
            if len(self._inbound) > PEERS_MAX:
                del self._inbound[next(key for key in self._inbound if key != address)]

    # Waiting and closing

    def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
        """See `Link.wait`."""
        self._require_open()
        if writable and not self._full and not self._inbound_full:
            return True
        inbound_full, self._inbound_full = self._inbound_full and writable, False
        if inbound_full:
            timeout_s = _RETRY_S if timeout_s is None else min(timeout_s, _RETRY_S)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            readable, connections = self._sockets.poll(timeout_s)
            news = [connection for connection in connections if self._check(connection)]
            if readable or news or inbound_full:
                return True
            if not connections:
                return False
            if until is not None:
                timeout_s = max(0.0, until - time.monotonic())

    def _check(self, connection: ZmqConnection) -> bool:
        """Read its monitor; whether something has arrived on it, or it takes messages again."""
        connection.read_monitor()
        readable = bool(connection.socket.poll(0, zmq.POLLIN))
        if connection not in self._full or (connection.up and not connection.socket.poll(0, zmq.POLLOUT)):
            return readable
        self._full.discard(connection)
        self._sockets.want_room(connection, False)
        return True

    def wake(self) -> None:
        """See `Link.wake`."""
        self._sockets.wake()

    def fileno(self) -> int:
        """See `Link.fileno`. It may also poll readable for nothing; `receive` until there is nothing clears it."""
        self._require_open()
        for polled in (self._router, *(connection.socket for connection in self._connections.values())):
            polled.get(zmq.EVENTS)  # consumes libzmq's internal events
        return self._descriptors.fileno()

    def close(self) -> None:
        """See `Link.close`."""
        if not self._closed:
            self._closed = True
            self._descriptors.close()
            self._sockets.close(0.0)

    def _require_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the link at {self._address[0]}:{self._address[1]} is closed")

    def _count(self, direction: str, datagrams: int, size_bytes: int) -> None:
        counts = self._counts
        counts[f"{direction}_bundles"] += 1
        counts[f"{direction}_datagrams"] += datagrams
        counts[f"{direction}_bytes"] += size_bytes


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
"""Counters of a link, besides refused."""
