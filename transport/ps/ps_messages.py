"""Messages between workers and servers: a fixed head; values, or text, as the message's data.

     0 u16 magic "PS" | 2 u8 version | 3 u8 kind | 4 u64 key | 12 u32 slice | 16 u32 slices of the call
    20 u64 elements of the call | 28 u32 elements of the slice | 32 u32 PUSH, HELD, RESULT: clock; ANSWER: workers
    in the sum, or the delay of a gradient that was applied by itself: how many others were since its sender was last
    sent weights
    36 u8 dtype + 8 requested_op (`REQUESTED_OPS`) | 37 u8 op | 38 u16 source | 40 u16 sink | 42 u16 root, RESULT:
    workers in the sum 44 i32 priority

Where slices of a lost server move (L11 to L15), the clock of a key is how many calls it had before,
that of a call without a key its number less the lowest that its worker hasn't finished; the upper half of an answer's
has the same of all workers, and a BEAT of a server has the lowest number as its key. Numbers are big-endian; values
have the sender's byte order, which all members share (it is part of the hello).
"""

import struct
import sys
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from switchagg.description import requested_op_text

MAGIC = 0x5053
VERSION = 2
LITTLE = sys.byteorder == "little"
EVERYBODY = 0xFFFF
"""As source: all workers give values; as sink: all get the result."""

SUMMED = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64))
DTYPES = (*SUMMED, np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.complex128))
"""Types by their number on the wire. Types after SUMMED can be broadcast and gathered."""

_HEAD = struct.Struct(">HBBQIIQIIBBHHHi")
HEAD_BYTES = _HEAD.size
assert HEAD_BYTES == 48


class PsMessageKind(IntEnum):
    """Message kinds. HELLO (data: PsConfig), FAIL, WORKER_LOST (data: text), SERVER_LOST (data: Standing), BEAT and
    LEAVE have zeros elsewhere."""

    HELLO = 1
    PUSH = 2
    """From a worker: its part in a slice, with values if it is a source of it and has no RESULT."""
    ANSWER = 3
    """From a server: the result of a slice, without values for a worker that needs none."""
    BEAT = 4
    LEAVE = 5
    """From a worker: it needs nothing any more. From a server: no worker is left."""
    FAIL = 6
    """The sender gives up, or demands that the receiver does."""
    WORKER_LOST = 7
    """From a server: the job goes on without the worker `root`."""
    RESULT = 8
    """From a server, with backup workers: what a slice became without the receiver, which has not pushed yet."""
    HELD = 9
    """From a worker that has the result of a slice which another server had: as a PUSH, and waits for no answer. Its
    values are the result."""
    SERVER_LOST = 10
    """From a worker to the others: where it stands without the servers that it takes for lost."""


class PsOp(IntEnum):
    """The operation of a call on its values."""

    SUM = 0
    AVG = 1
    """The sum; each worker divides by the number of workers in it."""
    MAX = 2
    COPY = 3
    """The source's values to all the others."""
    BARRIER = 4
    KEEP = 5
    """The source's values become the servers' weights, and go to all."""
    GRADIENT = 6
    """Applied to the servers' weights; answered with weights."""
    PULL = 7
    """Nothing but weights wanted."""


COMBINING = (PsOp.SUM, PsOp.AVG, PsOp.MAX, PsOp.GRADIENT)


LEAST_URGENT = (1 << 31) - 1
"""The lowest priority. All RESULT messages have it, so the results of one slice keep their order."""


class Head(NamedTuple):
    """The head of a message; the layout above describes its fields."""

    kind: PsMessageKind
    key: int = 0
    number: int = 0
    slices: int = 0
    elements: int = 0
    slice_elements: int = 0
    clock: int = 0
    dtype: int = 0
    op: PsOp = PsOp.SUM
    source: int = 0
    sink: int = 0
    root: int = 0
    priority: int = 0
    requested_op: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the slice's values."""
        return self.slice_elements * DTYPES[self.dtype].itemsize

    @property
    def call(self) -> tuple[int, ...]:
        """The fields that all workers must agree on."""
        sizes = (self.elements, self.slices, self.slice_elements)
        return (self.op, self.requested_op, self.dtype, *sizes, self.root, self.source, self.sink)

    def pack(self) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, *self[:7], self.dtype | self.requested_op << 3, *self[8:-1])


def unpack(head: bytes) -> Head | None:
    """The head, or None for bytes of another protocol."""
    if len(head) != HEAD_BYTES:
        return None
    magic, version, kind, key, number, slices, elements, slice_elements, clock, types, op, *rest = _HEAD.unpack(head)
    source, sink, root, priority = rest
    code, dtype = divmod(types, 8)
    if magic != MAGIC or version != VERSION or dtype >= len(DTYPES):
        return None
    try:
        sizes = (number, slices, elements, slice_elements)
        return Head(PsMessageKind(kind), key, *sizes, clock, dtype, PsOp(op), source, sink, root, priority, code)
    except ValueError:
        return None


def begins_transfer(head: bytes, servers: int) -> bool:
    """Whether a message is the first of its call between a worker and one of so many servers, who have slices in
    turn."""
    parsed = unpack(head)
    return (
        parsed is not None
        and parsed.kind in (PsMessageKind.PUSH, PsMessageKind.ANSWER, PsMessageKind.RESULT)
        and parsed.number < servers
    )


def call_text(head: Head) -> str:
    """A call as errors name it: "allreduce 7 with 1000 float32"."""
    name = {
        PsOp.COPY: "all_gather" if head.root == EVERYBODY else "broadcast",
        PsOp.BARRIER: "barrier",
        PsOp.KEEP: "init",
        PsOp.GRADIENT: "push_pull",
        PsOp.PULL: "pull",
    }.get(head.op)
    op, dtype = requested_op_text(head.requested_op, head.op.name.lower(), DTYPES[head.dtype].name)
    if name is None:
        to_one = "reduce_scatter" if head.root == EVERYBODY else "reduce"
        name = ("allreduce" if head.sink == EVERYBODY else to_one) + f" ({op})"
    root = f" {'to' if head.op in COMBINING else 'from'} rank {head.root}" if head.root != EVERYBODY else ""
    number = f"key {head.key}" if head.key < AUTOMATIC else f"number {head.key - AUTOMATIC}"
    return f"{name} {number}{root} with {head.elements} {dtype}"


AUTOMATIC = 1 << 63
"""Keys from here on are running numbers of calls that were given no key."""

LAG_MAX = 0xFFFF
"""In the upper half of an answer's clock: so many, or more."""
