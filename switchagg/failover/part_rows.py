"""What one rank has of a part, which is a call on a stream, or what of a split call is on it (W11): rules L1 and L2 of
PROTOCOL.md.

A switch's results are written in place, row by row, so a rank *holds* some rows of a part, and of the others its array
still has what it gave. A part that is finished on one rank may lack rows on another; but the array is its user's again,
so each rank *retains* a copy of the last rows of finished parts, as long as some rank may lack one.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import room_of
from switchagg.calls.chunked_call import ArrayCall, row_of
from switchagg.calls.small_call import WIDE, small_rows
from switchagg.codecs.codec import Array, Codec
from switchagg.description import Words
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig
from switchagg.layout import Layout, Rows, Shares
from switchagg.wire import Op, Route

Flags = NDArray[np.bool_]
"""One for each row of a part."""


@dataclass(frozen=True, slots=True)
class PartForm:
    """The facts of a part that all ranks know: how a switch lays it out. words: of a row."""

    dtype: "np.dtype[Any]"
    op: Op
    codec: Codec
    shares: Shares
    layout: Layout
    words: int
    width: int
    key: int
    description: Words | None

    @classmethod
    def of(cls, call: ArrayCall, job: JobConfig, window_slots: int) -> "PartForm":
        """The form that `chunked_call` gives the call on a stream of so many slots."""
        assert not job.partial
        room, codec, dtype, shares = room_of(call, job), call.codec, call.array.dtype, call.shares
        words, width = row_of(dtype, room, codec)
        if call.residual is None and small_rows(call.array, call.op, codec, shares, room, job.workers):
            codec, words, width = WIDE, room // 2, room // 2
        layout = Layout(shares, len(call.array), width, job.workers, window_slots)
        return cls(dtype, call.op, codec, shares, layout, words, width, call.key, call.description)

    @property
    def rows(self) -> int:
        """The number of data chunks, whose rows these are, in the order of sending."""
        return self.layout.chunks

    def owners(self) -> NDArray[np.int32]:
        """The owner of each row."""
        if self.shares.owner is not None:
            return np.full(self.rows, self.shares.owner, np.int32)
        return np.fromiter(map(self.layout.owner, range(self.rows)), np.int32, self.rows)


class RowStore(Protocol):
    """Rows of a part, by ascending numbers of data chunks."""

    def read(self, data: Sequence[int]) -> Array:
        """(k, width) values, perhaps a view."""

    def write(self, data: Sequence[int], values: Array) -> None:
        """Store (k, width) values."""


class _CopiedRows:
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
    """What one rank has of a part. held: the rows of which it has the result, or which are its to give, (rows,)."""

    def __init__(self, form: PartForm, rank: int, job: JobConfig, store: RowStore, held: Flags) -> None:
        self.form, self.rank, self.job, self.held = form, rank, job, held
        self.residual: Rows | None = None
        self._store = store

    @classmethod
    def unfinished(cls, call: ArrayCall, held: Flags, rank: int, job: JobConfig, window_slots: int) -> "PartRows":
        """A part that a switch has begun. held: the rows whose results are in the call's array (`Endpoint.held`).
        window_slots: of its stream, with which a switch laid it out."""
        form = PartForm.of(call, job, window_slots)
        assert held.shape == (form.rows,)
        if form.shares.route is Route.FROM_OWNER:
            held = held | (form.owners() == rank)
        part = cls(form, rank, job, Rows(call.array, form.width, form.layout), held)
        if call.residual is not None:
            part.residual = Rows(call.residual, form.width, form.layout)
        return part

    @classmethod
    def untouched(cls, call: ArrayCall, rank: int, job: JobConfig, window_slots: int) -> "PartRows":
        """A part that this rank has made and no switch has begun."""
        rows = PartForm.of(call, job, window_slots).rows
        return cls.unfinished(call, np.zeros(rows, np.bool_), rank, job, window_slots)

    def read(self, data: Sequence[int]) -> Array:
        """(k, width) values of these rows, at least one: results of those that are held, else what this rank gives; a
        view where they are neighbours in the call's array. Raises AggregationFailed for a row of a finished part that
        isn't retained any more."""
        runs = list(runs_of_rows(data))
        if len(runs) == 1:
            return self._store.read(runs[0][1])
        values = np.empty((len(data), self.form.width), self.form.dtype)
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

    window_slots: of the stream. first: the number of the first part that the switch has.
    """

    def __init__(self, window_slots: int, rank: int, job: JobConfig, first: int = 0) -> None:
        self._window, self._rank, self._job = window_slots, rank, job
        self._parts: dict[int, PartRows] = {}
        self._below: deque[tuple[int, int]] = deque()  # (number, chunks, at least) of those below `lowest`, in order
        self._chunks_below = 0
        self._drops = True
        self.lowest = first
        """The number of the first part that isn't finished."""

    def keep(self, number: int, call: ArrayCall) -> None:
        """A part is finished; its caller doesn't have the array yet. Parts may finish in any order."""
        form = PartForm.of(call, self._job, self._window)
        held = np.ones(form.rows, np.bool_)
        if form.shares.route is Route.TO_OWNER:
            held = form.owners() == self._rank
        rows, last = Rows(call.array, form.width, form.layout), range(max(0, form.rows - self._window), form.rows)
        values = rows.read(last).copy() if last else np.empty((0, form.width), form.dtype)
        store = _CopiedRows(form.rows, values, self._job.job_id)
        self._parts[number] = PartRows(form, self._rank, self._job, store, held)
        while (part := self._parts.get(self.lowest)) is not None:
            self._pass(part.form)

    def tell_lowest(self) -> int:
        """`lowest`, for the table of a rank that has lost its switch: calls that finish until its loop stops displace
        nothing any more, since what is disputed begins there or before."""
        self._drops = False
        return self.lowest

    def of(self, number: int) -> PartRows | None:
        """What was retained of a part; None: no rank lacks any of it, or it isn't finished."""
        return self._parts.get(number)

    def _pass(self, form: PartForm) -> None:
        """The part `lowest` is finished, as all before it: every rank has the chunks that lie a window before its last
        one, and a rank alone has all."""
        chunks = form.rows + (form.description is not None)
        self._below.append((self.lowest, chunks))
        self._chunks_below += chunks
        self.lowest += 1
        spacing = self._window if self._job.workers > 1 else 0
        while self._drops and self._below and self._chunks_below - self._below[0][1] >= spacing:
            number, chunks = self._below.popleft()
            self._chunks_below -= chunks
            del self._parts[number]
