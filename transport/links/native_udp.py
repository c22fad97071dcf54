"""NativeUdp: the C side of a UdpLink (transport/native/network/udp.h), for the native loops.

UdpLink still makes, probes and closes the socket and its eventfd; while a NativeUdp carries the packets, the link
itself must neither send nor receive. `counters`, `gso`, `gso_fallback` and
`last_error` of the link follow the C side.
"""

import ctypes
import os
import socket
from collections.abc import Sequence
from typing import Any

from switchagg.errors import JobError
from switchagg.native import headers, library
from transport.links import udp_link
from transport.links.hop_tags import HopKeys
from transport.links.link import Address
from transport.links.udp_link import UDP_COUNTERS, UdpLink

RECEIVE_MESSAGES_GRO = 8
"""Messages, each of up to 64 kB, of one receive: 128 packets, half a window, where bundles have 16."""

RECEIVE_MESSAGES_PLAIN = 64
RECEIVE_BYTES_LEAST = 2048


NativeAddress = headers.struct("sa_address")


def native_address(address: Address) -> Any:
    """A `NativeAddress` of a numeric (host, port), as `Link.resolve` gives it."""
    host, port = address
    host, _, interface = host.partition("%")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    scope = socket.if_nametoindex(interface) if interface else 0
    return NativeAddress(family, port, scope, (ctypes.c_uint8 * 16)(*packed))


def text_of(address: Any) -> str:
    """host:port."""
    size = 16 if address.family == socket.AF_INET6 else 4
    return f"{socket.inet_ntop(address.family, bytes(address.host)[:size])}:{address.port}"


def native_hop(elements: int, keys: Sequence[HopKeys], ports: Sequence[int]) -> int:
    """Address of a new `struct sa_hop`, for children at these ports. Raises MemoryError."""
    numbers = (ctypes.c_uint32 * len(ports))(*ports)
    hop: int | None = library.load().sa_hop_new(elements, len(keys), b"".join(map(bytes, keys)), numbers)
    if not hop:
        raise MemoryError("no memory for tags of packets")
    return hop


class NativeUdp:
    """Carries a link's packets in C, until `close`.

    datagram_bytes: of the packets that are awaited; where GRO is off, much longer ones arrive cut. Raises JobError if
    the kernel refuses the socket.
    """

    def __init__(self, link: UdpLink, datagram_bytes: int) -> None:
        self._library = library.load()
        self._link = link
        options = headers.struct("sa_udp_options")(
            link.fileno(),
            link.gso,
            link.gro,
            link.segments_max,
            RECEIVE_MESSAGES_GRO if link.gro else RECEIVE_MESSAGES_PLAIN,
            max(RECEIVE_BYTES_LEAST, datagram_bytes + 1),
            link.socket_priority,
            link.credit_bytes,
            udp_link.GSO_RETRY_NS,
        )
        self.handle: int | None = self._library.sa_udp_new(ctypes.byref(options))
        if not self.handle:
            raise JobError(f"the link at {link.address[0]}:{link.address[1]}: its socket can't be used, or no memory")
        self._counters = self._library.sa_udp_counters(self.handle)
        self._state = headers.struct("sa_udp_state").from_address(self._library.sa_udp_state(self.handle))

    def update_link(self) -> None:
        """Write what happened so far into the link. Any thread; after `close` it does nothing."""
        if self.handle is None:
            return
        link, state = self._link, self._state
        for index, name in enumerate(UDP_COUNTERS):
            link.counters[name] = self._counters[index]
        if state.fallback_errno:
            link.gso = bool(state.gso)
            link.gso_fallback = (
                f"sending {state.fallback_rows} segments of {state.fallback_size} bytes to "
                f"{text_of(state.fallback)}: {os.strerror(state.fallback_errno)}"
            )
        if state.send_errno:
            link.last_error = f"sending to {text_of(state.refused)}: {os.strerror(state.send_errno)}"
        elif state.receive_errno:
            link.last_error = f"receiving: {os.strerror(state.receive_errno)}"

    def close(self) -> None:
        """Free the C side; again is allowed. The link stays open. No other thread may be in `update_link`."""
        if self.handle is not None:
            self.update_link()
            handle, self.handle = self.handle, None
            self._library.sa_udp_free(handle)
