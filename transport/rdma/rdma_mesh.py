"""RdmaMesh: messages over reliable (RC) queue pairs of any provider of verbs (see `transport.meshes.mesh.Mesh`).

The members connect over TCP first, and exchange their queue pairs there, one or one for each class; afterwards those
connections only show that a member leaves or has died. A message is SENDs into the receiver's ring of registered slots:
the first has head and length (and all of a short message's data), the others data straight from the sender's memory.
Credits keep the sender from using a slot that isn't free: each is given back once its data was copied to its place.

    first piece: 0 u8 0 | 1 u8 bytes of head | 2 u16 0 | 4 u32 bytes of data | 8 head, data; credits: an immediate alone
"""

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from switchagg.errors import JobError
from switchagg.priority import tos_of
from transport.links.addresses import resolve_host
from transport.links.framing import ROCE_PORT
from transport.links.link import Address
from transport.meshes.hello import Hello, Meeting
from transport.meshes.mesh import (
    HEAD_BYTES_MAX,
    Buffer,
    Event,
    MessageSent,
    Place,
)
from transport.meshes.mesh_base import GIVEN_UP, MeshBase
from transport.meshes.mesh_opening import BoundPlace
from transport.meshes.tcp_gathering import TcpGathering, TcpOptions, exchange, listen
from transport.rdma.provider import default_provider, open_context
from transport.rdma.rdma_handshake import MeshQueuePair, path_mtu_of
from transport.rdma.verbs import (
    AccessFlags,
    MemoryRegion,
    Opcode,
    QPAttributes,
    QPType,
    ReceiveRequest,
    SendRequest,
    WCStatus,
    WorkCompletion,
)

MESSAGE_BYTES_MAX = 1 << 26
SLOT_BYTES = (1 << 16) + 128
"""A message of 64 KiB is one piece."""

SLOTS = 16
"""Slots of the ring for one peer: 1 MiB may be in flight to each."""

RETURN_AFTER = SLOTS // 4
"""Slots used before their credits are given back, all together."""

RETURNS_MAX = SLOTS // RETURN_AFTER + 1
"""Credit returns that may lie unread at the peer, which has places for them besides its slots."""

OUT_SLOTS = 32
"""Slots of each flow, for first pieces that are being sent, to all peers together."""

POLL = 64  # completions of one `receive`
CHECK_S = 0.05  # how often a waiting member checks the TCP connections
_HEADER = struct.Struct(">BBHI")
_SEND, _RETURN = 1 << 40, 1 << 41  # ids; those of receives are places in the ring
_LEAVES = b"L"


@dataclass(frozen=True)
class RdmaMeshOptions:
    """provider: as of RdmaOptions. path_mtu: None for the largest that fits the path. tos: of all packets. timeout: no
    answer for 4.096 us * 2**timeout counts as loss, and eight times that as a dead peer: 0.27 s and 2.1 s.
    """

    provider: str = field(default_factory=default_provider)
    path_mtu: int | None = None
    tos: int = 0
    timeout: int = 16


class _Message:
    """On its way out."""

    __slots__ = ("data", "head", "posted_bytes", "region", "ticket")

    def __init__(self, head: bytes, data: Any, ticket: int) -> None:
        self.head, self.data, self.ticket = head, data, ticket  # data: uint8 array
        self.region: MemoryRegion | None = None
        self.posted_bytes = -1  # bytes of data posted; -1: not even the head

    def close(self) -> None:
        if self.region is not None:
            self.region.close()


class _Peer:
    """A queue pair to a member, for all messages or one class, its ring, and what is in flight. tos: of its packets.
    free: slots of `out`, its flow's."""

    __slots__ = (
        *("connection", "credits", "data", "filled", "free", "head", "member", "outbox", "pair"),
        *("posted", "region", "ring", "tos", "used"),
    )

    def __init__(
        self,
        member: int,
        connection: socket.socket,
        tos: int,
        free: list[int],
        pair: Any,
        ring: Any,
        region: MemoryRegion,
    ) -> None:
        self.member, self.connection, self.tos, self.free = member, connection, tos, free
        self.pair, self.ring, self.region = pair, ring, region
        self.credits = SLOTS
        self.used = 0  # slots whose credits weren't given back yet
        self.outbox: deque[_Message] = deque()
        self.posted: deque[tuple[_Message, int, bool]] = deque()  # slot of `out` or -1; whether it ends the message
        self.head = b""
        self.data: memoryview | None = None
        self.filled = 0


class RdmaMesh(MeshBase):
    """The end of an RDMA mesh at one member, opened by `connect`.

    Besides what every mesh counts: `sends`, `receives` (pieces), `returns` (of credits), `no_credit` (how often a
    message had to wait for one), `lost`, `drop_unknown_sender` as of TcpMesh; `device`: what the provider counts.
    """

    link = "rdma"
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        hello: Hello,
        options: RdmaMeshOptions,
        host: str,
        members: Sequence[int],
        classes: tuple[int, ...] = (),
    ) -> None:
        """Private: see `connect`."""
        super().__init__(hello, classes, ("sends", "receives", "returns", "no_credit", "drop_unknown_sender"))
        self.counters = self._counted
        self._options = options
        self._completions: list[WorkCompletion] = []
        self._peers: dict[int, list[_Peer]] = {}  # of each member, by flow
        self._by_number: dict[int, _Peer] = {}
        self._woken = False
        self._poll = select.epoll()
        self._context = _open(options.provider, host)
        try:
            self._domain = self._context.alloc_pd()
            depth = SLOTS + RETURNS_MAX
            flows = self._flow_count
            self._queue = self._context.create_cq(max(1, 2 * depth * len(members) * flows))
            self._out = np.empty((flows * OUT_SLOTS, SLOT_BYTES), np.uint8)
            self._out_region = self._context.reg_mr(self._domain, self._out, AccessFlags.LOCAL_WRITE)
            self._free = [list(range(flow * OUT_SLOTS, (flow + 1) * OUT_SLOTS)) for flow in range(flows)]
        except BaseException:
            self._context.close()
            self._poll.close()
            raise

    @classmethod
    def connect(
        cls,
        member: int,
        addresses: Sequence[Address],
        *,
        options: RdmaMeshOptions | None = None,
        classes: tuple[int, ...] = (),
        listener: socket.socket | None = None,
        **meeting: Any,
    ) -> "RdmaMesh":
        """Listen at addresses[member] (TCP) and connect to all others.

        The queue pairs are at the same hosts; the soft provider's port is 4791, or any where another process has that.
        Otherwise as TcpMesh.connect. Raises JobError also where there is no such RDMA device.
        """
        options, terms = options or RdmaMeshOptions(), Meeting(**meeting)
        until = time.monotonic() + terms.timeout_s
        connections: dict[int, socket.socket] = {}
        try:
            hello = terms.hello(cls.link, classes, member, len(addresses))
            if len(addresses) > 1:
                listener = listener or listen(addresses[member])
                peers = [other for other in range(len(addresses)) if other != member]
                mesh = cls(hello, options, resolve_host(addresses[member][0]), peers, classes)
            else:
                mesh = cls(hello, options, "127.0.0.1", [], classes)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        try:
            if len(addresses) > 1 and listener is not None:
                gathering = TcpGathering(hello, terms, addresses, listener, TcpOptions())
                connections = gathering.run()
                mesh.counters["drop_unknown_sender"] = gathering.unknown_senders
                mesh._connect_all(connections, until)
            elif listener is not None:
                listener.close()
        except BaseException:
            for connection in connections.values():
                connection.close()
            mesh._shut()
            raise
        return mesh

    def _connect_all(self, connections: dict[int, socket.socket], until: float) -> None:
        """Connect a queue pair, or one for each class, with every peer. Raises JobError naming those that don't
        answer."""
        options = self._options
        pairs: dict[int, list[MeshQueuePair]] = {}
        for member, connection in connections.items():
            marks = [tos_of(kind, options.tos) for kind in self.classes] or [options.tos]
            self._peers[member] = [
                self._new_peer(member, connection, tos, free) for tos, free in zip(marks, self._free, strict=True)
            ]
            mtu = options.path_mtu or path_mtu_of(connection)
            pairs[member] = [MeshQueuePair(peer.pair.end, mtu, SLOTS, SLOT_BYTES) for peer in self._peers[member]]
        outgoing = {member: b"".join(end.pack() for end in ends) for member, ends in pairs.items()}
        incoming = exchange(connections, outgoing, until, self._hello.job)
        for member, flows in self._peers.items():
            size = len(incoming[member]) // len(flows)
            for place, peer in enumerate(flows):
                end = MeshQueuePair.unpack(incoming[member][place * size : (place + 1) * size])
                if (end.slots, end.slot_bytes) != (SLOTS, SLOT_BYTES):
                    raise JobError(
                        f"job {self._hello.job}: member {member} has other slots than this one: another version?"
                    )
                mtu = min(end.mtu, pairs[member][place].mtu)
                peer.pair.connect(end.end, QPAttributes(path_mtu=mtu, dscp=peer.tos >> 2, timeout=options.timeout))
                peer.pair.post_recv([self._receive_at(peer, slot) for slot in range(SLOTS + RETURNS_MAX)])
        exchange(connections, dict.fromkeys(connections, b"ready"), until, self._hello.job)  # all can receive now
        for connection in connections.values():
            self._poll.register(connection, select.EPOLLIN | select.EPOLLRDHUP)

    def _new_peer(self, member: int, connection: socket.socket, tos: int, free: list[int]) -> _Peer:
        depth = SLOTS + RETURNS_MAX
        ring = np.empty((depth, SLOT_BYTES), np.uint8)
        region = self._context.reg_mr(self._domain, ring, AccessFlags.LOCAL_WRITE)
        pair = self._context.create_qp(
            self._domain, QPType.RC, self._queue, self._queue, send_depth=depth, receive_depth=depth
        )
        peer = self._by_number[pair.number] = _Peer(member, connection, tos, free, pair, ring, region)
        return peer

    def _receive_at(self, peer: _Peer, place: int) -> ReceiveRequest:
        return ReceiveRequest(place, peer.region.address + place * SLOT_BYTES, SLOT_BYTES, peer.region.lkey)

    # Sending

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """See `Mesh.send`."""
        self._check_send(to, head, len(data))
        flows = self._peers.get(to)
        if flows is None:
            self._events.append(MessageSent(ticket))
            return
        flows[flow].outbox.append(_Message(head, np.frombuffer(data, np.uint8), ticket))

    def give_up(self, member: int) -> None:
        """See `Mesh.give_up`."""
        self._require_open()
        if (flows := self._peers.get(member)) is not None:
            self._lose(flows[0], GIVEN_UP)

    def _pump(self, peer: _Peer) -> None:
        """Post what there are credits for."""
        requests = []
        while peer.outbox and peer.credits:
            message = peer.outbox[0]
            piece = self._first_piece(peer, message) if message.posted_bytes < 0 else self._next_piece(message)
            if piece is None:
                break
            address, length, lkey, slot = piece
            ends = message.posted_bytes == len(message.data)
            requests.append(SendRequest(_SEND, Opcode.SEND, address, length, lkey))
            peer.posted.append((message, slot, ends))
            peer.credits -= 1
            if ends:
                peer.outbox.popleft()
        if peer.outbox and not peer.credits:
            self.counters["no_credit"] += 1
        if requests:
            self.counters["sends"] += len(requests)
            if peer.pair.post_send(requests) != len(requests):
                self._lose(peer, "its queue pair takes no more sends")

    def _first_piece(self, peer: _Peer, message: _Message) -> tuple[int, int, int, int] | None:
        """Head, and data if all of it fits: (address, length, lkey, slot of `out`); None while no slot is free."""
        if not peer.free:
            return None
        slot = peer.free.pop()
        size, beside = len(message.data), _HEADER.size + len(message.head)
        with_data = size if size <= SLOT_BYTES - beside else 0
        room = self._out[slot]
        room[:beside] = np.frombuffer(_HEADER.pack(0, len(message.head), 0, size) + message.head, np.uint8)
        room[beside : beside + with_data] = message.data[:with_data]
        message.posted_bytes = with_data
        region = self._out_region
        return region.address + slot * SLOT_BYTES, beside + with_data, region.lkey, slot

    def _next_piece(self, message: _Message) -> tuple[int, int, int, int]:
        """Data from where it lies."""
        region = message.region
        if region is None:
            region = message.region = self._context.reg_mr(self._domain, message.data, AccessFlags.NONE)
        begin = message.posted_bytes
        length = min(SLOT_BYTES, len(message.data) - begin)
        message.posted_bytes += length
        return region.address + begin, length, region.lkey, -1

    def _on_sent(self, peer: _Peer) -> None:
        """The oldest piece is at the peer."""
        message, slot, ends = peer.posted.popleft()
        if slot >= 0:
            peer.free.append(slot)
        if ends:
            message.close()
            self._note_sent(message.ticket, len(message.data))

    # Receiving

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Mesh.receive`."""
        self._require_open()
        ending = self._ended()  # before completions: what they had sent by then is here by now
        completions, self._completions = self._completions, []
        if len(completions) < POLL:
            completions += self._queue.poll(POLL - len(completions))
        for completion in completions:
            peer = self._by_number.get(completion.qp_num)
            if peer is not None:
                self._completed(peer, completion, place)
        for flow in range(self._flow_count):  # the most urgent flow first
            for flows in list(self._peers.values()):
                if flows[flow].outbox:
                    self._pump(flows[flow])
        if len(completions) < POLL:
            for peer, reason in ending:
                self._lose(peer, reason)
        return self._take_events()

    def _completed(self, peer: _Peer, completion: WorkCompletion, place: Place | None) -> None:
        if completion.status is not WCStatus.SUCCESS:
            self._lose(peer, f"its queue pair failed: {completion.status.name}")
        elif completion.id == _SEND:
            self._on_sent(peer)
        elif completion.id != _RETURN:
            slot = completion.id
            if completion.immediate is not None:
                peer.credits += completion.immediate
            elif fault := self._take(peer, peer.ring[slot, : completion.byte_len].data, place):
                self._lose(peer, fault)
                return
            peer.pair.post_recv([self._receive_at(peer, slot)])
            if completion.immediate is None:
                self._give_back(peer)

    def _give_back(self, peer: _Peer) -> None:
        """Count a slot that was read."""
        self.counters["receives"] += 1
        peer.used += 1
        if peer.used >= RETURN_AFTER:
            region = self._out_region
            request = SendRequest(_RETURN, Opcode.SEND_WITH_IMM, region.address, 0, region.lkey, immediate=peer.used)
            peer.pair.post_send([request])
            self.counters["returns"] += 1
            peer.used = 0

    def _take(self, peer: _Peer, piece: memoryview, place: Place | None) -> str:
        """Copy a piece to its place; what is wrong with it, or ""."""
        if peer.data is None:
            if len(piece) < _HEADER.size:
                return f"it sent what is no message ({piece.hex()})"
            kind, head_bytes, zero, size = _HEADER.unpack_from(piece)
            beside = _HEADER.size + head_bytes
            if kind or zero or head_bytes > HEAD_BYTES_MAX or size > MESSAGE_BYTES_MAX or beside > len(piece):
                return f"it sent what is no message ({piece[:8].hex()})"
            peer.head = bytes(piece[_HEADER.size : beside])
            memory = place(peer.member, peer.head, size) if place is not None and size else None
            assert memory is None or len(memory) == size, "a place has another size than its message"
            peer.data, peer.filled = memory if memory is not None else np.empty(size, np.uint8).data, 0
            piece = piece[beside:]
        if peer.filled + len(piece) > len(peer.data):
            return f"it sent {len(piece)} bytes where {len(peer.data) - peer.filled} were missing"
        peer.data[peer.filled : peer.filled + len(piece)] = piece
        peer.filled += len(piece)
        if peer.filled == len(peer.data):
            self._note_received(peer.member, peer.head, peer.data)
            peer.data = None
        return ""

    def _ended(self) -> list[tuple[_Peer, str]]:
        """Peers that have sent a leave message over TCP, or whose connection has ended."""
        ended = []
        for descriptor, _ in self._poll.poll(0) if self._peers else ():
            for peer, *_ in self._peers.values():
                if peer.connection.fileno() == descriptor:
                    ended.append((peer, _how_it_ended(peer.connection)))
        return ended

    def _lose(self, peer: _Peer, reason: str) -> None:
        if peer.member not in self._peers:
            return
        for flow in self._peers.pop(peer.member):
            del self._by_number[flow.pair.number]
            flow.pair.close()
            flow.region.close()
            for message, slot, ends in flow.posted:
                if slot >= 0:
                    flow.free.append(slot)
                if ends:
                    message.close()
                    self._events.append(MessageSent(message.ticket))
            for message in flow.outbox:
                message.close()
                self._events.append(MessageSent(message.ticket))
        self._poll.unregister(peer.connection)
        peer.connection.close()
        self._note_lost(peer.member, reason)

    # Waiting and closing

    def wait(self, timeout_s: float | None) -> bool:
        """See `Mesh.wait`."""
        self._require_open()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if (
                self._events
                or self._completions
                or any(peer.outbox and peer.credits for peer in self._by_number.values())
            ):
                return True
            if self._woken:
                self._woken = False
                return True
            left_s = CHECK_S if until is None else max(0.0, min(CHECK_S, until - time.monotonic()))
            self._completions = self._queue.poll(POLL, timeout_s=left_s)
            if not self._completions and self._peers and self._poll.poll(0):
                return True
            if not (self._completions or self._woken) and until is not None and time.monotonic() >= until:
                return False

    def wake(self) -> None:
        """See `Mesh.wake`."""
        self._woken = True
        self._queue.wake()

    def close(self, linger_s: float = 1.0) -> None:
        """See `Mesh.close`."""
        if self._closed:
            return
        until = time.monotonic() + linger_s
        try:
            for peer in self._by_number.values():
                if peer.data is not None:  # the memory that `place` gave may be used for other things now
                    peer.data = np.empty(len(peer.data), np.uint8).data
            while any(peer.outbox or peer.posted for peer in self._by_number.values()):
                self.receive()
                if time.monotonic() >= until:
                    break
                self._completions += self._queue.poll(POLL, timeout_s=0.001)
        finally:
            for peer, *_ in self._peers.values():
                _leave(peer.connection)
            self._shut()

    def _shut(self) -> None:
        """End all connections, and the device's part of them."""
        self._closed = True
        self._context.close()
        self._poll.close()
        for peer, *_ in self._peers.values():
            peer.connection.close()
        self._peers.clear()
        self._by_number.clear()


def _open(provider: str, host: str) -> Any:
    """A device that moves packets in the background; only the soft provider has a choice of ports."""
    try:
        return open_context(provider, host, ROCE_PORT, thread=True)
    except JobError:
        # and if the port wasn't the reason, this raises the right one
        return open_context(provider, host, 0, thread=True)


def _how_it_ended(connection: socket.socket) -> str:
    try:
        return "it left" if connection.recv(1) == _LEAVES else "it closed the connection, or died"
    except BlockingIOError:
        return "its connection is disturbed"
    except OSError as error:
        return f"the connection ended: {error.strerror}"


def _leave(connection: socket.socket) -> None:
    """Send a leave message, and read what the peer has sent: else closing would reset the connection and lose it."""
    try:
        connection.send(_LEAVES)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(64)
    except OSError:
        pass


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> RdmaMesh:
    """See `meshes.mesh_opening.connect_mesh`; options: fields of RdmaMeshOptions."""
    checked = RdmaMeshOptions(**options)  # first: an error here must leave no listener open
    listener = bound.take() if bound is not None else None
    return RdmaMesh.connect(member, addresses, options=checked, listener=listener, **how)
