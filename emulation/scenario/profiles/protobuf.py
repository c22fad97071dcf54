"""Protocol Buffers' wire format, as far as a trace needs it: varints and fields, without a schema."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED = {FIXED64: 8, FIXED32: 4}


class Truncated(ValueError):
    """The bytes end too early, or aren't of this format; at which byte."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(f"byte {at}: {what}")


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, of 64 bits at most, and the place behind it."""
    value = shift = 0
    for place in range(at, min(end, at + 10)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise Truncated(at, "ends within a number" if end < at + 10 else "a number of more than ten bytes")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of a message between two places: (field, type, value, from, to). value: of a varint; bytes of other
    types are at from … to-1. Raises Truncated."""
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Truncated(start, "a field without a number")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield number, kind, value, at, at
            continue
        if kind == BYTES:
            size, at = varint(data, at, end)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise Truncated(start, f"a field of type {kind}, which there isn't")
        if at + size > end:
            raise Truncated(start, f"ends within a field of {size} bytes")
        yield number, kind, 0, at, at + size
        at += size


def messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each message in a stream where messages follow their lengths."""
    at = 0
    while at < len(data):
        size, begin = varint(data, at, len(data))
        if begin + size > len(data):
            raise Truncated(at, f"ends within a message of {size} bytes")
        yield begin, begin + size
        at = begin + size


def signed(value: int) -> int:
    """A varint as int32 or int64 have it."""
    return value - (1 << 64) if value >> 63 else value


def numbers(data: bytes, kind: int, value: int, begin: int, end: int) -> Iterator[int]:
    """The numbers of a repeated field of varints, packed or not."""
    if kind == VARINT:
        yield value
        return
    while begin < end:
        value, begin = varint(data, begin, end)
        yield value
