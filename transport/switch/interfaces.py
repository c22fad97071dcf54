"""The network interfaces of this namespace, from the kernel, over rtnetlink: which there are, and when they change.

/sys shows the namespace it was mounted in, and `ip` may not be installed; the socket shows the caller's.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

_GET_LINK, _GET_ADDRESS, _GET_NEIGHBOUR = 18, 22, 30
_NEW_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR, _ERROR, _DONE = 16, 20, 28, 2, 3
_DUMP_REQUEST = 0x301
_GROUP_LINK = 1
_MESSAGE = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_ATTRIBUTE = struct.Struct("=HH")
_MAC, _NAME, _MTU, _MASTER, _LINK_INFO, _PARENT_BUS = 1, 3, 4, 10, 18, 57
_KIND = 1
_LOCAL = 2
_TARGET, _TARGET_MAC = 1, 2
_KNOWN = 0x9E
"""States of a neighbour whose MAC may be used: reachable, stale, delay, probe, permanent."""

_UP, _LOOPBACK, _LOWER_UP = 1, 8, 0x10000
_TYPE_MASK = 0x3FFF
_BUFFER_BYTES = 1 << 17


@dataclass(frozen=True)
class Interface:
    """An interface of this namespace.

    up: it is set up and has a carrier. master: index of the bridge it is a port of, or 0. kind: "veth", "bridge", …, or
    "". bus: the bus of its device ("pci", "virtio"), or "" where the kernel has none.
    """

    index: int
    name: str
    up: bool
    loopback: bool
    mtu: int
    master: int
    kind: str
    bus: str = ""
    mac: bytes = b""
    addresses: tuple[str, ...] = ()
    """IPv4."""


def interfaces() -> list[Interface]:
    """All of them, by index. Raises OSError."""
    by_index = {}
    for body in _dump(_GET_LINK, _NEW_LINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        interface = _interface(body)
        by_index[interface.index] = interface
    for body in _dump(_GET_ADDRESS, _NEW_ADDRESS, _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)):
        family, _, _, _, index = _ADDRESS.unpack_from(body)
        local = dict(_attributes(body[_ADDRESS.size :])).get(_LOCAL)
        if family == socket.AF_INET and index in by_index and local is not None:
            interface = by_index[index]
            by_index[index] = replace(interface, addresses=(*interface.addresses, socket.inet_ntoa(local)))
    return [by_index[index] for index in sorted(by_index)]


def neighbour(address: str) -> tuple[int, bytes] | None:
    """The interface behind which an IPv4 address is on the same link, by its index, and its MAC; None: not known (yet).

    Raises OSError.
    """
    for body in _dump(_GET_NEIGHBOUR, _NEW_NEIGHBOUR, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0)):
        _, index, state, _, _ = _NEIGHBOUR.unpack_from(body)
        fields = dict(_attributes(body[_NEIGHBOUR.size :]))
        if (
            fields.get(_TARGET) == socket.inet_aton(address)
            and state & _KNOWN
            and len(fields.get(_TARGET_MAC, b"")) == 6
        ):
            return index, fields[_TARGET_MAC]
    return None


class LinkEvents:
    """Readable when an interface came, went or changed; for what has changed, see `interfaces`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setblocking(False)
        self._socket.bind((0, _GROUP_LINK))

    def fileno(self) -> int:
        return self._socket.fileno()

    def clear(self) -> None:
        """Forget what is waiting; an overrun is a change like any other."""
        while True:
            try:
                self._socket.recv(_BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue

    def close(self) -> None:
        self._socket.close()


def _dump(request: int, answer: int, body: bytes) -> Iterator[bytes]:
    """Bodies of the answers to a request for everything."""
    with contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)) as netlink:
        netlink.bind((0, 0))
        netlink.send(_MESSAGE.pack(_MESSAGE.size + len(body), request, _DUMP_REQUEST, 1, 0) + body)
        while True:
            data = netlink.recv(_BUFFER_BYTES)
            while data:
                length, kind, _, _, _ = _MESSAGE.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, _MESSAGE.size)[0]
                    raise OSError(code, os.strerror(code))
                if kind == answer:
                    yield data[_MESSAGE.size : length]
                data = data[(length + 3) // 4 * 4 :]


def _interface(body: bytes) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    fields = dict(_attributes(body[_LINK.size :]))
    return Interface(
        index=index,
        name=_text(fields[_NAME]),
        up=flags & (_UP | _LOWER_UP) == _UP | _LOWER_UP,
        loopback=bool(flags & _LOOPBACK),
        mtu=int.from_bytes(fields.get(_MTU, b""), sys.byteorder),
        master=int.from_bytes(fields.get(_MASTER, b""), sys.byteorder),
        kind=_text(dict(_attributes(fields.get(_LINK_INFO, b""))).get(_KIND, b"")),
        bus=_text(fields.get(_PARENT_BUS, b"")),
        mac=fields.get(_MAC, b""),
    )


def _text(attribute: bytes) -> str:
    return attribute.rstrip(b"\0").decode(errors="replace")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) // 4 * 4 :]
