"""UdpLink: bundles over a UDP socket, many datagrams per system call where the kernel offers GSO and GRO.

A system call per packet costs about 4 µs in any language, nearly all of it inside the kernel; UDP_SEGMENT and UDP_GRO
move up to 64 packets per call. The link probes both, and works without them, only slower.
"""

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from switchagg.errors import JobError
from switchagg.native import headers
from switchagg.priority import socket_priority_of, socket_priority_of_tos, tos_of
from switchagg.wire import Bundle
from transport.links.framing import DATAGRAM_BYTES_MAX
from transport.links.link import Address, Arrival, LinkClosed

SEGMENTS_HARD_MAX = 64
"""Kernels before 6.9 refuse more segments in one send."""

CREDIT_BYTES_MIN, CREDIT_BYTES_MAX = 4096, 1 << 30

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_RXQ_OVFL = 40
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IP_PMTUDISC_OMIT = 10, 3, 5
TOS = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS, socket.IP_RECVTOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, socket.IPV6_RECVTCLASS),
}
"""By family: level, option for sending, option that reports the byte of a received packet."""

_MESSAGE_BYTES_MAX = 65_536
_RECEIVE_BYTES = 1 << 17
"""A `receive` ends after this many bytes, about 90 packets of MTU size: few enough that a loop answers them while the
next are still on their way, enough to share out its cost per turn."""
_ARENA_BYTES = 1 << 20
_ALIGN = 64
_ANCILLARY_BYTES = 3 * socket.CMSG_SPACE(4)
_HEADERS_AND_NOTES_BYTES = 42 + 64 + 320
_BACKOFF_S = 0.001
GSO_RETRY_NS = 30_000_000_000
"""How long after a refusal, which may have been of one route only, GSO is tried again."""

_FATAL = frozenset({errno.EBADF, errno.ENOTSOCK})
"""The socket is gone; any other error is one of the network: loss."""

_GSO_REFUSALS = frozenset({errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""EIO: the device can't checksum; EINVAL, EMSGSIZE: segment above the path's MTU, or checksums switched off."""


@dataclass(slots=True, eq=False)
class _Run:
    """Adjacent datagrams of one TOS in an arena: `rows` of `size` bytes each, up to but not including byte `end`."""

    arena: Bundle
    begin: int
    end: int
    rows: int
    size: int
    sender: Address
    tos: int

    def bundle(self) -> Bundle:
        return self.arena[self.begin : self.end].reshape(self.rows, self.size)


class UdpLink:
    """A link (see `transport.links.link.Link`) on one non-blocking UDP socket, IPv4 or IPv6.

    bind: (host, port), port 0 for any free one. An IPv6 link carries IPv6 only. A switch bound to a wildcard address
    answers from whatever address the kernel's routes choose: on a host with several, bind the one the workers use. gso:
    None uses what the kernel offers, False uses neither GSO nor GRO, True raises JobError where either is missing.
    segments_max: datagrams per send, 1 to 64; 16 keeps a bundle below the burst of a shaper (24 kB of 1500 B frames).
    receives_max: system calls of one `receive`, which also ends at 128 kB, so that a flood can't starve sending.
    receive_buffer_bytes, send_buffer_bytes: requested of the kernel; the attributes of that name hold what it granted.
    16 MB hold the windows of 8 workers in packets that are counted at up to 4 kB each. tos: the TOS byte (IPv6: traffic
    class) of every packet: DSCP in its upper six bits, ECN in its lower two; there, 2 (ECT(0)) allows switches to mark
    a packet instead of dropping it. A send may have a TOS of its own. credit_bytes: the most that may lie in the
    kernel, and so in the queue of the interface, before another bundle is handed over: a FIFO below the streams, which
    nothing urgent can overtake, is then at most this and one bundle deep. The kernel counts memory, more than the bytes
    on the wire. Default: send_buffer_bytes is all that bounds it.

    After construction: `socket_priority` tells whether a send with a TOS of its own also has its class's SO_PRIORITY,
    `credit_bytes` what was granted (0: none). `gso` and `gro` tell what is in use, `gso_fallback` why GSO was given
    up for half a minute, the last time ("" if it never was), `counters` what happened. receive_overflow counts what
    the kernel dropped because the receive buffer was full, in bundles where GRO is on. send_errors: rows lost because
    the network refused them; `last_error` is the newest such refusal.
    """

    def __init__(
        self,
        bind: Address,
        *,
        gso: bool | None = None,
        segments_max: int = 16,
        receives_max: int = 32,
        receive_buffer_bytes: int = 16 << 20,
        send_buffer_bytes: int = 16 << 20,
        tos: int = 0,
        credit_bytes: int | None = None,
    ) -> None:
        if not 1 <= segments_max <= SEGMENTS_HARD_MAX:
            raise ValueError(f"segments_max {segments_max}: 1 to {SEGMENTS_HARD_MAX}")
        if not 0 <= tos <= 255:
            raise ValueError(f"tos {tos}: 0 to 255")
        if credit_bytes is not None and not CREDIT_BYTES_MIN <= credit_bytes <= CREDIT_BYTES_MAX:
            raise ValueError(f"credit_bytes {credit_bytes}: {CREDIT_BYTES_MIN} to {CREDIT_BYTES_MAX}")
        if receives_max < 1:
            raise ValueError(f"receives_max {receives_max}: 1 or more")
        self._closed = False
        self._wake_lock = threading.Lock()
        self.segments_max = segments_max
        self._receives_max = receives_max
        self._arena: Bundle = np.empty(_ARENA_BYTES, np.uint8)
        self._arena_end = 0
        self._backoff = False
        self._overflow_seen = 0
        self.gso_fallback = ""
        self._gso_retry_ns = 0
        self.tos = 0
        self.last_error = ""
        self.counters: dict[str, int] = dict.fromkeys(UDP_COUNTERS, 0)
        self._socket = _bound_socket(bind)
        self._family = self._socket.family
        try:
            self.gso = gso is not False and self._probe(UDP_SEGMENT, 0, required=gso is True)
            self.gro = gso is not False and self._probe(UDP_GRO, 1, required=gso is True)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
            self._tos_level, self._tos_kind, report_option = TOS[self._family]
            self._socket.setsockopt(self._tos_level, report_option, 1)
            if tos:
                self.set_tos(tos)
            self.receive_buffer_bytes = self._size_buffer(SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer_bytes)
            self._receive_buffer_asked = receive_buffer_bytes
            # A socket polls writable when less than half of its buffer is used: when there is credit again.
            buffer_bytes = credit_bytes or send_buffer_bytes
            self.send_buffer_bytes = self._size_buffer(SO_SNDBUFFORCE, socket.SO_SNDBUF, buffer_bytes)
            self.credit_bytes = self.send_buffer_bytes if credit_bytes else 0
            self.socket_priority = takes_socket_priority()
            self.address: Address = self._canonical(self._socket.getsockname())
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._socket.close()
            raise
        self._polled = 0
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)

    # Addresses

    def resolve(self, address: Address) -> Address:
        """The numeric form in which `receive` reports that peer. May ask DNS; raises JobError if nothing fits."""
        host, port = address
        family = "IPv6" if self._family == socket.AF_INET6 else "IPv4"
        if not 1 <= port <= 65_535:
            raise JobError(f"address {host}:{port}: the port must be 1 to 65535")
        try:
            candidates = socket.getaddrinfo(host, port, self._family, socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise JobError(f"address {host}:{port} can't be used by a link bound to {family}: {error}") from error
        return self._canonical(candidates[0][4])

    def _canonical(self, name: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> Address:
        """(host, port) of a socket address; a scope (IPv6 link-local) is written into the host as %interface."""
        host, port = str(name[0]), int(name[1])
        scope = name[3] if len(name) == 4 else 0
        return (f"{host}%{socket.if_indextoname(scope)}", port) if scope and "%" not in host else (host, port)

    # Sending

    def send(self, bundle: Bundle, to: Address, tos: int | None = None, *, overdraw: bool = False) -> int:
        """See `Link.send`. Splits the bundle into sends of at most segments_max rows and 65,507 bytes. overdraw: beyond
        the credit, too."""
        self._require_open()
        rows, size = bundle.shape
        if size > DATAGRAM_BYTES_MAX:
            raise ValueError(f"rows of {size} bytes: at most {DATAGRAM_BYTES_MAX} fit a datagram")
        self._backoff = False
        sent_rows = 0
        while sent_rows < rows:
            together = self._rows_per_send(size)
            room = overdraw or self.has_room()
            accepted = self._send_together(bundle[sent_rows : sent_rows + together], to, tos) if room else 0
            if not accepted:
                self.counters["send_would_block"] += 1
                break
            sent_rows += accepted
        return sent_rows

    def set_credit(self, credit_bytes: int) -> None:
        """Bound what may lie in the send buffer from now on: see the class."""
        self.send_buffer_bytes = self._size_buffer(SO_SNDBUFFORCE, socket.SO_SNDBUF, credit_bytes)
        self.credit_bytes = self.send_buffer_bytes

    def has_room(self) -> bool:
        """See `Link.has_room`; asks the kernel."""
        if not self.credit_bytes:
            return True
        queued: bytes = fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0\0\0\0")
        return int.from_bytes(queued, sys.byteorder) < self.credit_bytes

    def _rows_per_send(self, size: int) -> int:
        if self._gso_retry_ns and time.monotonic_ns() >= self._gso_retry_ns:
            self.gso, self._gso_retry_ns = True, 0
        if not self.gso or not size:
            return 1
        return min(self.segments_max, DATAGRAM_BYTES_MAX // size)

    def _send_together(self, part: Bundle, to: Address, tos: int | None) -> int:
        """Send rows by one system call; returns how many it accepted (or lost to an error), 0 if the link is full."""
        rows, size = len(part), part.shape[1]
        try:
            if rows > 1 or tos is not None:
                self._socket.sendmsg([part.data], self._controls(rows, size, tos), 0, to)
            else:
                self._socket.sendto(part.data, to)
        except BlockingIOError:
            return 0
        except OSError as error:
            return self._after_refusal(error, part, to, tos)
        self._count("sent", rows, rows * size)
        return rows

    def _controls(self, rows: int, size: int, tos: int | None) -> list[tuple[int, int, bytes]]:
        """Ancillary data of one send."""
        controls = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))] if rows > 1 else []
        if tos is not None:
            controls.append((self._tos_level, self._tos_kind, struct.pack("=i", tos)))
            if self.socket_priority:  # after the TOS, from which the kernel makes a priority of its own
                controls.append((socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=i", socket_priority_of_tos(tos))))
        return controls

    def _after_refusal(self, error: OSError, part: Bundle, to: Address, tos: int | None) -> int:
        """Rows of `part` to count as accepted after an error that isn't "would block"."""
        if error.errno == errno.ENOBUFS:
            self._backoff = True  # the socket polls writable although the device is full
            return 0
        if error.errno in _FATAL:
            raise error
        rows: int = part.shape[0]
        if rows > 1 and error.errno in _GSO_REFUSALS:
            # A plain datagram shows whether segmentation is refused, or this destination.
            lost = self.counters["send_errors"]
            accepted: int = self._send_together(part[:1], to, tos)
            if not accepted:
                return 0
            if self.counters["send_errors"] == lost:
                self.gso, self._gso_retry_ns = False, time.monotonic_ns() + GSO_RETRY_NS
                self.gso_fallback = f"sending {rows} segments of {part.shape[1]} bytes to {to[0]}: {error}"
                self.counters["gso_fallbacks"] += 1
                return accepted
            self.counters["send_errors"] = lost  # the plain datagram is one of the rows counted next
        self.counters["send_errors"] += rows
        self.last_error = f"sending to {to[0]}:{to[1]}: {error}"
        return rows

    def slowness(self) -> str:
        """See `Link.slowness`: GSO was given up."""
        if not self.gso_fallback:
            return ""
        return (
            f"packets go to the kernel one by one, which costs several times the CPU: {self.gso_fallback}; raise the "
            "MTU there or send fewer elements per packet, and let it compute checksums (ethtool -K NAME tx on)"
        )

    # Receiving

    def receive(self) -> list[Arrival]:
        """See `Link.receive`. Datagrams of one sender, size and TOS that arrive in a row are one bundle, not copied.

        Bundles are views of a 1 MB arena that stays alive as long as any of them: copy what you keep.
        """
        self._require_open()
        arrived: list[_Run] = []
        receive = self._socket.recvmsg_into
        self._arena_end = -(-self._arena_end // _ALIGN) * _ALIGN
        taken_bytes = 0
        for _ in range(self._receives_max):
            if taken_bytes >= _RECEIVE_BYTES:
                break
            begin = self._arena_end
            if begin + _MESSAGE_BYTES_MAX > _ARENA_BYTES:
                self._arena = np.empty(_ARENA_BYTES, np.uint8)
                begin = self._arena_end = 0
            try:
                size, ancillary, _flags, sender = receive((self._arena.data[begin:],), _ANCILLARY_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _FATAL:
                    raise
                self.counters["receive_errors"] += 1  # A peer's ICMP refusal counts as loss.
                self.last_error = f"receiving: {error}"
                continue
            segment, tos = size, 0
            for level, kind, data in ancillary:
                if level == SOL_UDP and kind == UDP_GRO:
                    segment = int.from_bytes(data[:4], sys.byteorder)
                elif level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                    self._note_overflow(int.from_bytes(data[:4], sys.byteorder))
                elif level == self._tos_level and kind == self._tos_kind:
                    tos = int.from_bytes(data, sys.byteorder) & 0xFF  # The kernel gives a byte, or an int.
            self._arena_end = begin + size
            taken_bytes += size
            self._count("received", -(-size // segment) if segment else 1, size)
            self._append(arrived, begin, size, segment, (self._canonical(sender), tos))
        return [(run.bundle(), run.sender, run.tos) for run in arrived]

    def _append(self, arrived: list["_Run"], begin: int, size: int, segment: int, origin: tuple[Address, int]) -> None:
        """Book `size` bytes at `begin` of the arena: datagrams of `segment` bytes, the last maybe shorter."""
        full_rows = size // segment if segment else 1
        last = arrived[-1] if arrived else None
        if last and last.size == segment and (last.sender, last.tos) == origin and last.arena is self._arena:
            last.end += full_rows * segment
            last.rows += full_rows
        else:
            arrived.append(_Run(self._arena, begin, begin + full_rows * segment, full_rows, segment, *origin))
        tail_bytes = size - full_rows * segment
        if tail_bytes:
            arrived.append(_Run(self._arena, begin + size - tail_bytes, begin + size, 1, tail_bytes, *origin))

    def _note_overflow(self, total: int) -> None:
        """`total`: the kernel's count of drops since the socket was made, modulo 2**32."""
        self.counters["receive_overflow"] += (total - self._overflow_seen) % (1 << 32)
        self._overflow_seen = total

    # Waiting and closing

    def wait(
        self, timeout_s: float | None, *, writable: bool = False, also: Iterable[tuple["UdpLink", bool]] = ()
    ) -> bool:
        """See `Link.wait`. The timeout is rounded up to a millisecond. also: links that end the wait, too, each with
        its own `writable`; always the same ones, which are waited for nowhere else."""
        self._require_open()
        backoff = self._watch(self._poll, writable)
        for link, wants_room in also:
            backoff = link._watch(self._poll, wants_room) or backoff
        if backoff:
            timeout_s = _BACKOFF_S if timeout_s is None else min(timeout_s, _BACKOFF_S)
        ready = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        for descriptor, _event in ready:
            if descriptor == self._wake_fd:
                os.eventfd_read(self._wake_fd)
        return bool(ready) or backoff

    def _watch(self, poll: "select.poll", writable: bool) -> bool:
        """Have `poll` end when there is something for us; True if it can't tell when there is room again."""
        backoff = writable and self._backoff
        events = select.POLLIN | select.POLLOUT if writable and not backoff else select.POLLIN
        if events != self._polled:
            poll.register(self._socket, events)
            self._polled = events
        return backoff

    def wake(self) -> None:
        """See `Link.wake`."""
        with self._wake_lock:  # after close the descriptor's number may already belong to someone else
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        """The socket's descriptor."""
        self._require_open()
        return self._socket.fileno()

    @property
    def wake_descriptor(self) -> int:
        """The eventfd that `wake` writes, for an event loop in C, which does its own waiting."""
        self._require_open()
        return self._wake_fd

    def close(self) -> None:
        """See `Link.close`."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        self._socket.close()

    def _require_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the link at {self.address[0]}:{self.address[1]} is closed")

    # Set-up

    def packets_held(self, frame_bytes: int) -> int:
        """How many datagrams of this size the receive buffer holds, which is less than was asked for; 0: it isn't.

        The kernel counts memory: a power of two for data, headers and its notes on them, and its description of it.
        """
        if self.receive_buffer_bytes >= self._receive_buffer_asked:
            return 0
        data = frame_bytes + _HEADERS_AND_NOTES_BYTES
        page = -(-data // 4096) * 4096
        return max(1, 2 * self.receive_buffer_bytes // ((1 << (data - 1).bit_length() if data < 4096 else page) + 256))

    def _probe(self, option: int, value: int, *, required: bool) -> bool:
        """Whether the kernel takes a UDP option; raises JobError if it must and doesn't."""
        try:
            self._socket.setsockopt(SOL_UDP, option, value)
        except OSError as error:
            if required:
                name = "UDP_SEGMENT (GSO)" if option == UDP_SEGMENT else "UDP_GRO"
                raise JobError(f"this kernel has no {name}: {error}; use gso=None to go without") from error
            return False
        return True

    def set_tos(self, tos: int) -> None:
        """See `Link.set_tos`."""
        self.tos = tos
        self._socket.setsockopt(self._tos_level, self._tos_kind, tos)

    def set_class(self, kind: int) -> None:
        """The priority class of all packets from now on: its DSCP in our TOS byte, and its SO_PRIORITY."""
        self.set_tos(tos_of(kind, self.tos))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, socket_priority_of(kind))

    def _size_buffer(self, force: int, ordinary: int, size_bytes: int) -> int:
        """Ask for a buffer, past the system's limit if we may; returns the size granted.

        The kernel doubles what is asked to pay for its own bookkeeping, and reads back the doubled value.
        """
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, force, size_bytes)
        except OSError:
            self._socket.setsockopt(socket.SOL_SOCKET, ordinary, size_bytes)
        return self._socket.getsockopt(socket.SOL_SOCKET, ordinary) // 2

    def _count(self, direction: str, datagrams: int, size_bytes: int) -> None:
        counters = self.counters
        counters[f"{direction}_bundles"] += 1
        counters[f"{direction}_datagrams"] += datagrams
        counters[f"{direction}_bytes"] += size_bytes


@lru_cache(maxsize=1)
def takes_socket_priority() -> bool:
    """Whether the kernel takes SO_PRIORITY for a single send (Linux 6.14); asked once, with a packet to ourselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        control = [(socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=i", 0))]
        try:
            probe.bind(("127.0.0.1", 0))
            probe.sendmsg([b""], control, socket.MSG_DONTWAIT, probe.getsockname())
        except OSError as error:
            return error.errno != errno.EINVAL  # which comes before the packet's way is looked for
    return True


UDP_COUNTERS = headers.names("sa_udp_counter", "SA_UDP_")
"""Counters of a link, in C and in Python."""


def _bound_socket(bind: Address) -> socket.socket:
    """A non-blocking UDP socket; raises JobError naming the address if it can't be bound."""
    host, port = bind
    if not 0 <= port <= 65_535:
        raise JobError(f"can't bind UDP {host}:{port}: the port must be 0 to 65535")
    try:
        family, kind, protocol, _name, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            else:  # a message "fragmentation needed", which anyone can forge, must not end segmentation (GSO)
                opened.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_OMIT)
            opened.setblocking(False)
            opened.bind(place)
        except BaseException:
            opened.close()
            raise
    except (OSError, UnicodeError) as error:
        raise JobError(f"can't bind UDP {host}:{port}: {error}") from error
    return opened
