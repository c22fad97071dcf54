"""The segments of TCP connections: data segments of one size, and acknowledgements, both without contents."""

import struct
from copy import copy
from typing import Any

from emulation.sim.network.simulated_link import IP_BYTES, UDP_FRAMING_BYTES
from transport.links.ethernet import ETHERNET_BYTES

TCP_BYTES = 32  # with timestamps, as Linux sends them
HEADERS_BYTES = ETHERNET_BYTES + IP_BYTES + TCP_BYTES
Block = tuple[int, int]


class TransportSegment:
    """A data segment or, with number -1, an acknowledgement. Segments of a connection are numbered from 0.

    payload_bytes: what it would carry. cwr: the sender has reduced its window for an echoed mark. upto: the first
    segment that is missing; blocks: at most three ranges [first, end) received beyond it, the one that just grew first;
    ece: a mark came and no cwr since; again: it was sent before, or what caused this acknowledgement had come before.
    content: of a host method's segment, what it carries.
    """

    header_bytes = TCP_BYTES  # after the IP header
    __slots__ = ("again", "blocks", "content", "cwr", "ece", "flow", "intact", "number", "payload_bytes", "upto")

    def __init__(self, flow: int, number: int, payload_bytes: int) -> None:
        self.flow = flow
        self.number = number
        self.payload_bytes = payload_bytes
        self.cwr = self.ece = self.again = False
        self.intact = True
        self.upto = 0
        self.blocks: tuple[Block, ...] = ()
        self.content: Any = None

    def damaged(self) -> "TransportSegment":
        """The same, whose checksum its receiver finds wrong."""
        segment = copy(self)
        segment.intact = False
        return segment

    @property
    def wire_bytes(self) -> int:
        """With all headers, as links count."""
        return self.payload_bytes + self.header_bytes + ETHERNET_BYTES + IP_BYTES

    def __len__(self) -> int:
        """From after the IP header, as bridges of host methods count."""
        return self.payload_bytes + self.header_bytes

    @property
    def size(self) -> int:
        """From after a UDP header, as bridges of method `switch` count."""
        return self.wire_bytes - UDP_FRAMING_BYTES

    @property
    def data(self) -> bytes:
        """The segment's part of a trace of events."""
        blocks = sum(self.blocks, ())
        return struct.pack(f">2q3?2q{len(blocks)}q", self.flow, self.number, self.cwr, self.ece, self.again,
                           self.payload_bytes, self.upto, *blocks)  # fmt: skip


def acknowledgement(flow: int, upto: int, blocks: tuple[Block, ...], ece: bool, again: bool) -> TransportSegment:
    """A bare acknowledgement."""
    segment = TransportSegment(flow, -1, 0)
    segment.upto, segment.blocks, segment.ece, segment.again = upto, blocks, ece, again
    return segment


class Ranges:
    """A set of integers as disjoint ranges [first, end), in order."""

    def __init__(self) -> None:
        self.ranges: list[Block] = []

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(self, first: int, end: int) -> list[Block]:
        """Add a range; the parts of it that were not there."""
        ranges, new, at = self.ranges, [], len(self.ranges)
        while at and ranges[at - 1][1] >= first:  # few ranges, and what comes belongs to the last ones
            at -= 1
        merged_first, merged_end, upto = first, end, first
        stop = at
        while stop < len(ranges) and ranges[stop][0] <= end:
            low, high = ranges[stop]
            if low > upto:
                new.append((upto, low))
            upto = max(upto, high)
            merged_first, merged_end = min(merged_first, low), max(merged_end, high)
            stop += 1
        if upto < end:
            new.append((upto, end))
        ranges[at:stop] = [(merged_first, merged_end)]
        return new

    def cut(self, first: int) -> int:
        """Forget what is below `first`; the end of the range that holds it, which goes too, or `first`."""
        while self.ranges and self.ranges[0][0] <= first:
            first = max(first, self.ranges.pop(0)[1])
        return first

    def holding(self, number: int) -> Block | None:
        """The range that a number is in."""
        return next((block for block in reversed(self.ranges) if block[0] <= number < block[1]), None)
