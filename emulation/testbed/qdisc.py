"""Queueing disciplines, classes and filters, asked of the kernel over netlink: exact numbers, microseconds a question.

`tc -j` rounds rates to text, knows no JSON for classes in common versions, and costs a process per question.
Standard library only. A `QdiscReader` reads one network namespace.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from emulation.testbed import netns

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_RTM_NEWTCLASS, _RTM_GETTCLASS = 40, 42
_RTM_NEWTFILTER, _RTM_GETTFILTER = 44, 46
_NLM_F_REQUEST, _NLM_F_ECHO, _NLM_F_DUMP = 0x1, 0x8, 0x300  # without ECHO the answer to a GET goes to listeners only
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE, _STATS_PKT64 = 1, 3, 8
_U32_CLASSID, _U32_SEL = 1, 5
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_PSCHED_TICK_NS = 64  # the kernel's fixed unit for burst times
_NESTED = 0x3FFF  # attribute types without their flag bits
ROOT_HANDLE = 0xFFFF_FFFF

_TCMSG = struct.Struct("=BBHiIII")  # family, pads, ifindex, handle, parent, info
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True)
class QdiscEntry:
    """One qdisc or class. GSO bundles count as their segments, headers included."""

    kind: str
    ifindex: int
    handle: int
    parent: int
    sent_bytes: int = 0
    sent_packets: int = 0
    drops: int = 0
    overlimits: int = 0
    backlog_bytes: int = 0
    queued_packets: int = 0  # bundles
    options: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class HtbClass:
    """The settings of an HTB class. Rates in bytes/s, bursts in bytes. prio: 0 is served first."""

    rate_bytes_per_s: int
    ceil_bytes_per_s: int
    burst_bytes: int
    ceil_burst_bytes: int
    prio: int = 0


class QdiscReader:
    """Asks one network namespace for its qdiscs and classes. Raises OSError."""

    def __init__(self, pid: int) -> None:
        self._socket = netns.open_socket(pid, socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._socket.settimeout(5.0)
        self._sequence = 0

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def qdiscs(self, ifindex: int = 0) -> list[QdiscEntry]:
        """Qdiscs of one interface, or of all (0), root first."""
        entries = self._ask(_RTM_GETQDISC, _NLM_F_DUMP, ifindex, 0)
        return [entry for entry in entries if not ifindex or entry.ifindex == ifindex]

    def classes(self, ifindex: int) -> list[QdiscEntry]:
        """Traffic classes of one interface."""
        return self._ask(_RTM_GETTCLASS, _NLM_F_DUMP, ifindex, 0)

    def filters(self, ifindex: int, parent: int) -> list[QdiscEntry]:
        """Filters at a qdisc of one interface."""
        return self._ask(_RTM_GETTFILTER, _NLM_F_DUMP, ifindex, parent)

    def root(self, ifindex: int) -> QdiscEntry:
        """The root qdisc of one interface: the cheap question, asked many times a second."""
        return self._ask(_RTM_GETQDISC, _NLM_F_ECHO, ifindex, ROOT_HANDLE)[0]

    def _ask(self, message: int, flags: int, ifindex: int, parent: int) -> list[QdiscEntry]:
        self._sequence += 1
        body = _TCMSG.pack(0, 0, 0, ifindex, 0, parent, 0)
        header = _HEADER.pack(_HEADER.size + len(body), message, _NLM_F_REQUEST | flags, self._sequence, 0)
        self._socket.send(header + body)
        entries: list[QdiscEntry] = []
        while True:
            data = self._socket.recv(65_536)
            for kind, payload in _messages(data):
                if kind == _NLMSG_DONE:
                    return entries
                if kind == _NLMSG_ERROR:
                    (number,) = struct.unpack_from("=i", payload)
                    raise OSError(-number, f"netlink: {os.strerror(-number)}")
                if kind in (_RTM_NEWQDISC, _RTM_NEWTCLASS, _RTM_NEWTFILTER):
                    entries.append(parse_entry(payload))
            if entries and flags == _NLM_F_ECHO:
                return entries


def parse_entry(payload: bytes) -> QdiscEntry:
    """The body of an RTM_NEWQDISC, RTM_NEWTCLASS or RTM_NEWTFILTER message, without its netlink header."""
    _, _, _, ifindex, handle, parent, _ = _TCMSG.unpack_from(payload)
    kind, options = "", b""
    totals = (0, 0)
    queue = (0, 0, 0, 0, 0)
    for name, value in _attributes(payload, _TCMSG.size):
        if name == _TCA_KIND:
            kind = value.rstrip(b"\0").decode("ascii")
        elif name == _TCA_OPTIONS:
            options = value
        elif name == _TCA_STATS2:
            stats = dict(_attributes(value, 0))
            if _STATS_BASIC in stats:
                totals = struct.unpack_from("=QI", stats[_STATS_BASIC])
            if _STATS_PKT64 in stats:
                totals = (totals[0], struct.unpack_from("=Q", stats[_STATS_PKT64])[0])
            if _STATS_QUEUE in stats:
                queue = struct.unpack_from("=IIIII", stats[_STATS_QUEUE])
    queued_packets, backlog_bytes, drops, _, overlimits = queue
    return QdiscEntry(
        kind, ifindex, handle, parent, totals[0], totals[1], drops, overlimits, backlog_bytes, queued_packets, options
    )


def htb_class(entry: QdiscEntry) -> HtbClass:
    """The settings of an HTB class. Raises ValueError if `entry` is none."""
    attributes = dict(_attributes(entry.options, 0))
    if entry.kind != "htb" or _HTB_PARMS not in attributes:
        raise ValueError(f"not an HTB class: {entry.kind}")
    parameters = attributes[_HTB_PARMS]
    ratespec_bytes = 12
    rate, ceil = struct.unpack_from("=8xI", parameters)[0], struct.unpack_from("=8xI", parameters, ratespec_bytes)[0]
    buffer_ticks, ceil_buffer_ticks = struct.unpack_from("=II", parameters, 2 * ratespec_bytes)
    if _HTB_RATE64 in attributes:  # only there when 32 bits don't hold it
        (rate,) = struct.unpack("=Q", attributes[_HTB_RATE64])
    if _HTB_CEIL64 in attributes:
        (ceil,) = struct.unpack("=Q", attributes[_HTB_CEIL64])
    burst = round(buffer_ticks * _PSCHED_TICK_NS * rate / 1e9)
    (prio,) = struct.unpack_from("=I", parameters, 2 * ratespec_bytes + 16)
    return HtbClass(rate, ceil, burst, round(ceil_buffer_ticks * _PSCHED_TICK_NS * ceil / 1e9), prio)


def u32_match(entry: QdiscEntry) -> tuple[int, int, int, int] | None:
    """(class, value, mask, offset) of a u32 filter with one key, 32 bits from the IP header on; None for any other."""
    attributes = dict(_attributes(entry.options, 0))
    if entry.kind != "u32" or _U32_CLASSID not in attributes or _U32_SEL not in attributes:
        return None
    selector = attributes[_U32_SEL]
    if selector[2] != 1:  # keys
        return None
    mask, value, offset = struct.unpack_from(">IIi", selector, 16)
    (offset,) = struct.unpack_from("=i", selector, 24)
    return struct.unpack("=I", attributes[_U32_CLASSID])[0], value, mask, offset


def fifo_limit(entry: QdiscEntry) -> int:
    """Limit of a bfifo (bytes) or pfifo (packets)."""
    return int(struct.unpack_from("=I", entry.options)[0])


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, position)
        yield kind, data[position + _HEADER.size : position + length]
        position += (length + 3) & ~3


def _attributes(data: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    while position + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        yield kind & _NESTED, data[position + _ATTRIBUTE.size : position + length]
        position += max(4, (length + 3) & ~3)
