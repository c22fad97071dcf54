"""Neighbour: asks for a neighbour's hardware address (ARP, RFC 826) when Linux would not ask yet.

A host that loses its carrier forgets its neighbours' addresses. While it sends all the same, Linux asks for them once a
second, also right after the carrier is back: too seldom for a lease of which half a second is left.
"""

import contextlib
import socket
import struct
import sys

_ROUTE = struct.Struct("=IHHIIBBBBBBBBIHH4s")  # fields of nlmsghdr, rtmsg and RTA_DST
_ATTRIBUTE = struct.Struct("=HH")
_GET_ROUTE, _NEW_ROUTE, _REQUEST = 26, 24, 1
_DESTINATION, _INTERFACE, _GATEWAY = 1, 4, 5
_ATTRIBUTES_AT = 28
_ARP, _ETHERNET, _IPV4, _BROADCAST = 0x0806, 1, 0x0800, b"\xff" * 6


class Neighbour:
    """The next host on the way to the IPv4 address `host`, or that host itself. local_host: our address. Only one
    thread may use it."""

    def __init__(self, host: str, local_host: str) -> None:
        self._host, self._local_host = socket.inet_aton(host), socket.inet_aton(local_host)
        self._link: socket.socket | None = None
        self._forbidden = False

    def ask(self) -> None:
        """Ask the link for its hardware address; the kernel takes the answer. Never blocks. Without the right to
        (CAP_NET_RAW), without a way to the host, and on links that know no such addresses it does nothing."""
        if self._forbidden:
            return
        with contextlib.suppress(OSError):  # no way there, or no link: nobody to ask
            interface, neighbour = _next_hop(self._host)
            if self._link is None:  # kept: to close it takes the kernel 13 ms
                try:
                    self._link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                except PermissionError:
                    self._forbidden = True
                    return
            self._link.bind((interface, 0))
            *_, kind, address = self._link.getsockname()
            if kind == _ETHERNET:
                question = struct.pack(">HHHBBH", _ARP, _ETHERNET, _IPV4, 6, 4, 1)
                self._link.send(_BROADCAST + address + question + address + self._local_host + bytes(6) + neighbour)

    def close(self) -> None:
        """Free its socket; a second call does nothing."""
        if self._link is not None:
            self._link.close()


def _next_hop(address: bytes) -> tuple[str, bytes]:
    """Our interface on the way to an IPv4 address, and the first host there. Raises OSError: there is no way."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(1.0)
        route = socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0
        kernel.send(_ROUTE.pack(_ROUTE.size, _GET_ROUTE, _REQUEST, 1, 0, *route, 8, _DESTINATION, address))
        answer = kernel.recv(4096)
    size, kind = struct.unpack_from("=IH", answer)
    if kind != _NEW_ROUTE:
        raise OSError("no route")
    interface, neighbour, at = 0, address, _ATTRIBUTES_AT
    while at + _ATTRIBUTE.size <= size:
        length, name = _ATTRIBUTE.unpack_from(answer, at)
        value = answer[at + _ATTRIBUTE.size : at + length]
        if name == _INTERFACE:
            interface = int.from_bytes(value, sys.byteorder)
        elif name == _GATEWAY:
            neighbour = value
        at += (max(length, _ATTRIBUTE.size) + 3) & ~3
    return socket.if_indextoname(interface), neighbour
