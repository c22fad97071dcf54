"""Packet <-> bytes: the layout of PROTOCOL.md, rules P1 to P6.

`Packet` is what the reference works on, one at a time; `encode` and `decode` are total. Bundles are what fast paths
work on: uint8 arrays (m, size), m datagrams of equal size, whose header columns and values are NumPy views.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import DecodeError
from switchagg.job import MAX_ELEMENTS

MAGIC = 0x5341  # "SA"
WIRE_VERSION = 2
HEADER_BYTES = 20

FLAGS_AT = 3
"""Where the byte lies in a packet whose lowest three bits are the flags."""
FLAG_RESULT = 1
FLAG_VERSION = 2
FLAG_RETRANSMISSION = 4
FLAGS_ALL = FLAG_RESULT | FLAG_VERSION | FLAG_RETRANSMISSION

REASONS = ("short", "magic", "wire_version", "op", "flags", "length")
"""Why bytes are no packet, in the order the checks are made (rule P6)."""

Bundle = NDArray[np.uint8]
"""(m, size) uint8, C-contiguous: m datagrams of equal size."""

Values = NDArray[np.int32]
"""(E,) or (m, E) int32 in native byte order."""


class Op(IntEnum):
    """How the switch combines the values of a chunk."""

    SUM = 0
    """Add modulo 2**32."""
    MAX = 1
    """Signed maximum."""


class Route(IntEnum):
    """Who gives values for a chunk, and who gets its result. Who gives none sends a header-only packet (P2)."""

    ALL = 0
    """All give, all get: allreduce."""
    TO_OWNER = 1
    """All but the owner give, it alone gets their sum: reduce-scatter, reduce."""
    FROM_OWNER = 2
    """The owner alone gives, all others get: all-gather, broadcast."""


_STRUCT = struct.Struct(">IHHIBBHI")
assert _STRUCT.size == HEADER_BYTES

HEADER = np.dtype(
    [
        ("kind", ">u4"),  # magic, wire version, op, route, owner, flags
        ("job", ">u2"),
        ("slot", ">u2"),
        ("generation", ">u4"),
        ("stream", "u1"),
        ("rank", "u1"),  # and CLOSE, MARKED
        ("elements", ">u2"),
        ("chunk", ">u4"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES

JOB_AT = 4
"""Where in a packet its job stands."""

STREAM_OFFSET: int = 12
"""Where in a packet its stream stands."""

RANK_AT = 13
"""Where the byte lies in a packet that holds the rank, CLOSE and MARKED."""
RANK_BITS = 63
CLOSE = 64
MARKED = 128


@dataclass(frozen=True, slots=True, eq=False)
class Packet:
    """One packet in meaning. slot, version, chunk: see `JobConfig.place`; chunk is modulo 2**32; values (E,) int32,
    or (0,) of a header-only packet; owner: a rank, 0 with route ALL; marked: it met congestion (G1)."""

    job: int
    generation: int
    stream: int
    rank: int
    op: Op
    slot: int
    version: int
    chunk: int
    values: Values
    result: bool = False
    retransmission: bool = False
    route: Route = Route.ALL
    owner: int = 0
    close: bool = False
    marked: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packet) and encode(self) == encode(other)

    __hash__ = None  # type: ignore[assignment]


def frame_bytes(elements: int) -> int:
    """Size in bytes of a packet with that many elements, from the first header byte to the last value."""
    return HEADER_BYTES + 4 * elements


def encode(packet: Packet) -> bytes:
    """The packet's bytes (P1 to P5). Out-of-range fields are a programmer's mistake: struct.error."""
    flags = (
        (FLAG_RESULT if packet.result else 0)
        | (FLAG_VERSION if packet.version else 0)
        | (FLAG_RETRANSMISSION if packet.retransmission else 0)
    )
    frame = bytearray(frame_bytes(len(packet.values)))
    kind, elements = kind_of(packet.op, flags, packet.route, packet.owner), len(packet.values)
    if packet.rank & ~RANK_BITS:
        raise struct.error(f"rank {packet.rank}: 0 to {RANK_BITS}")
    rank = packet.rank | (CLOSE if packet.close else 0) | (MARKED if packet.marked else 0)
    header = (kind, packet.job, packet.slot, packet.generation, packet.stream, rank, elements, packet.chunk)
    pack_header(frame, 0, header)
    frame[HEADER_BYTES:] = packet.values.astype(">i4", copy=False).tobytes()
    return bytes(frame)


def decode(data: bytes | bytearray | memoryview, header_only: bool = False) -> Packet:
    """The packet in these bytes. header_only: as of `fault`.

    Raises DecodeError, with a reason of `REASONS`, for anything else: every byte string does one or the other (P6).
    """
    if len(data) < HEADER_BYTES:
        raise DecodeError("short", f"{len(data)} bytes")
    kind, job, slot, generation, stream, rank, elements, chunk = _STRUCT.unpack_from(data)
    reason = fault(kind, elements, len(data), header_only)
    if reason:
        raise DecodeError(reason)
    values = np.frombuffer(data, dtype=">i4", offset=HEADER_BYTES).astype(np.int32)
    return Packet(
        job=job,
        generation=generation,
        stream=stream,
        rank=rank & RANK_BITS,
        op=op_of(kind),
        slot=slot,
        version=1 if kind & FLAG_VERSION else 0,
        chunk=chunk,
        values=values,
        result=bool(kind & FLAG_RESULT),
        retransmission=bool(kind & FLAG_RETRANSMISSION),
        route=route_of(kind),
        owner=owner_of(kind),
        close=bool(rank & CLOSE),
        marked=bool(rank & MARKED),
    )


MAX_BIT = 1 << 11
"""The bit of the first 32 that distinguishes a chunk with op MAX from one with op SUM."""

ROUTE_BITS = 3 << 9
"""The bits of the first 32 that are zero with route ALL and no other."""

OWNERS = 64
"""An owner has 6 bits."""


def kind_of(op: int, flags: int, route: int = Route.ALL, owner: int = 0) -> int:
    """The first 32 bits of a packet, which all of these are part of. Flags can be tested and set in it."""
    return MAGIC << 16 | WIRE_VERSION << 12 | op << 11 | route << 9 | owner << 3 | flags


def op_of(kind: int) -> Op:
    """The op in the first 32 bits of a well-formed packet."""
    return Op(kind >> 11 & 1)


def route_of(kind: int) -> Route:
    """The route in the first 32 bits of a well-formed packet."""
    return Route(kind >> 9 & 3)


def owner_of(kind: int) -> int:
    """The owner in the first 32 bits of a packet."""
    return kind >> 3 & OWNERS - 1


def givers(kind: int, everyone: int) -> int:
    """Bitmap of the ranks that give values for a chunk (S4); everyone: that of all ranks of the job."""
    if not kind & ROUTE_BITS:
        return everyone
    owner = 1 << owner_of(kind)
    return owner if route_of(kind) is Route.FROM_OWNER else everyone & ~owner


KINDS = frozenset(
    kind_of(op, flags, route, owner)
    for op in Op
    for route in Route
    for owner in range(OWNERS if route else 1)
    for flags in range(FLAGS_ALL + 1)
)
"""All values the first 32 bits of a packet can have."""

RESULTS = frozenset(kind for kind in KINDS if kind & FLAG_RESULT)

SHARE_BITS = ROUTE_BITS | (kind_of(0, 0, 0, OWNERS - 1) ^ kind_of(0, 0))
"""The bits of a packet's kind that are its route and owner."""


def fault(kind: int, elements: int, size: int, header_only: bool = False) -> str:
    """Why a datagram of `size` bytes with these header fields is no packet, or "" (P6). header_only: packets with route
    ALL may be, as in jobs with partial sums (Q1)."""
    if kind not in KINDS:
        if kind >> 16 != MAGIC:
            return "magic"
        if kind >> 12 & 15 != WIRE_VERSION:
            return "wire_version"
        return "op" if kind & ROUTE_BITS == ROUTE_BITS else "flags"
    least = 0 if header_only or kind & ROUTE_BITS else 1
    if not least <= elements <= MAX_ELEMENTS or size != frame_bytes(elements):
        return "length"
    return ""


Header = tuple[int, int, int, int, int, int, int, int]
"""kind (see `kind_of`), job, slot, generation, stream, rank byte, elements, chunk: the order on the wire (P1 to P4)."""


def pack_header(buffer: bytearray | memoryview, offset: int, header: Header) -> None:
    """Write one header at `offset` of a writable buffer."""
    _STRUCT.pack_into(buffer, offset, *header)


def job_of(data: NDArray[np.uint8]) -> int:
    """The job of a datagram (size,), which may be too short; -1 then."""
    return -1 if len(data) < HEADER_BYTES else int(data[JOB_AT]) << 8 | int(data[JOB_AT + 1])


def headers(frames: Bundle) -> NDArray[np.void]:
    """(m,) structured view of the headers of a bundle whose rows are at least HEADER_BYTES long."""
    return frames[:, :HEADER_BYTES].view(HEADER)[:, 0]


def payload(frames: Bundle) -> NDArray[np.int32]:
    """(m, E) big-endian int32 view of the values of a bundle whose rows are whole packets."""
    return frames[:, HEADER_BYTES:].view(">i4")
