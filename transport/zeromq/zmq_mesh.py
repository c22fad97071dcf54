"""ZeroMqMesh: a `transport.meshes.mesh.Mesh` over ZeroMQ, one ROUTER per member and a DEALER to each other one, or one
for each class. The ROUTER sends acknowledgements and little else, in the most urgent class.

A message is two frames, head and data. Data of 64 KB or more is not copied, on either side: libzmq sends it from the
caller's memory, and `Sent` comes when libzmq has released it, that is, when the kernel has it all. Shorter data is
copied, which is cheaper, and `Sent` comes at once, but only for the first 64 KB that lie below unsent: the others
wait for a marker behind them to leave. So a credit counts all bytes in the queues below, except 64 KB
and the kernel's send buffer (`ZeroMqOptions`) per peer.

Data that libzmq has is watched through its memory: pyzmq keeps a reference to it until libzmq is done, and its
end wakes `wait`, which a MessageTracker couldn't.
"""

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq

from switchagg.errors import DecodeError
from switchagg.priority import tos_of
from transport.links.link import Address
from transport.meshes.hello import Hello, Meeting
from transport.meshes.mesh import (
    HEAD_BYTES_MAX,
    Buffer,
    Event,
    MemberLost,
    MessageReceived,
    MessageSent,
    Place,
)
from transport.meshes.mesh_base import GIVEN_UP, MeshBase
from transport.meshes.mesh_handshake import HandshakeKind
from transport.meshes.mesh_opening import BoundPlace
from transport.zeromq.keys import Keys, as_keys
from transport.zeromq.zmq_gathering import (
    BYE,
    CONTROL,
    FLOW,
    HELLO,
    LOST,
    REFUSED,
    ZmqGathering,
    parse_control,
)
from transport.zeromq.zmq_sockets import Sockets, ZeroMqOptions, ZmqConnection

ZERO_COPY_BYTES = 1 << 16
"""Data this long or longer is sent from, and received into, memory that is not copied again."""

COPIED_BYTES = 1 << 16
"""How much copied data may lie below, per peer, and count as sent."""

RECEIVE_MESSAGES, RECEIVE_BYTES = 64, 1 << 20
"""A `receive` ends after so many messages or bytes: data that is used while the cache holds it costs half as much."""

CHECK_NS = 20_000_000
"""How often `receive` checks connections, when `wait` isn't called."""

FADING_S = 0.25
"""A member that has left is lost when nothing more of it comes, on any connection, for so long."""

CONTROL_BYTES_MAX = 4096


@dataclass(slots=True, eq=False)
class _Flow:
    """A connection to another member. copied: bytes that count as sent, and may be unsent in libzmq; unmarked: those
    with no marker behind them yet. batch: tickets of copied messages that wait for a marker."""

    connection: ZmqConnection
    queue: deque[tuple[bytes, Buffer, int]] = field(default_factory=deque)
    copied: int = 0
    unmarked: int = 0
    batch: list[int] = field(default_factory=list)
    batch_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Peer:
    """Another member. identities: of its connections to us, one for each flow, that have not said bye. fading_ns: when
    it is lost, if nothing more comes of it."""

    member: int
    flows: list[_Flow]
    identity: bytes
    identities: set[bytes]
    expected: int
    fading_ns: int | None = None

    @property
    def connection(self) -> ZmqConnection:
        """The one by which they met."""
        return self.flows[-1].connection


class ZeroMqMesh(MeshBase):
    """A member's end. `connect` makes it; see `transport.meshes.mesh.Mesh` for everything that is not described
    here."""

    link = "zeromq"

    def __init__(
        self,
        local_hello: Hello,
        sockets: Sockets,
        peers: dict[int, tuple[ZmqConnection, bytes]],
        gathering: ZmqGathering,
        classes: tuple[int, ...] = (),
        marks: Sequence[int] = (),
    ) -> None:
        """Private: see `connect`. marks: a TOS byte for each class."""
        super().__init__(local_hello, classes, ("drop_malformed",))
        self._marks, self._gathering = marks, gathering
        self.message_bytes_max = sockets.options.message_bytes_max
        self._sockets = sockets
        self._peers = {
            member: _Peer(member, self._flows_to(member, connection), identity, {identity}, self._flow_count)
            for member, (connection, identity) in peers.items()
        }
        self._by_identity = {peer.identity: peer for peer in self._peers.values()}
        for identity, member in gathering.flows.items():
            self._add_flow(identity, member)
        self._by_connection = {flow.connection: peer for peer in self._peers.values() for flow in peer.flows}
        self._early = deque((self._peers[member], identity, frames) for member, identity, frames in gathering.early)
        gathering.early = []
        self._dirty: dict[tuple[int, int], _Flow] = {}  # by flow and member
        self._changed: dict[ZmqConnection, None] = dict.fromkeys(self._by_connection)
        self._check_ns = 0
        self._returned: deque[int] = deque()  # tickets; any thread of pyzmq appends
        self._watched: dict[int, weakref.ref[memoryview]] = {}
        self._below: dict[int, tuple[_Flow, list[int], int]] = {}

    @classmethod
    def connect(
        cls,
        member: int,
        addresses: Sequence[Address],
        *,
        options: ZeroMqOptions | None = None,
        classes: tuple[int, ...] = (),
        keys: Keys | Path | str | None = None,
        **meeting: Any,
    ) -> "ZeroMqMesh":
        """Listen at addresses[member] and connect to all others.

        meeting: fields of `Meeting`. keys, or their folder: encrypt, and refuse peers that they
        don't allow; the same on all members. Raises JobError: which members are missing and why, or what doesn't fit,
        naming both sides.
        """
        options = options or ZeroMqOptions()
        marks = [tos_of(kind, options.tos) for kind in classes]
        if classes:
            options = replace(options, tos=marks[0])
        terms = Meeting(**meeting)
        local_hello = terms.hello(cls.link, classes, member, len(addresses))
        sockets = Sockets(addresses[member], options, as_keys(keys), max(options.message_bytes_max, CONTROL_BYTES_MAX))
        try:
            tos = marks[-1] if classes else None
            gathering = ZmqGathering(local_hello, terms, addresses, sockets, tos)
            peers = gathering.run()
        except BaseException:
            sockets.close(FADING_S)  # time for the reason to reach the others
            raise
        return cls(local_hello, sockets, peers, gathering, classes, marks)

    def _flows_to(self, member: int, met: ZmqConnection) -> list[_Flow]:
        """A flow for each class; the connection by which the members met carries the last."""
        flows = []
        for place, tos in enumerate(self._marks[:-1]):
            connection = self._sockets.connect(met.address, tos=tos)
            sealed = self._gathering.dialed[member].seal(HandshakeKind.FLOW, bytes([place]))
            connection.socket.send_multipart([CONTROL, FLOW, sealed], zmq.NOBLOCK)  # It waits for the connection.
            flows.append(_Flow(connection))
        return [*flows, _Flow(met)]

    def _add_flow(self, identity: bytes, member: int) -> bool:
        """Another connection of a member; False if it can't be one."""
        peer = self._peers.get(member)
        if peer is None or len(peer.identities) == peer.expected:
            return False
        peer.identities.add(identity)
        self._by_identity[identity] = peer
        return True

    @property
    def counters(self) -> dict[str, int]:
        """tx_…, rx_… of data handed to and come from libzmq; drop_…: messages of unknown peers, and invalid ones."""
        unknown_senders, refused = self._gathering.unknown_senders, self._sockets.refusals.count
        return {**self._counted, "drop_unknown_sender": unknown_senders, "refused": refused}

    # Sending

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """See `Mesh.send`."""
        self._check_send(to, head, len(data))
        peer = self._peers.get(to)
        if peer is None:
            self._returned.append(ticket)
        else:
            peer.flows[flow].queue.append((head, data, ticket))
            self._dirty[flow % len(peer.flows), to] = peer.flows[flow]

    def give_up(self, member: int) -> None:
        """See `Mesh.give_up`."""
        self._require_open()
        if (peer := self._peers.get(member)) is not None:
            self._lose(peer, GIVEN_UP, self._events)

    def _flush(self) -> None:
        for place in sorted(self._dirty) if self.classes else list(self._dirty):  # The most urgent flow goes first.
            flow = self._dirty[place]
            if self._flush_flow(flow):
                del self._dirty[place]
                self._sockets.want_room(flow.connection, False)
            else:
                self._sockets.want_room(flow.connection, True)

    def _flush_flow(self, peer: _Flow) -> bool:
        """False if libzmq takes no more for now."""
        socket, queue = peer.connection.socket, peer.queue
        while queue:
            head, data, ticket = queue[0]
            size = len(data)
            cost = size + len(head)
            at_once = size < ZERO_COPY_BYTES and peer.copied + cost <= COPIED_BYTES and not peer.batch
            last = len(queue) == 1 or peer.batch_bytes + cost > COPIED_BYTES
            try:
                socket.send(head, zmq.NOBLOCK | zmq.SNDMORE)
            except zmq.ZMQError:  # full, or just lost: then the monitor will report it
                return False
            queue.popleft()
            if at_once:
                socket.send(data, zmq.NOBLOCK)
                peer.copied += cost
                peer.unmarked += cost
                self._returned.append(ticket)
            elif size < ZERO_COPY_BYTES and not last:
                socket.send(data, zmq.NOBLOCK)
                peer.batch.append(ticket)
                peer.batch_bytes += cost
            else:
                self._send_watched(peer, data, ticket)
            self._counted["tx_messages"] += 1
            self._counted["tx_bytes"] += size
        return True

    def _send_watched(self, peer: _Flow, data: Buffer, ticket: int) -> None:
        """Send from the memory itself. When libzmq releases it, all that was sent to the peer before has left too."""
        view = memoryview(data)
        self._below[ticket] = (peer, peer.batch, peer.unmarked)
        peer.batch, peer.batch_bytes, peer.unmarked = [], 0, 0
        returned, wake = self._returned, self._sockets.wake

        def released(_: "weakref.ref[memoryview]") -> None:
            returned.append(ticket)
            wake()

        self._watched[ticket] = weakref.ref(view, released)
        peer.connection.socket.send(view, zmq.NOBLOCK, copy=False)

    def _report_sent(self, events: list[Event]) -> None:
        """Report messages that have left as sent."""
        while self._returned:
            ticket = self._returned.popleft()
            below = self._below.pop(ticket, None)
            if below is not None:
                del self._watched[ticket]
                peer, batch, copied = below
                peer.copied -= copied
                events += map(MessageSent, batch)
            events.append(MessageSent(ticket))

    # Receiving

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Mesh.receive`. `place` is never asked: data lies in libzmq's memory, or in a copy if it is short."""
        self._require_open()
        events = self._take_events()
        self._flush()
        self._report_sent(events)
        self._take_messages(events)
        now_ns = time.monotonic_ns()
        if now_ns >= self._check_ns:
            self._check_ns = now_ns + CHECK_NS
            self._changed |= self._sockets.poll(0)[1]
        if self._changed:
            self._check_connections(events, now_ns)
        for peer in [p for p in self._peers.values() if p.fading_ns is not None and now_ns >= p.fading_ns]:
            self._lose(peer, peer.connection.trouble or "it is gone", events)
        return events

    def _take_messages(self, events: list[Event]) -> None:
        taken_bytes = 0
        for _ in range(RECEIVE_MESSAGES):
            if taken_bytes >= RECEIVE_BYTES:
                return
            if self._early:
                peer, name, frames = self._early.popleft()
            else:
                try:
                    identity, *frames = self._sockets.router.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    return
                except zmq.ZMQError:  # a peer's connection broke while it was read
                    continue
                name = identity.bytes
                sender = self._by_identity.get(name)
                if sender is None:
                    self._reject(name, frames)
                    continue
                peer = sender
            taken_bytes += self._take(peer, name, frames, events)

    def _take(self, peer: _Peer, name: bytes, frames: list[zmq.Frame], events: list[Event]) -> int:
        """Take a message of a member; returns the bytes of its data."""
        if len(frames) != 2 or len(frames[0]) > HEAD_BYTES_MAX or len(frames[1]) > self.message_bytes_max:
            control = parse_control(frames)
            if control is not None and control[0] == BYE:
                peer.identities.discard(name)  # what is on its way on its other flows was sent before
                peer.expected -= 1
                if not peer.expected:
                    self._lose(peer, "it closed its end", events)
            else:
                self._counted["drop_malformed"] += 1
            return 0
        head, data = frames
        size = len(data)
        self._counted["rx_messages"] += 1
        self._counted["rx_bytes"] += size
        if peer.fading_ns is not None:
            peer.fading_ns = time.monotonic_ns() + round(FADING_S * 1e9)
        events.append(MessageReceived(peer.member, head.bytes, data.buffer if size >= ZERO_COPY_BYTES else data.bytes))
        return size

    def _reject(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        """Drop a message of an unknown peer; answer a member's hello that it comes too late."""
        word, message = parse_control(frames) or (b"", b"")
        gathering = self._gathering
        try:
            if word == FLOW and self._add_flow(identity, gathering.member_of_flow(message)):
                return
            greeting = gathering.greeting(identity, message) if word == HELLO else None
            if greeting is not None:
                late = greeting[0].refusal(f"member {self.member} has begun; nobody else can join")
                self._send_control(identity, REFUSED, late)
            gathering.drop()
        except DecodeError:
            gathering.drop()

    def _send_control(self, identity: bytes, word: bytes, body: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # best effort: it may be disconnected, or not reading
            self._sockets.router.send_multipart([identity, CONTROL, word, body], zmq.NOBLOCK)

    def _check_connections(self, events: list[Event], now_ns: int) -> None:
        """Note lost connections, and members that have given us up."""
        news, self._changed = self._changed, {}
        for connection in news:
            peer = self._by_connection.get(connection)
            if peer is None:
                continue
            if False in connection.read_monitor() and peer.fading_ns is None:
                peer.fading_ns = now_ns + round(FADING_S * 1e9)
            while peer.member in self._peers:
                try:
                    frames = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.ZMQError:
                    break
                control = parse_control(frames)
                if control is not None and control[0] == LOST:
                    self._lose(peer, f"it has given this member up: {control[1].decode(errors='replace')}", events)

    def _lose(self, peer: _Peer, reason: str, events: list[Event]) -> None:
        if self._peers.pop(peer.member, None) is None:
            return
        for name in [name for name, owner in self._by_identity.items() if owner is peer]:
            del self._by_identity[name]
        self._early = deque(item for item in self._early if item[0] is not peer)
        self._send_control(peer.identity, LOST, reason.encode()[:1000])
        self._counted["lost"] += 1
        events.append(
            MemberLost(peer.member, f"{reason} (ZeroMQ, {peer.connection.address[0]}:{peer.connection.address[1]})")
        )
        for place, flow in enumerate(peer.flows):
            del self._by_connection[flow.connection]
            self._dirty.pop((place, peer.member), None)
            self._returned.extend(flow.batch)
            self._returned.extend(ticket for _, _, ticket in flow.queue)
            flow.queue.clear()
            self._sockets.disconnect(flow.connection)  # libzmq then releases what it still holds for it
        self._report_sent(events)

    # Waiting and closing

    def wait(self, timeout_s: float | None) -> bool:
        """See `Mesh.wait`."""
        self._require_open()
        self._flush()
        if self._returned or self._early or self._events:
            return True
        for peer in self._peers.values():
            if peer.fading_ns is not None:
                left_s = max(0.0, (peer.fading_ns - time.monotonic_ns()) / 1e9)
                if timeout_s is None or left_s < timeout_s:
                    self._sleep(left_s)
                    return True
        return self._sleep(timeout_s)

    def _sleep(self, timeout_s: float | None) -> bool:
        readable, connections = self._sockets.poll(timeout_s)
        self._changed |= connections
        return readable or bool(connections)

    def wake(self) -> None:
        """See `Mesh.wake`."""
        self._sockets.wake()

    def close(self, linger_s: float = 1.0) -> None:
        """See `Mesh.close`."""
        if self._closed:
            return
        end = time.monotonic() + linger_s
        to_notify = {flow: None for peer in self._peers.values() for flow in peer.flows}
        while True:
            self._flush()
            for flow in [flow for flow in to_notify if not flow.queue]:
                try:
                    flow.connection.socket.send_multipart([CONTROL, BYE, b""], zmq.NOBLOCK)
                except zmq.ZMQError:
                    if flow.connection.read_monitor() or not flow.connection.up:
                        del to_notify[flow]  # disconnected
                    else:
                        self._sockets.want_room(flow.connection, True)
                else:
                    del to_notify[flow]
            left_s = end - time.monotonic()
            if not to_notify or left_s <= 0:
                break
            self._sockets.poll(min(left_s, 0.05))
        self._closed = True
        self._sockets.close(max(0.0, end - time.monotonic()))
        self._watched.clear()


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> ZeroMqMesh:
    """See `mesh_opening.connect_mesh`, which holds the port until this mesh binds it; options: `options`, `keys`."""
    return ZeroMqMesh.connect(member, addresses, **options, **how)
