"""A call: one allreduce, laid out as a run of consecutive chunks of a stream (rules W3 and W4 of PROTOCOL.md).

Integers travel as they are. Floats need an exponent that all workers agree on first: a *scale chunk* (op MAX) carries
the exponents of the next E data chunks (a group), and is sent a whole group ahead of them:

    S0  S1 D D D ... D   S2 D D ... D   ...   D D ... D
        ^ data of group 0    ^ group 1              ^ last group

Nothing here knows of slots, packets or time. Values are read from the caller's array when a chunk is (re)sent and
results are written into it as they come, so a call needs no copy of the tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg import fixedpoint
from switchagg.job import JobConfig
from switchagg.wire import Op, Values

Array = NDArray[Any]


class Call(Protocol):
    """What an endpoint needs of a call. Positions count the call's chunks from 0."""

    chunks: int
    """How many chunks the call has; the same on every worker."""
    ready_chunks: int
    """How many leading chunks may be sent now; never decreases, and only `write` raises it."""

    def read(self, positions: Sequence[int]) -> tuple[Values, Sequence[Op]]:
        """Values (k, E) int32 and op of each of these chunks, ascending, ready and not yet written."""

    def write(self, positions: Sequence[int], values: Values) -> None:
        """Take the results (k, E) of these chunks; each is written once, in any order."""


class _Rows:
    """A 1-D array seen as rows of `width`; the last row is padded with zeros. Reads and writes in place."""

    def __init__(self, array: Array, width: int) -> None:
        whole = len(array) // width
        self.width = width
        self.count = -(-len(array) // width)
        self._array = array
        self._whole = whole
        self._body = array[: whole * width].reshape(whole, width)

    def read(self, rows: Sequence[int]) -> Array:
        """(k, width) values of ascending rows: a view where they are consecutive."""
        if rows[-1] < self._whole:
            return self._body[_index(rows)]
        chunk = np.zeros((len(rows), self.width), self._array.dtype)
        tail = self._array[self._whole * self.width :]
        chunk[-1, : len(tail)] = tail
        if len(rows) > 1:
            chunk[:-1] = self._body[_index(rows[:-1])]
        return chunk

    def write(self, rows: Sequence[int], values: Array) -> None:
        """Store (k, width) values; rows in any order."""
        for position, row in enumerate(rows):
            if row >= self._whole:
                tail = self._array[self._whole * self.width :]
                tail[:] = values[position, : len(tail)]
                rest = [r for r in rows if r < self._whole]
                if rest:
                    self._body[rest] = values[[p for p, r in enumerate(rows) if r < self._whole]]
                return
        self._body[_index(rows)] = values


def _index(rows: Sequence[int]) -> slice | list[int]:
    """A slice where rows ascend by one: NumPy then makes no copy."""
    run = range(rows[0], rows[-1] + 1)
    return slice(run.start, run.stop) if list(rows) == list(run) else list(rows)


class IntegerCall:
    """An exact allreduce of int32 (SUM or MAX) or int64 (SUM): no scale chunks (W3)."""

    def __init__(self, array: Array, op: Op, elements: int) -> None:
        self.op = op
        self._elements = elements
        self._limbs = array.dtype == np.int64
        self._rows = _Rows(array, elements // fixedpoint.LIMBS if self._limbs else elements)
        self.array = array
        self.chunks = self._rows.count
        self.ready_chunks = self.chunks

    def read(self, positions: Sequence[int]) -> tuple[Values, Sequence[Op]]:
        values = self._rows.read(positions)
        if self._limbs:
            values = fixedpoint.to_limbs(np.ascontiguousarray(values), self._elements)
        return values, [self.op] * len(positions)

    def write(self, positions: Sequence[int], values: Values) -> None:
        self._rows.write(positions, fixedpoint.from_limbs(values) if self._limbs else values)


class FloatCall:
    """A sum of float32 or float64 in shared-exponent fixed point (W4, F1 to F6)."""

    op = Op.SUM

    def __init__(self, array: Array, elements: int, workers: int) -> None:
        self._elements = elements
        self._limbs = array.dtype == np.float64
        self._rows = _Rows(array, elements // fixedpoint.LIMBS if self._limbs else elements)
        self._contents, self._ready_after = _layout(self._rows.count, elements)
        groups = len(self._ready_after) - 1
        self._scales = fixedpoint.Scales(self._rows.count, workers, array.dtype)
        self._agreed = [False] * groups
        self._known_groups = 0
        self.array = array
        self.chunks = len(self._contents)
        self.ready_chunks = self._ready_after[0]

    def read(self, positions: Sequence[int]) -> tuple[Values, Sequence[Op]]:
        contents = [self._contents[p] for p in positions]
        data = [c for c in contents if c >= 0]
        if len(data) == len(contents):
            return self._quantised(data), [Op.SUM] * len(data)
        values = np.empty((len(contents), self._elements), np.int32)
        if data:
            values[[k for k, c in enumerate(contents) if c >= 0]] = self._quantised(data)
        for k, content in enumerate(contents):
            if content < 0:
                values[k] = self._own_codes(~content)
        return values, [Op.SUM if c >= 0 else Op.MAX for c in contents]

    def write(self, positions: Sequence[int], values: Values) -> None:
        contents = [self._contents[p] for p in positions]
        data = [c for c in contents if c >= 0]
        if len(data) == len(contents):
            self._store(data, values)
            return
        if data:
            self._store(data, values[[k for k, c in enumerate(contents) if c >= 0]])
        for k, content in enumerate(contents):
            if content < 0:
                first = ~content * self._elements
                self._scales.agree(first, values[k, : self._rows.count - first])
                self._agreed[~content] = True
        while self._known_groups < len(self._agreed) and self._agreed[self._known_groups]:
            self._known_groups += 1
        self.ready_chunks = self._ready_after[self._known_groups]

    def _own_codes(self, group: int) -> fixedpoint.Codes:
        first = group * self._elements
        rows = range(first, min(first + self._elements, self._rows.count))
        codes = np.full(self._elements, fixedpoint.ZERO, np.int32)
        codes[: len(rows)] = fixedpoint.exponents(self._rows.read(rows))
        return codes

    def _quantised(self, data: list[int]) -> Values:
        integers = fixedpoint.quantise(self._rows.read(data), self._scales, _index(data))
        return fixedpoint.to_limbs(integers, self._elements) if self._limbs else integers

    def _store(self, data: list[int], values: Values) -> None:
        sums = fixedpoint.from_limbs(values) if self._limbs else values
        self._rows.write(data, fixedpoint.dequantise(sums, self._scales, _index(data)))


@lru_cache(maxsize=64)
def _layout(data_chunks: int, elements: int) -> tuple[list[int], list[int]]:
    """What each chunk of a float call carries, and how many may be sent once the first g groups' exponents are known.

    Content c >= 0 is data chunk c; c < 0 is the scale chunk of group ~c (W4).
    """
    groups = -(-data_chunks // elements)
    contents: list[int] = [~0] if groups else []
    ready_after = []
    for group in range(groups):
        if group + 1 < groups:
            contents.append(~(group + 1))
        ready_after.append(len(contents))
        contents.extend(range(group * elements, min((group + 1) * elements, data_chunks)))
    ready_after.append(len(contents))
    return contents, ready_after


FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class ArrayCall:
    """The allreduce of an array that `check_array` has accepted, for a core that lays it out itself."""

    array: Array
    op: Op


def check_array(array: Array, op: str, job: JobConfig) -> Op:
    """What the switch does with this array.

    array: 1-D, C-contiguous, writable; float32, float64, int32 or int64 for op "sum", int32 for op "max". Raises
    ValueError for anything else, also for 64-bit types when a packet has room for fewer than three elements.
    """
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("the array must be one-dimensional, contiguous and writable")
    if op not in ("sum", "max") or array.dtype not in (*FLOATS, *INTEGERS) or (op == "max" and array.dtype != np.int32):
        raise ValueError(
            f"op {op} of {array.dtype}: the switch does sum of float32, float64, int32, int64; max of int32"
        )
    if array.itemsize == 8 and job.elements < fixedpoint.LIMBS:
        raise ValueError(f"{array.dtype} needs at least {fixedpoint.LIMBS} elements per packet, not {job.elements}")
    return Op.SUM if op == "sum" else Op.MAX


def make_call(array: Array, op: str, job: JobConfig) -> IntegerCall | FloatCall:
    """The call that allreduces this array in place. Raises ValueError as `check_array` does."""
    kind = check_array(array, op, job)
    if array.dtype in FLOATS:
        return FloatCall(array, job.elements, job.workers)
    return IntegerCall(array, kind, job.elements)
