"""How the members of a job connect over TCP: one checked connection per pair, or one for each flow.

The member with the higher number connects, as the dialer of a `transport.meshes.mesh_handshake`; both say hello then,
whether they fit or not, so that both sides can name a disagreement. The two pass it on to all others before they fail.
Unknown senders, who don't prove that they have the job's token, are sent away after a few seconds, or at once if they
send no message of a handshake; they learn nothing, delay nobody and are counted.
"""

import contextlib
import errno
import os
import secrets
import select
import socket
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchagg.errors import DecodeError, JobError
from switchagg.priority import socket_priority_of_tos, tos_of
from transport.links.link import Address
from transport.links.outages import bound_timeouts, patience_s
from transport.meshes.gathering import LEFT_S, Gathering, address_text
from transport.meshes.hello import ANYBODY, Hello, Meeting, disagreement, unpack
from transport.meshes.mesh_handshake import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    HandshakeKind,
    Listener,
    PeerSession,
    pack_opening,
    size_bytes,
    trouble_of,
)

RETRY_S = 0.02
UNKNOWN_SENDER_RETRY_S = 0.5
"""When to connect again to an address where an unknown sender has answered."""

HELLO_S = 5.0
"""How long a process that connected may take to prove that it has the job's token."""

PROBE_AFTER_S = 0.5
"""When a member that should connect to this one, and hasn't, is asked whether its process still has its port."""

CANCEL_S = 0.1
"""How soon waiting ends when it is cancelled."""

SAYS_NOTHING = "it lets us connect and says nothing: was it stopped?"

GUESTS_MAX = 256
"""Connections whose peers have not proved it; with more, the oldest is closed."""

_TCP_CONGESTION = 13

_connections: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
"""Sockets of this process's meshes, those that listen among them. A forked child (a DataLoader's worker, say) closes
them: it can't use them, and while it lived no peer would notice that this process has died."""


def _let_go() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True)
class TcpOptions:
    """Options of every socket. congestion_control: a name the kernel knows; None leaves the machine's default.
    buffer_bytes: what a socket may hold to be sent; bound it by the queue of a shaped link, or TCP fills that queue
    until it drops; None leaves it to the kernel. tos: the TOS byte of every packet. silence_s: an outage so long ends
    no connection; a peer whose kernel doesn't answer for `patience_s` of it is lost. unsent_bytes: how much the kernel
    takes beyond what it can send at once: small, so that urgent messages overtake.
    """

    congestion_control: str | None = None
    buffer_bytes: int | None = None
    tos: int = 0
    silence_s: float = 30.0
    unsent_bytes: int = 1 << 17

    def __post_init__(self) -> None:
        if not 0 <= self.tos <= 255:
            raise ValueError(f"tos {self.tos}: 0 to 255")
        if not self.silence_s > 0 or self.unsent_bytes < 1:
            raise ValueError("silence_s, unsent_bytes: more than 0")
        if self.buffer_bytes is not None and self.buffer_bytes < 1:
            raise ValueError(f"buffer_bytes {self.buffer_bytes}: 1 or more")

    def for_classes(self, classes: Sequence[int]) -> "list[TcpOptions]":
        """The options of each class's connections; these for all if there are none."""
        return [replace(self, tos=tos_of(kind, self.tos)) for kind in classes] or [self]

    def new_socket(self) -> socket.socket:
        """Non-blocking; the options are set before it connects: the window's scale is agreed then. Raises JobError."""
        new = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.set_on(new)
        except BaseException:
            new.close()
            raise
        return new

    def set_on(self, connection: socket.socket) -> None:
        """Set all of them; accepted sockets inherit some only. Raises JobError for a congestion control refused."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self.unsent_bytes)
        if self.congestion_control is not None:
            set_congestion_control(connection, self.congestion_control)
        if self.buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer_bytes)
        if self.tos:
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.tos)
        if priority := socket_priority_of_tos(self.tos):  # the kernel's own reading of a TOS ignores classes
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience_s(self.silence_s) * 1e3))
        bound_timeouts(connection.fileno())


def congestion_control_of(connection: socket.socket) -> str:
    """TCP congestion control of a socket."""
    return connection.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16).split(b"\0")[0].decode("ascii")


def set_congestion_control(connection: socket.socket, name: str) -> None:
    """Choose one socket's congestion control. CAP_NET_ADMIN may choose any, also where the namespace's default may not
    be changed. Raises JobError."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, name.encode("ascii"))
    except OSError as error:
        raise JobError(f"TCP congestion control {name}: the kernel refuses it here: {error.strerror}") from error


def listen(address: Address, options: TcpOptions | None = None) -> socket.socket:
    """A listening socket; port 0 for any free one. Raises JobError naming the address."""
    listener = (options or TcpOptions()).new_socket()
    try:
        _connections.add(listener)
        listener.bind(address)
        listener.listen(256)
    except (OSError, OverflowError) as error:
        listener.close()
        raise JobError(f"can't listen at {address[0]}:{address[1]}: {error}") from error
    return listener


@dataclass(slots=True, eq=False)
class _Pending:
    """A connection whose handshake isn't done, or that only asks whether a process has its port. expected: the member
    that should be there; None if it came to us.

    nonce: what a dialer sends, or of this connection alone. opened: whether the opening was sent, or has come.
    """

    connection: socket.socket
    place: str
    expected: int | None
    until: float
    nonce: bytes
    prefix: bytearray = field(default_factory=bytearray)
    opened: bool = False
    session: PeerSession | None = None


class TcpGathering(Gathering):
    """Connects one member to all others; made, run and left behind. unknown_senders: how many were sent away.

    Who is missing is dead if its host refuses a connection to its port, and was stopped if it accepts one: the kernel
    does that for a process that is not running (L16). `Meeting.sleeper_s` says how long those are waited for, and, as
    long as TCP would be silent, those whose hosts don't answer.
    """

    def __init__(
        self, hello: Hello, terms: Meeting, addresses: Sequence[Address], listener: socket.socket, options: TcpOptions
    ) -> None:
        """listener: where the others find this member; it is closed at the end."""
        super().__init__(hello, addresses, terms)
        self._listener, self._options = listener, options
        _connections.add(listener)
        self._handshakes = Listener(terms.key, secrets.token_bytes(32))
        self._sessions: dict[int, PeerSession] = {}  # of members that are connected
        self.unknown_senders = 0
        self._poll = select.epoll()
        self._pending: dict[int, _Pending] = {}
        self._connected: dict[int, socket.socket] = {}
        self._retry_at = dict.fromkeys(range(hello.member), 0.0)  # whom to connect to, and when
        if terms.sleeper_s:
            higher = range(hello.member + 1, hello.members)
            self._retry_at |= dict.fromkeys(higher, self._began + PROBE_AFTER_S)
        self._accepted: dict[int, bool] = {}  # by member: of its host's last answer
        self._refused: list[socket.socket] = []  # connections of members that don't fit

    def run(self) -> dict[int, socket.socket]:
        """Connections to all other members, non-blocking. Raises JobError: which members are missing, or what doesn't
        fit."""
        try:
            self._listener.setblocking(False)
            self._poll.register(self._listener, select.EPOLLIN)
            while self.refusal or len(self._connected) < self._hello.members - 1:
                now = time.monotonic()
                self._give_up(now)
                self._connect(now)
                for descriptor, happened in self._poll.poll(self._pause_s(now)):
                    self._happened(descriptor, happened)
            _connections.update(self._connected.values())
            return self._connected
        except BaseException:
            for connection in self._connected.values():
                connection.close()
            raise
        finally:
            self.unknown_senders += sum(pending.expected is None for pending in self._pending.values())
            for connection in (*self._refused, *(pending.connection for pending in self._pending.values())):
                connection.close()
            self._poll.close()
            self._listener.close()

    def _pause_s(self, now: float) -> float:
        ends = [*self._retry_at.values(), *(pending.until for pending in self._pending.values())]
        ends.append(now + (LEFT_S if self._terms.cancelled is None else CANCEL_S))
        return max(0.0, min(*ends, *([self.until] if now < self.until else [])) - now)

    def _until_of(self, member: int) -> float:
        accepted = self._accepted.get(member)
        if accepted is False:
            return self.until
        most_s = self._terms.sleeper_s
        return max(self.until, self._began + (most_s if accepted else min(most_s, patience_s(self._options.silence_s))))

    def _give_up(self, now: float) -> None:
        for pending in [pending for pending in self._pending.values() if now >= pending.until]:
            self._dismiss(pending, SAYS_NOTHING if pending.opened else "no answer")
        if self.is_refused:
            raise JobError(f"job {self._hello.job}: {self.refusal}")
        if not self.refusal:
            self.check_time(sorted(self.other_members - self._connected.keys()), self.unknown_senders)

    # Connecting

    def _connect(self, now: float) -> None:
        for member in [member for member, at in self._retry_at.items() if now >= at]:
            attempt = self._options.new_socket()
            nonce, until = secrets.token_bytes(NONCE_BYTES), max(self.until, self._began + self._terms.sleeper_s)
            pending = _Pending(attempt, address_text(self._addresses[member]), member, until, nonce)
            self._pending[attempt.fileno()] = pending
            del self._retry_at[member]
            try:
                code = attempt.connect_ex(self._addresses[member])
            except OSError as error:  # a name that can't be resolved
                self._poll.register(attempt, 0)
                self._dismiss(pending, str(error))
                continue
            self._poll.register(attempt, select.EPOLLOUT)
            if code not in (0, errno.EINPROGRESS):
                self._no_connection(pending, code)

    def _no_connection(self, pending: _Pending, code: int) -> None:
        """A connection of ours was refused, or not answered."""
        if pending.expected is not None and code == errno.ECONNREFUSED:
            self._accepted[pending.expected] = False
        self._dismiss(pending, os.strerror(code))

    def _dismiss(self, pending: _Pending, trouble: str, retry_s: float = RETRY_S) -> None:
        """Close a connection that failed; if it was ours, try again soon, else count an unknown sender."""
        descriptor = pending.connection.fileno()
        self._poll.unregister(descriptor)
        del self._pending[descriptor]
        pending.connection.close()
        if pending.expected is None:
            self.unknown_senders += 1
        elif pending.expected not in self._connected:
            self._trouble[pending.expected] = trouble
            self._retry_at[pending.expected] = time.monotonic() + retry_s

    def _accept(self) -> None:
        for _ in range(64):
            try:
                client, (host, port) = self._listener.accept()
            except OSError:  # none left, or one that is closed already
                return
            try:
                self._options.set_on(client)
            except OSError:
                client.close()
                continue
            waiting = [pending for pending in self._pending.values() if pending.expected is None]
            if len(waiting) >= GUESTS_MAX:
                self._dismiss(waiting[0], "")
            until, place = time.monotonic() + HELLO_S, address_text((host, port))
            self._pending[client.fileno()] = _Pending(client, place, None, until, secrets.token_bytes(NONCE_BYTES))
            self._poll.register(client, select.EPOLLIN)

    # Handshakes

    def _happened(self, descriptor: int, happened: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
            return
        pending = self._pending.get(descriptor)
        if pending is None:
            self._check_connected(descriptor, happened)
        elif pending.expected is not None and not pending.opened:
            self._connection_made(pending)
        else:
            self._read(pending)

    def _check_connected(self, descriptor: int, happened: int) -> None:
        """Note a refusal, and a member that has left again; whatever else it sent is for the mesh to read."""
        for member, connection in list(self._connected.items()):
            if connection.fileno() == descriptor:
                message = b""
                with contextlib.suppress(OSError):
                    message = connection.recv(MESSAGE_BYTES_MAX, socket.MSG_PEEK)
                with contextlib.suppress(DecodeError):
                    words = self._sessions[member].open(HandshakeKind.REFUSAL, message).decode(errors="replace")
                    self.refuse(words, words, member)
                if happened & ~select.EPOLLIN:
                    self._poll.unregister(descriptor)
                    self._left[member] = time.monotonic()

    def _reached(self) -> Iterable[int]:
        return self._connected

    def _inform(self, member: int) -> None:
        if member not in self.informed:
            self.informed.add(member)
            with contextlib.suppress(OSError):  # it has left
                self._connected[member].send(self._sessions[member].refusal(self._to_others))
                self._connected[member].shutdown(socket.SHUT_WR)  # or a reset could overtake it

    def _replaced(self, member: int) -> bool:
        """Whether the member has closed its earlier connection, which is then removed."""
        try:
            over = not self._connected[member].recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            over = False
        except OSError:
            over = True
        if over:
            self._connected.pop(member).close()  # which also ends its place in the poll
            self._left.pop(member, None)
        return over

    def _connection_made(self, pending: _Pending) -> None:
        """Our connection is established, or refused."""
        code = pending.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        member = pending.expected
        assert member is not None
        self._accepted.pop(member, None)
        if code:
            self._no_connection(pending, code)
            return
        host, port = self._addresses[member]
        if pending.connection.getsockname() == pending.connection.getpeername():
            self._accepted[member] = False
            self._dismiss(pending, f"nobody listens at {host}:{port}")  # on loopback a socket may connect to itself
            return
        pending.opened = self._accepted[member] = True
        self._trouble[member] = SAYS_NOTHING
        if member > self._hello.member or self._send(pending, pack_opening(pending.nonce)):
            self._poll.modify(pending.connection, select.EPOLLIN)

    def _send(self, pending: _Pending, message: bytes) -> bool:
        try:
            pending.connection.send(message)  # far less than any socket takes at once
        except OSError as error:
            self._dismiss(pending, error.strerror or "")
            return False
        return True

    def _read(self, pending: _Pending) -> None:
        """Read what has arrived of a message of the handshake, and nothing beyond it."""
        try:
            while len(pending.prefix) < (size := size_bytes(pending.prefix)):
                data = pending.connection.recv(size - len(pending.prefix))
                if not data:
                    self._dismiss(pending, "it closed the connection")
                    return
                pending.prefix += data
            message = bytes(pending.prefix)
            pending.prefix.clear()
            if pending.expected is None:
                self._take_from_dialer(pending, message)
            else:
                self._take_from_listener(pending, pending.expected, message)
        except BlockingIOError:
            return
        except OSError as error:
            self._dismiss(pending, error.strerror or "")
        except DecodeError as error:
            self._dismiss(pending, trouble_of(error), UNKNOWN_SENDER_RETRY_S)

    def _take_from_dialer(self, pending: _Pending, message: bytes) -> None:
        """Raises DecodeError for what no member sends."""
        if not pending.opened:
            pending.opened = True
            self._send(pending, self._handshakes.challenge(message, pending.nonce))
            return
        pending.session, body = self._handshakes.session(message, pending.nonce)
        self._meet(pending, pending.session, unpack(body)[0])

    def _take_from_listener(self, pending: _Pending, member: int, message: bytes) -> None:
        """Raises DecodeError for what no member sends."""
        if pending.session is not None:
            self._meet(pending, pending.session, unpack(pending.session.open(HandshakeKind.ANSWER, message))[0])
            return
        pending.session = PeerSession.challenged(self._handshakes.key, pending.nonce, message)
        self._send(pending, pending.session.seal(HandshakeKind.PROOF, replace(self._hello, to=member).pack()))

    def _meet(self, pending: _Pending, session: PeerSession, hello: Hello) -> None:
        words = disagreement(self._hello, hello, pending.place, pending.expected)
        if pending.expected is None:
            if not self._send(pending, session.seal(HandshakeKind.ANSWER, replace(self._hello, to=ANYBODY).pack())):
                return
            if not words and hello.member < self._hello.member:
                words = f"member {hello.member} at {pending.place} connects to this member {self._hello.member}, "
                words += "though it has the lower number"
        if not words and hello.member in self._connected and not self._replaced(hello.member):
            words = f"two say they are member {hello.member}; one is at {pending.place}"
        del self._pending[pending.connection.fileno()]
        if words:
            # Shut down only our side: a reset could reach the peer before it has read our hello.
            with contextlib.suppress(OSError):
                pending.connection.shutdown(socket.SHUT_WR)
            self._poll.unregister(pending.connection)
            self._refused.append(pending.connection)
            self.disagree(words, hello.member)
            return
        self._connected[hello.member], self._sessions[hello.member] = pending.connection, session
        self._poll.modify(pending.connection, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        if self.refusal:
            self._inform(hello.member)


def gather(
    hello: Hello,
    terms: Meeting,
    addresses: Sequence[Address],
    listener: socket.socket,
    flows: Sequence[TcpOptions],
) -> tuple[list[dict[int, socket.socket]], int]:
    """Connections to all other members, one for each flow with its options, each by member; and how many unknown
    senders were sent away. Raises JobError as `TcpGathering.run`. listener: closed at the end."""
    until, unknown_senders = time.monotonic() + terms.timeout_s, 0
    connections: list[dict[int, socket.socket]] = []
    try:
        for options in flows:
            if connections:  # who still looks for members would take the next connection for a second one of the first
                until = max(until, time.monotonic() + HELLO_S)  # who was waited for longer is here
                exchange(connections[0], dict.fromkeys(connections[0], b"ready"), until, hello.job)
            left = replace(terms, timeout_s=max(0.0, until - time.monotonic()))
            gathering = TcpGathering(hello, left, addresses, listener.dup(), options)
            connections.append(gathering.run())
            unknown_senders += gathering.unknown_senders
    except BaseException:
        for connection in (link for flow in connections for link in flow.values()):
            connection.close()
        raise
    finally:
        listener.close()
    return connections, unknown_senders


def exchange(
    connections: Mapping[int, socket.socket], outgoing: Mapping[int, bytes], until: float, job: str
) -> dict[int, bytes]:
    """Send each member its bytes, right after they met, and receive as many from each, until then. Raises JobError
    naming those that sent nothing."""
    for member, connection in connections.items():
        try:
            connection.send(outgoing[member])  # far less than any socket takes at once
        except OSError as error:
            raise JobError(f"job {job}: member {member} is gone: {error.strerror}") from error
    incoming = {member: b"" for member in connections}
    while missing := [member for member, data in incoming.items() if len(data) < len(outgoing[member])]:
        left_s = until - time.monotonic()
        if left_s <= 0:
            who = ", ".join(map(str, missing))
            raise JobError(f"job {job}: nothing from member {who} in time, though a connection is there")
        for ready in select.select([connections[member] for member in missing], [], [], left_s)[0]:
            member = next(member for member in missing if connections[member] is ready)
            try:
                data = ready.recv(len(outgoing[member]) - len(incoming[member]))
            except BlockingIOError:
                continue
            except OSError as error:
                raise JobError(f"job {job}: member {member} is gone: {error.strerror}") from error
            if not data:
                raise JobError(f"job {job}: member {member} has left before all had connected")
            incoming[member] += data
    return incoming
