"""Sockets, which the ZeroMQ mesh and link share: one listening ROUTER, DEALERs to others, and monitors of connections.

`Sockets` have a context of their own and are used by one thread. A member that sends to another connects to it
(`Connection`); the other receives at its ROUTER, and may answer there. With keys, everything is encrypted, and only
peers with an allowed key can connect.
"""

import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from switchagg.errors import JobError
from transport.links.addresses import resolve_host
from transport.links.link import Address
from transport.links.outages import bound_timeouts, patience_s
from transport.zeromq.keys import Keys

logger = logging.getLogger("switchagg.zeromq")

Socket = zmq.Socket[bytes]
Warn = Callable[[str], None]

RECONNECT_MS, RECONNECT_MOST_MS = 20, 500
CONNECT_MS = 3000
HANDSHAKE_MS = 10_000
"""How long an unknown peer may take for a handshake."""

HEARTBEATS_PER_SILENCE = 6
TTL_MAX_MS = 6_500_000
"""Limit of ZMTP, which has 16 bits for tenths of a second."""
REFUSALS_KEPT = 256
_CONNECTION_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_LISTENING_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_names = itertools.count()


@dataclass(frozen=True)
class ZeroMqOptions:
    """Bounds of every socket.

    queue_messages: high-water mark, per peer and direction. send_buffer_bytes: of the kernel, per connection: what lies
    there can't be overtaken, and it must hold rate × round trip; the kernel doubles it for its own bookkeeping.
    message_bytes_max: a frame announced as larger ends its connection. silence_s: an outage so long ends no connection;
    a peer that doesn't answer heartbeats for `patience_s` of it is lost. tos: the TOS byte of every packet, DSCP in its
    upper six bits.
    """

    queue_messages: int = 64
    send_buffer_bytes: int = 1 << 18
    message_bytes_max: int = 16 << 20
    silence_s: float = 30.0
    tos: int = 0

    def __post_init__(self) -> None:
        if min(self.queue_messages, self.send_buffer_bytes, self.message_bytes_max) < 1:
            raise ValueError("queue_messages, send_buffer_bytes, message_bytes_max: 1 or more")
        if not 0.1 <= self.silence_s <= 6000:
            raise ValueError(f"silence_s {self.silence_s:g}: 0.1 to 6000")
        if not 0 <= self.tos <= 255:
            raise ValueError(f"tos {self.tos}: 0 to 255")

    def bound(self, target: Socket, frame_bytes: int) -> None:
        """Set the bounds on a socket before it is connected or bound. frame_bytes: the largest frame that may come."""
        target.set(zmq.LINGER, 0)
        target.set(zmq.SNDHWM, self.queue_messages)
        target.set(zmq.RCVHWM, self.queue_messages)
        target.set(zmq.MAXMSGSIZE, frame_bytes)
        target.set(zmq.SNDBUF, self.send_buffer_bytes)
        target.set(zmq.TOS, self.tos)
        target.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        patience_ms = min(TTL_MAX_MS, round(patience_s(self.silence_s) * 1e3))
        target.set(zmq.HEARTBEAT_IVL, max(10, round(self.silence_s * 1e3 / HEARTBEATS_PER_SILENCE)))
        target.set(zmq.HEARTBEAT_TIMEOUT, patience_ms)
        target.set(zmq.HEARTBEAT_TTL, patience_ms)
        target.copy_threshold = 0  # whether to copy is decided at each send


class Authenticator:
    """Answers libzmq's questions (ZAP, RFC 27) whether a client's key is allowed; for all sockets of its context."""

    def __init__(self, context: "zmq.Context[Socket]", keys: Keys, warn: Warn) -> None:
        self._allowed, self._warn = keys.allowed, warn
        self._folder = keys.folder
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def serve(self) -> None:
        """Answer all waiting requests. Never blocks."""
        while True:
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            status, text, name = b"400", b"not allowed", ""
            if len(request) == 7 and request[5] == b"CURVE":
                key = zmq.utils.z85.encode(request[6])
                name = self._allowed.get(key, "")
                if name:
                    status, text = b"200", b"OK"
                else:
                    self._warn(
                        f"refused {request[3].decode(errors='replace')}: its key {key.decode()} is none of the "
                        f"{len(self._allowed)} in {self._folder / 'clients'}"
                    )
            identifier = request[1] if len(request) > 1 else b""
            self.socket.send_multipart([b"1.0", identifier, status, text, name.encode(), b""])


class Refusals:
    """Logs refused peers, once per host and reason: a refused peer tries again all the time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._logged: set[str] = set()
        self.count = 0

    def __call__(self, reason: str) -> None:
        self.count += 1
        if reason not in self._logged and len(self._logged) < REFUSALS_KEPT:
            self._logged.add(reason)
            logger.warning("ZeroMQ at %s: %s", self.address, reason)


class ListeningMonitor:
    """Logs whose handshakes with a listening socket fail, and why: a refused connection's end tells whose it was.

    listening: not bound yet. ended: whether who ends a handshake without a reason counts; where many connections are
    tried and given up, that says nothing. Only the socket's thread may use it.
    """

    def __init__(self, listening: Socket, keys: Keys | None, warn: Warn, *, ended: bool = True) -> None:
        self._listening, self._keys, self._warn = listening, keys, warn
        self._accepted: dict[int, str] = {}
        self._refused_for = ""
        events = _LISTENING_EVENTS if ended else _LISTENING_EVENTS & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.socket: Socket = listening.get_monitor_socket(events, f"inproc://listening-{next(_names)}")

    def read(self) -> None:
        """Log what has happened. Never blocks."""
        while True:
            try:
                event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            match event["event"]:
                case zmq.EVENT_ACCEPTED:
                    bound_timeouts(event["value"])
                    self._accepted[event["value"]] = _peer_of(event["value"])
                case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._refused_for = handshake_error(event["value"], self._keys)
                case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                    self._refused_for = handshake_ended(self._keys)
                case zmq.EVENT_DISCONNECTED:
                    who = self._accepted.pop(event["value"], "")
                    if self._refused_for:
                        self._warn(f"refused {who or 'a peer that is gone already'}: {self._refused_for}")
                    self._refused_for = ""

    def close(self) -> None:
        """Monitor no longer."""
        self._listening.disable_monitor()


class ZmqConnection:
    """A DEALER to one address, and what is known of the connection.

    up: the handshake is done. ups: how often that was so. trouble: what went wrong last, as a text.
    """

    def __init__(
        self,
        context: "zmq.Context[Socket]",
        address: Address,
        options: ZeroMqOptions,
        keys: Keys | None,
        frame_bytes: int,
        source: str,
    ) -> None:
        self.address = address
        self.up, self.ups, self.trouble = False, 0, "no answer"
        self._keys = keys
        self._connected, self._weight = False, 0
        self.socket: Socket = context.socket(zmq.DEALER)
        self.monitor: Socket = self.socket.get_monitor_socket(_CONNECTION_EVENTS, f"inproc://connection-{next(_names)}")
        try:
            options.bound(self.socket, frame_bytes)
            self.socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            self.socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
            self.socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
            if keys is not None:
                keys.secure_client(self.socket)
            self.socket.set(zmq.IPV6, int(":" in address[0]))
            self.socket.connect(endpoint(address, source))
        except zmq.ZMQError as error:
            self.close()
            raise JobError(f"can't reach {text(address)} over ZeroMQ: {error}") from error
        except BaseException:
            self.close()
            raise

    def read_monitor(self) -> list[bool]:
        """True for each time that the connection was established, False for each that it was lost, in order. Never
        blocks."""
        changes: list[bool] = []
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # There is no more, or it is closed.
                return changes
            if (change := self._note(parse_monitor_message(frames))) is not None:
                changes.append(change)

    def _note(self, event: Any) -> bool | None:
        match event["event"]:
            case zmq.EVENT_CONNECTED:
                self._connected = True
                bound_timeouts(event["value"])
                self._note_trouble("it is silent in the handshake")
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up, self.trouble, self._weight = True, "", 0
                self.ups += 1
                return True
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._note_trouble(f"it refuses our key{self._key_text()}: add the key to its folder `clients`", 2)
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._note_trouble(handshake_error(event["value"], self._keys), 2)
            case zmq.EVENT_CLOSED if not self._connected:
                self._note_trouble("nobody listens there")
            case zmq.EVENT_DISCONNECTED:
                was, self.up, self._connected = self.up, False, False
                self._note_trouble(
                    "it closed the connection, or did not answer any more" if was else handshake_ended(self._keys), 1
                )
                return False if was else None
        return None

    def _note_trouble(self, trouble: str, weight: int = 0) -> None:
        """Note what is wrong, unless a message of more weight is known: a peer's own over guesses of later tries."""
        if weight >= self._weight:
            self.trouble, self._weight = trouble, weight

    def _key_text(self) -> str:
        return "" if self._keys is None else f" {self._keys.client_public.decode()}"

    def close(self, linger_ms: int = 0) -> None:
        """Give the connection up, with what was not sent within the time."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


class Sockets:
    """The sockets of one member of a mesh, or of one link; used by one thread, but for `wake`.

    bind: (host, port), port 0 for any; `address` is what it became. listening: whether others may connect to it; if
    not, the port is only occupied, as a name that no other process of this host has. Raises JobError that names the
    address.
    """

    def __init__(
        self, bind: Address, options: ZeroMqOptions, keys: Keys | None, frame_bytes: int, *, listening: bool = True
    ) -> None:
        self.options = options
        self._keys, self._frame_bytes = keys, frame_bytes
        self._closed = False
        self._wake_lock = threading.Lock()
        self._connections: dict[Socket, ZmqConnection] = {}
        self._wanting: set[Socket] = set()
        self.address: Address
        self.context: zmq.Context[Socket] = zmq.Context()
        self.router: Socket = self.context.socket(zmq.ROUTER)
        self.refusals = Refusals(text(bind))
        self._monitor = ListeningMonitor(self.router, keys, self.refusals)
        try:
            options.bound(self.router, frame_bytes)
            self.router.set(zmq.ROUTER_MANDATORY, 1)
            self._authenticator: Authenticator | None = None
            self._held: socket.socket | None = None
            if listening:
                if keys is not None:
                    self._authenticator = Authenticator(self.context, keys, self.refusals)
                    keys.secure_server(self.router)
                self.address = self._listen(bind)
            else:
                self._held = socket.socket(socket.AF_INET6 if ":" in bind[0] else socket.AF_INET)
                self._held.bind(bind)
                self.address = self._held.getsockname()[:2]
        except zmq.ZMQError as error:
            self.context.destroy(0)
            what = f"can't listen at {text(bind)}: {error.strerror}"
            raise JobError(f"{what}; give an address of this host and a free port") from error
        except OSError as error:
            self.context.destroy(0)
            raise JobError(f"can't bind {text(bind)}: {error}") from error
        except BaseException:
            self.context.destroy(0)
            raise
        self.refusals.address = text(self.address)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        for polled in (self.router, self._monitor.socket, self._wake_fd, *filter(None, [self._zap_socket])):
            self._poller.register(polled, zmq.POLLIN)

    def _listen(self, bind: Address) -> Address:
        self.router.set(zmq.IPV6, int(":" in bind[0]))
        host = bind[0] if ":" in bind[0] else resolve_host(bind[0])
        self.router.bind(endpoint((host, bind[1])))
        bound = self.router.get_string(zmq.LAST_ENDPOINT).rpartition(":")
        return bound[0].removeprefix("tcp://").strip("[]"), int(bound[2])

    @property
    def _zap_socket(self) -> Socket | None:
        return None if self._authenticator is None else self._authenticator.socket

    def connect(self, address: Address, source: str = "", tos: int | None = None) -> ZmqConnection:
        """Connect to an address, and again whenever the connection is lost; messages wait for it meanwhile.

        source: own address to connect from; "": the kernel's choice. tos: None for the options'. Raises JobError.
        """
        options = self.options if tos is None else replace(self.options, tos=tos)
        connection = ZmqConnection(self.context, address, options, self._keys, self._frame_bytes, source)
        for polled in (connection.socket, connection.monitor):
            self._connections[polled] = connection
            self._poller.register(polled, zmq.POLLIN)
        return connection

    def disconnect(self, connection: ZmqConnection, linger_ms: int = 0) -> None:
        """Close a connection for good."""
        for polled in (connection.socket, connection.monitor):
            if self._connections.pop(polled, None) is not None:
                self._poller.unregister(polled)
        self._wanting.discard(connection.socket)
        connection.close(linger_ms)

    def want_room(self, connection: ZmqConnection, wanted: bool) -> None:
        """Whether `poll` shall end when the connection takes a message again."""
        if wanted != (connection.socket in self._wanting) and connection.socket in self._connections:
            self._poller.modify(connection.socket, zmq.POLLIN | (zmq.POLLOUT if wanted else 0))
            (self._wanting.add if wanted else self._wanting.discard)(connection.socket)

    def poll(self, timeout_s: float | None) -> tuple[bool, dict[ZmqConnection, None]]:
        """Sleep until something comes, a `wake`, or the timeout: (whether one of the former two, connections with
        changes or room, in order).

        Authenticates clients and logs refused peers meanwhile; that ends no sleep.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        timeout_ms = None if timeout_s is None else max(0, -(-round(timeout_s * 1e6) // 1000))
        while True:
            readable, connections = False, dict[ZmqConnection, None]()
            ready = self._poller.poll(timeout_ms)
            for polled, _ in ready:
                if polled is self._monitor.socket:
                    self._monitor.read()
                elif polled is self._zap_socket:
                    assert self._authenticator is not None
                    self._authenticator.serve()
                elif polled == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                    readable = True
                elif polled is self.router:
                    readable = True
                elif isinstance(polled, zmq.Socket):
                    connections[self._connections[polled]] = None
            if readable or connections or not ready:
                return readable, connections
            if until is not None:
                timeout_ms = max(0, math.ceil((until - time.monotonic()) * 1e3))

    def wake(self) -> None:
        """End the present or else the next `poll`; any thread; after `close` nothing."""
        with self._wake_lock:  # after close the descriptor's number may be another file's
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self, linger_s: float) -> None:
        """End all connections once what was handed over is sent, or after linger_s."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        linger_ms = max(0, round(linger_s * 1e3))
        for connection in set(self._connections.values()):
            connection.close(linger_ms)
        self._monitor.close()
        self.context.destroy(linger_ms)
        if self._held is not None:
            self._held.close()


def endpoint(address: Address, source: str = "") -> str:
    """As ZeroMQ writes it; source: the host to connect from."""
    host, port = address
    if not 0 <= port <= 65_535:
        raise JobError(f"ZeroMQ address {host}:{port}: the port must be 0 to 65535")
    return "tcp://" + (f"{_bracketed(source)}:0;" if source else "") + f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def text(address: Address) -> str:
    """As people read it."""
    return f"{address[0]}:{address[1]}"


def handshake_error(value: int, keys: Keys | None) -> str:
    """The fault of a peer whose handshake failed."""
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return (
            "it uses keys (CURVE), this side doesn't: give both sides keys, or none"
            if keys is None
            else "it uses no keys (CURVE), this side does: give it server.key and the secret of a client"
        )
    if keys is not None and value in (
        zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC,
        zmq.PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE,
    ):
        return "its keys and ours don't belong together (CURVE): both sides need the same server.key"
    return f"it speaks another protocol (ZMTP error {value:#x})"


def handshake_ended(keys: Keys | None) -> str:
    """The probable fault of a peer that ended a handshake without a message."""
    what = "it wants keys (CURVE), perhaps" if keys is None else "it has other keys than ours, or none, perhaps"
    return f"it broke off the handshake: {what}, or it is no ZeroMQ peer"


def _peer_of(descriptor: int) -> str:
    """Host that a connection came from; "" if it is closed already."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return ""
    with copy:
        try:
            peer = copy.getpeername()
        except OSError:
            return ""
    return str(peer[0]) if isinstance(peer, tuple) else "this host"  # The peer came by a Unix socket.
