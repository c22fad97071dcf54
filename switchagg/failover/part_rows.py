"""What one rank has of a part, which is a call on a stream, or what of a split call is on it (W11): rules L1 and L2.

A switch's results are written in place, row by row, so a rank *holds* some rows of a part, and of the others its array
still has what it gave. A part that is finished on one rank may lack rows on another; but the array is its user's again,
so each rank *retains* a copy of the last rows of finished parts, as long as some rank may lack one.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import form_of
from switchagg.calls.chunked_call import ArrayCall, row_of
from switchagg.codecs.codec import Array
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig
from switchagg.layout import Rows
from switchagg.wire import Route

Flags = NDArray[np.bool_]
"""One for each row of a part."""

BATCH, BATCH_BYTES = 32, 1 << 14
"""Finished parts are settled so many at a time, fewer of more than so many bytes: half a megabyte more is retained."""


class RowStore(Protocol):
    """Rows of a part, by ascending numbers of data chunks."""

    def read(self, data: Sequence[int]) -> Array:
        """(k, width) values, perhaps a view."""

    def write(self, data: Sequence[int], values: Array) -> None:
        """Store (k, width) values."""


class _LastRows:
    """The last rows of a finished part; nothing of it is lacking here, so nothing is written."""

    def __init__(self, rows: int, values: Array, job_id: int) -> None:
        self._first, self._values, self._job_id = rows - len(values), values, job_id

    def read(self, data: Sequence[int]) -> Array:
        if data[0] < self._first:
            raise AggregationFailed("a rank lacks a row that this one no longer retains", job=self._job_id)
        copied: Array = self._values[np.asarray(data) - self._first]
        return copied

    def write(self, data: Sequence[int], values: Array) -> None:
        raise AssertionError("a finished part lacks nothing")


class PartRows:
    """What one rank has of a part. rows: how many data chunks carry them, in the order of sending. held: those of which
    it has the result, or which are its to give, (rows,)."""

    def __init__(self, call: ArrayCall, rank: int, job: JobConfig, held: Flags | None = None) -> None:
        """held: the rows whose results are in the call's array (`Endpoint.held`); None: no switch has begun it."""
        self.call, self.rank, self.job, self.form = call, rank, job, form_of(call, job)
        self.rows = self.form.layout.chunks
        self.held = np.zeros(self.rows, np.bool_) if held is None else held
        assert self.held.shape == (self.rows,)
        if call.shares.route is Route.FROM_OWNER:
            self.held = self.held | (self.owners() == rank)
        self.residual = None if call.residual is None else self.rows_in(call.residual)
        self._store: RowStore = self.rows_in(call.array)

    @classmethod
    def finished(cls, call: ArrayCall, rank: int, job: JobConfig) -> "PartRows":
        """A part of which the call's array has all results that this rank gets."""
        part = cls(call, rank, job)
        part.held = part.owners() == rank if call.shares.route is Route.TO_OWNER else np.ones(part.rows, np.bool_)
        return part

    def keep_last(self, rows: int) -> None:
        """Copy the last rows of a part that is finished, and forget its array."""
        last = range(max(0, self.rows - rows), self.rows)
        array = self.call.array
        values = self._store.read(last).copy() if last else np.empty((0, self.form.width), array.dtype)
        self._store = _LastRows(self.rows, values, self.job.job_id)
        self.call = replace(self.call, array=array[:0].copy())

    def rows_in(self, array: Array) -> Rows:
        """The rows of an array as long as the call's."""
        return Rows(array, self.form.width, self.form.layout)

    def owners(self) -> NDArray[np.int32]:
        """The owner of each row."""
        if self.call.shares.owner is not None:
            return np.full(self.rows, self.call.shares.owner, np.int32)
        return np.fromiter(map(self.form.layout.owner, range(self.rows)), np.int32, self.rows)

    def read(self, data: Sequence[int]) -> Array:
        """(k, width) values of these rows, at least one: results of those that are held, else what this rank gives; a
        view where they are neighbours in the call's array. Raises AggregationFailed for a row of a finished part that
        isn't retained any more."""
        runs = list(runs_of_rows(data))
        if len(runs) == 1:
            return self._store.read(runs[0][1])
        values = np.empty((len(data), self.form.width), self.call.array.dtype)
        for place, run in runs:
            values[place] = self._store.read(run)
        return values

    def write(self, data: Sequence[int], values: Array) -> None:
        """Store results (k, width) of rows that this rank lacked."""
        for place, run in runs_of_rows(data):
            self._store.write(run, values[place])


def runs_of_rows(data: Sequence[int]) -> Iterator[tuple[slice, range]]:
    """(their places, rows) of ascending rows that follow each other."""
    rows = np.asarray(data)
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1).tolist()
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield slice(start, end), range(int(rows[start]), int(rows[start]) + end - start)


class RetainedParts:
    """Copies of what finished parts of one stream had in their last rows, while a rank may lack one (L2).

    window_slots: of the stream. first: the number of the first part that the switch has. `keep` runs for each call: an
    array of no more bytes than a window of packets is copied whole, and laid out only if the part is disputed; which
    parts no rank lacks any more is worked out for many at a time.
    """

    def __init__(self, window_slots: int, rank: int, job: JobConfig, first: int = 0) -> None:
        self._window, self._rank, self._job = window_slots, rank, job
        self._whole_bytes = 4 * job.elements * window_slots
        self._parts: dict[int, ArrayCall | PartRows] = {}
        self._below: deque[tuple[int, int]] = deque()  # (number, chunks, at least) of those below `lowest`, in order
        self._chunks_below = self._unsettled = 0
        self._spacing = window_slots if job.workers > 1 else 0
        self._drops = True
        self._lowest = first

    @property
    def lowest(self) -> int:
        """The number of the first part that isn't finished."""
        self._settle()
        return self._lowest

    def keep(self, number: int, call: ArrayCall) -> None:
        """A part is finished; its caller doesn't have the array yet. Parts may finish in any order."""
        size = call.array.nbytes
        self._parts[number] = self._last_rows(call) if size > self._whole_bytes else _copied(call)
        self._unsettled += 1 + size // BATCH_BYTES
        if self._unsettled >= BATCH:
            self._settle()

    def tell_lowest(self) -> int:
        """`lowest`, for the table of a rank that has lost its switch: calls that finish until its loop stops displace
        nothing any more, since what is disputed begins there or before."""
        lowest, self._drops = self.lowest, False
        return lowest

    def of(self, number: int) -> PartRows | None:
        """What was retained of a part; None: no rank lacks any of it, or it isn't finished."""
        self._settle()
        part = self._parts.get(number)
        return PartRows.finished(part, self._rank, self._job) if isinstance(part, ArrayCall) else part

    def _last_rows(self, call: ArrayCall) -> PartRows:
        part = PartRows.finished(call, self._rank, self._job)
        part.keep_last(self._window)
        return part

    def _settle(self) -> None:
        """Of the parts below `lowest` every rank has the chunks that lie a window before the last one, and a rank alone
        has all."""
        self._unsettled = 0
        while (part := self._parts.get(self._lowest)) is not None:
            chunks = self._chunks_at_least(part)
            self._below.append((self._lowest, chunks))
            self._chunks_below += chunks
            self._lowest += 1
        while self._drops and self._below and self._chunks_below - self._below[0][1] >= self._spacing:
            number, chunks = self._below.popleft()
            self._chunks_below -= chunks
            del self._parts[number]

    def _chunks_at_least(self, part: "ArrayCall | PartRows") -> int:
        """A lower bound on the chunks of a part, without its layout: as if packets had no tag."""
        if isinstance(part, PartRows):
            return part.rows + (part.call.description is not None)
        array, rows = part.array, part.shares.rows
        width = row_of(array.dtype, self._job.elements, part.codec)[1]
        return (rows[1] - rows[0] if rows else -(-len(array) // width)) + (part.description is not None)


def _copied(call: ArrayCall) -> ArrayCall:
    return ArrayCall(call.array.copy(), call.op, call.codec, call.shares, call.description, call.key, call.residual)
