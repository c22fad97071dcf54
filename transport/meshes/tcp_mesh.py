"""TcpMesh: messages over one TCP connection per pair, or one for each class (see `transport.meshes.mesh.Mesh`).

Sockets don't block; many messages leave with one system call, from the caller's memory, and arrive in the memory that
`place` gives: the kernel's copy is the only one. On the wire a message is

    0 u8 kind (0 message, 1 the sender leaves) | 1 u8 bytes of head | 2 u16 0 | 4 u32 bytes of data | 8 head, data
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Self

import numpy as np

from transport.links.link import Address, LinkClosed
from transport.meshes.hello import Hello, Meeting
from transport.meshes.mesh import (
    HEAD_BYTES_MAX,
    Buffer,
    Event,
    MemberLost,
    MessageReceived,
    MessageSent,
    Place,
    check_message,
)
from transport.meshes.mesh_opening import BoundPlace
from transport.meshes.spare_memory import SpareMemory
from transport.meshes.tcp_gathering import TcpOptions, congestion_control_of, gather, listen

MESSAGE_BYTES_MAX = 1 << 26

_HEADER = struct.Struct(">BBHI")
_MESSAGE, _LEAVES = 0, 1
_PARTS_MAX = 64  # of one system call
_CALL_BYTES = 1 << 18
"""Most of one peer's data received with one system call: what was received is still in the cache when it is used."""
_BESIDE_BYTES = 1 << 14
_BESIDE_LONG_BYTES = 1 << 10
"""Bytes received with it that have to be copied: the next message's start, and more of it if messages are short."""
_LONG_BYTES = 1 << 15
_START_BYTES_MAX = _HEADER.size + HEAD_BYTES_MAX
_READS_MAX = 8  # system calls of one `receive` per peer
_CHECK_S = 0.002  # how often `close` checks whether the peers' kernels have everything
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR
_INPUT = select.EPOLLIN | select.EPOLLRDHUP


class _Peer:
    """A connection and what is in flight on it. flow: its place in the mesh's classes."""

    __slots__ = (
        "accepted",
        "connection",
        "data",
        "filled",
        "flow",
        "head",
        "key",
        "marks",
        "member",
        "parts",
        "prefix",
        "queued",
        "send_error",
        "watched",
    )

    def __init__(self, member: int, flow: int, connection: socket.socket) -> None:
        self.member, self.flow, self.connection = member, flow, connection
        self.key = (flow, member)
        self.watched = _INPUT
        self.send_error = ""  # why nothing can be sent any more
        # Going out
        self.parts: deque[Buffer] = deque()
        self.marks: deque[tuple[int, int, int]] = deque()  # per message: end in `queued`, ticket, bytes of data
        self.queued = self.accepted = 0  # bytes given to `parts` so far, and bytes the kernel has taken of them
        # Coming in
        self.prefix = bytearray()  # of header and head
        self.head = b""
        self.data: memoryview | None = None  # of the message whose head is there
        self.filled = 0


class TcpMesh:
    """The end of a TCP mesh at one member, opened by `connect`. details: the congestion control that its sockets use.

    Besides what every mesh counts: `sends` and `receives`, system calls; `send_would_block`; `drop_unknown_sender`:
    peers that did not prove that they have the job's token, while the members met.
    """

    link = "tcp"
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        hello: Hello,
        flows: Sequence[Mapping[int, socket.socket]],
        classes: tuple[int, ...] = (),
        unknown_senders: int = 0,
    ) -> None:
        """Arguments as `meet` returns them. The connections are non-blocking, and the mesh's from now on."""
        self.member, self.members, self.classes = hello.member, hello.members, classes
        self._hello, self._flows = hello, len(flows)
        self.counters: dict[str, int] = dict.fromkeys(
            ("tx_messages", "tx_bytes", "rx_messages", "rx_bytes", "sends", "receives", "send_would_block", "lost"), 0
        )
        self.counters["drop_unknown_sender"] = unknown_senders
        self._events: list[Event] = []
        self._peers = {
            member: [_Peer(member, place, flow[member]) for place, flow in enumerate(flows)] for member in flows[0]
        }
        self._by_descriptor = {peer.connection.fileno(): peer for flows in self._peers.values() for peer in flows}
        self._unsent: dict[tuple[int, int], _Peer] = {}  # given messages since the last `receive`
        self._ready: list[tuple[int, int]] = []
        self._beside = memoryview(bytearray(_BESIDE_BYTES))
        self._beside_long = self._beside[:_BESIDE_LONG_BYTES]
        self._spare = SpareMemory()
        self._closed = False
        self._wake_lock = threading.Lock()
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake_descriptor, select.EPOLLIN)
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, _INPUT)
        first = next(iter(flows[0].values()), None)
        self.details: dict[str, Any] = {} if first is None else {"congestion_control": congestion_control_of(first)}

    @classmethod
    def connect(cls, member: int, addresses: Sequence[Address], **how: Any) -> Self:
        """Meet the others: see `meet`."""
        return cls(*meet(member, addresses, **how))

    # Sending

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """See `Mesh.send`."""
        size = len(data)
        check_message(self, to, head, size)
        self._require_open()
        flows = self._peers.get(to)
        if flows is None or flows[flow].send_error:
            self._events.append(MessageSent(ticket))
            return
        peer = flows[flow]
        start = _HEADER.pack(_MESSAGE, len(head), 0, size) + head
        peer.parts.append(start)
        if size:
            peer.parts.append(data)
        peer.queued += len(start) + size
        peer.marks.append((peer.queued, ticket, size))
        self._unsent[peer.key] = peer

    def _send(self, peer: _Peer) -> None:
        """Send what the kernel takes; the rest waits for the poll."""
        parts, marks, events = peer.parts, peer.marks, self._events
        counters = self.counters
        while parts:
            complete = len(parts) <= _PARTS_MAX
            vector = list(parts) if complete else list(islice(parts, _PARTS_MAX))
            try:
                accepted = peer.connection.sendmsg(vector)
            except (BlockingIOError, InterruptedError):
                counters["send_would_block"] += 1
                break
            except OSError as error:
                self._stop_sending(peer, str(error.strerror))
                return
            counters["sends"] += 1
            at = peer.accepted = peer.accepted + accepted
            if at == peer.queued:
                parts.clear()
            else:
                for first in vector:
                    if accepted < len(first):
                        break
                    accepted -= len(first)
                    parts.popleft()
                if accepted:
                    parts[0] = memoryview(parts[0])[accepted:]
            done = 0
            while marks and marks[0][0] <= at:
                _, ticket, size = marks.popleft()
                done += 1
                counters["tx_bytes"] += size
                events.append(MessageSent(ticket))
            counters["tx_messages"] += done
            if complete or accepted:  # all, or as much as there was room for
                break
        watched = _INPUT | select.EPOLLOUT if parts else _INPUT
        if watched != peer.watched:
            peer.watched = watched
            self._poll.modify(peer.connection, watched)

    def _stop_sending(self, peer: _Peer, reason: str) -> None:
        """Nothing can be sent to this peer any more; what it has sent may still be read."""
        peer.send_error = reason or "the connection ended"
        peer.parts.clear()
        self._events += [MessageSent(ticket) for _, ticket, _ in peer.marks]
        peer.marks.clear()
        if peer.watched != _INPUT:
            peer.watched = _INPUT
            self._poll.modify(peer.connection, _INPUT)

    # Receiving

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Mesh.receive`."""
        self._require_open()
        if self._unsent:
            for key in sorted(self._unsent) if self.classes else self._unsent:  # the most urgent flow first
                peer = self._unsent[key]
                if not peer.send_error:
                    self._send(peer)
            self._unsent.clear()
        ready, self._ready = self._ready or self._poll.poll(0), []
        if self.classes and len(ready) > 1:
            ready.sort(key=self._flow_at)
        for descriptor, happened in ready:
            peer_or_none = self._by_descriptor.get(descriptor)
            if peer_or_none is None:
                self._woken(descriptor)
                continue
            if happened & select.EPOLLOUT and not peer_or_none.send_error:
                self._send(peer_or_none)
            if happened & (_INPUT | _HUNG_UP):
                self._read(peer_or_none, place)
        events, self._events = self._events, []
        return events

    def _flow_at(self, ready: tuple[int, int]) -> int:
        peer = self._by_descriptor.get(ready[0])
        return -1 if peer is None else peer.flow

    def _read(self, peer: _Peer, place: Place | None) -> None:
        """Messages of one peer, until it has no more, or its share of this iteration is used up."""
        connection = peer.connection
        for _ in range(_READS_MAX):
            data = peer.data
            room = wanted = 0
            beside = self._beside
            try:
                if data is None:
                    size = connection.recv_into(beside)
                else:
                    filled = peer.filled
                    wanted = len(data) - filled
                    room = wanted if wanted < _CALL_BYTES else _CALL_BYTES
                    into = data[filled : filled + room]
                    if len(data) >= _LONG_BYTES:
                        beside = self._beside_long
                    size = connection.recvmsg_into((into, beside))[0] if room == wanted else connection.recv_into(into)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(peer, f"the connection ended: {error.strerror}")
                return
            if not size:
                self._end(peer, "it closed the connection, or died")
                return
            self.counters["receives"] += 1
            if size < room:
                peer.filled += size
                return  # there was no more
            if data is not None:
                peer.filled += room
                if room < wanted:
                    continue
                self._received(peer, data)
            if size > room and not self._parse(peer, size - room, place):
                return
            if size < room + len(beside):
                return

    def _parse(self, peer: _Peer, end: int, place: Place | None) -> bool:
        """Take headers, heads and data that came beside, `end` bytes; False if the peer is lost by that."""
        beside, at = self._beside, 0
        while at < end:
            data = peer.data
            if data is None:
                if peer.prefix or end - at < _START_BYTES_MAX:
                    at = self._put_together(peer, at, end)
                    start = bytes(peer.prefix)
                    if len(start) < _HEADER.size:
                        return True
                    first = 0
                else:
                    start, first = beside, at  # type: ignore[assignment]
                kind, head_bytes, _, size = _HEADER.unpack_from(start, first)
                if kind != _MESSAGE or head_bytes > HEAD_BYTES_MAX or size > MESSAGE_BYTES_MAX:
                    bad = bytes(start[first : first + 8]).hex()
                    if kind == _LEAVES:
                        self._end(peer, "it left")
                    else:
                        self._lose(peer, f"it sent what is no message ({bad})")
                    return False
                first += _HEADER.size
                if start is not beside:
                    if len(start) < first + head_bytes:
                        continue
                    peer.prefix.clear()
                else:
                    at = first + head_bytes
                peer.head = bytes(start[first : first + head_bytes])
                data = peer.data = self._memory(peer.member, peer.head, size, place)
                peer.filled = 0
            filled = peer.filled
            step = min(len(data) - filled, end - at)
            if step:
                data[filled : filled + step] = beside[at : at + step]
                peer.filled = filled = filled + step
                at += step
            if filled == len(data):
                self._received(peer, data)
        return True

    def _put_together(self, peer: _Peer, at: int, end: int) -> int:
        """Add to a header or head that comes in pieces; returns where the rest begins."""
        prefix = peer.prefix
        for _ in range(2):  # the header has the length of the head
            want = _HEADER.size + (prefix[1] if len(prefix) >= _HEADER.size else 0)
            step = min(want - len(prefix), end - at)
            prefix += self._beside[at : at + step]
            at += step
        return at

    def _memory(self, member: int, head: bytes, size: int, place: Place | None) -> memoryview:
        memory = place(member, head, size) if place is not None and size else None
        if memory is None:
            return self._spare.take(size)
        assert len(memory) == size, "a place has another size than its message"
        return memory

    def _received(self, peer: _Peer, data: memoryview) -> None:
        counters = self.counters
        counters["rx_messages"] += 1
        counters["rx_bytes"] += len(data)
        self._events.append(MessageReceived(peer.member, peer.head, data))
        peer.data = None

    def _end(self, peer: _Peer, reason: str) -> None:
        """Nothing more comes by this connection. The member is lost with the last of its flows: what is on its way on
        the others was sent before."""
        self._close(peer, reason)
        if all(flow.connection.fileno() < 0 for flow in self._peers[peer.member]):
            self._lose(peer, reason)

    def _lose(self, peer: _Peer, reason: str) -> None:
        for flow in self._peers.pop(peer.member):
            self._close(flow, reason)
        self.counters["lost"] += 1
        self._events.append(MemberLost(peer.member, reason))

    def _close(self, peer: _Peer, reason: str) -> None:
        if peer.connection.fileno() < 0:
            return
        if not peer.send_error:
            self._stop_sending(peer, reason)
        self._poll.unregister(peer.connection)
        del self._by_descriptor[peer.connection.fileno()]
        self._unsent.pop(peer.key, None)
        peer.connection.close()

    # Waiting and closing

    def wait(self, timeout_s: float | None) -> bool:
        """See `Mesh.wait`."""
        self._require_open()
        if self._events or self._unsent or self._ready:
            return True
        self._ready = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s))
        for entry in self._ready:
            if entry[0] == self._wake_descriptor:
                self._woken(self._wake_descriptor)
                self._ready.remove(entry)
                return True
        return bool(self._ready)

    def _woken(self, descriptor: int) -> None:
        if descriptor == self._wake_descriptor:
            os.eventfd_read(descriptor)

    def wake(self) -> None:
        """See `Mesh.wake`."""
        with self._wake_lock:  # after close the descriptor's number may already belong to someone else
            if not self._closed:
                os.eventfd_write(self._wake_descriptor, 1)

    def close(self, linger_s: float = 1.0) -> None:
        """See `Mesh.close`."""
        if self._closed:
            return
        try:
            self._linger(time.monotonic() + linger_s)
        finally:
            with self._wake_lock:
                self._closed = True
                os.close(self._wake_descriptor)
            self._poll.close()
            for peer in self._by_descriptor.values():
                peer.connection.close()
            self._peers.clear()
            self._by_descriptor.clear()

    def hand_over(self) -> tuple[Hello, list[dict[int, socket.socket]], tuple[int, ...], int]:
        """The result of `meet`, before the first message; this mesh is closed from then on."""
        flows: list[dict[int, socket.socket]] = [{} for _ in range(self._flows)]
        for member, peers in self._peers.items():
            for flow, peer in zip(flows, peers, strict=True):
                flow[member] = peer.connection
        self._by_descriptor.clear()
        self.close()
        return self._hello, flows, self.classes, self.counters["drop_unknown_sender"]

    def _linger(self, until: float) -> None:
        """Until the peers' kernels have all that was sent: a socket that is closed before may throw it away.

        The mesh reads peers' messages meanwhile, or they might not get to read ours.
        """
        for peer in self._by_descriptor.values():
            if peer.data is not None:  # the memory that `place` gave may be used for other things now
                peer.data = np.empty(len(peer.data), np.uint8).data
            if not peer.send_error:
                leaves = _HEADER.pack(_LEAVES, 0, 0, 0)
                peer.parts.append(leaves)
                peer.queued += len(leaves)
                self._unsent[peer.key] = peer
        while True:
            self._ready = []
            self.receive()
            left = [
                peer
                for peer in self._by_descriptor.values()
                if not peer.send_error and (peer.parts or _unacknowledged(peer))
            ]
            if not left or time.monotonic() >= until:
                return
            self._poll.poll(max(0.0, min(_CHECK_S, until - time.monotonic())))

    def _require_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the tcp mesh of member {self.member}, job {self._hello.job}, is closed")


def meet(
    member: int,
    addresses: Sequence[Address],
    *,
    options: TcpOptions | None = None,
    classes: tuple[int, ...] = (),
    listener: socket.socket | None = None,
    **meeting: Any,
) -> tuple[Hello, Sequence[Mapping[int, socket.socket]], tuple[int, ...], int]:
    """Listen at addresses[member] and connect to all others: our hello, connections of each flow by
    member, the classes, and how many unknown senders were sent away.

    meeting: fields of `Meeting`. listener: made by `tcp_gathering.listen`, where the port had to be
    known before; ours from now on. Raises JobError that names the members that are missing, or both sides of a
    disagreement.
    """
    options = options or TcpOptions()
    try:
        terms = Meeting(**meeting)
        hello = terms.hello("tcp", classes, member, len(addresses))
        if len(addresses) > 1 and listener is None:
            listener = listen(addresses[member], options)
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    if len(addresses) == 1 or listener is None:
        if listener is not None:
            listener.close()
        return hello, [{}], classes, 0
    flows, unknown_senders = gather(
        hello, terms.key, addresses, listener, terms.timeout_s, options.for_classes(classes)
    )
    return hello, flows, classes, unknown_senders


def _unacknowledged(peer: _Peer) -> bool:
    """Whether the peer's kernel has not yet acknowledged all bytes that ours took."""
    with contextlib.suppress(OSError):
        answer = fcntl.ioctl(peer.connection, termios.TIOCOUTQ, b"\0\0\0\0")
        return int.from_bytes(answer, sys.byteorder) > 0
    return False


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> TcpMesh:
    """See `opening.connect_mesh`; options: fields of TcpOptions."""
    checked = TcpOptions(**options)  # first: an error here must leave no listener open
    listener = bound.take() if bound is not None else None
    return TcpMesh.connect(member, addresses, options=checked, listener=listener, **how)
