"""Where a call's values lie in its data chunks, and whose they are (rules W3, W13 and W14). Nothing is stored: all of
it follows from the number of a data chunk.

An array is cut into shards, one for each rank or one alone; a shard into rows, a row for each data chunk. All shards
have as many rows as the longest: a row that lies beyond a shorter one's end is empty. Shards take turns of `run` rows,
so that chunks with values come in runs long enough for one system call, and all ranks' links work at the same time:

    0.0 0.1  1.0 1.1  2.0 2.1   0.2 0.3  1.2 1.3  2.2 2.3   …        (shard.row, of three ranks, with run = 2)
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from switchagg.codecs.codec import Array
from switchagg.description import ROOTED, shard_range
from switchagg.wire import Route

RUN_MAX = 16
"""Rows of one shard in a row: what one system call takes."""


class Shares(NamedTuple):
    """Who gives the values of a call, who gets the results, and who owns what.

    owner: of the whole array; None: rank r owns shard r. unit: values that lie in the same shard: the two floats of a
    complex number, the bytes of an element. routed: whether the switch and the link know routes; else all ranks send
    and get all values, and what another rank should have given is zero (W15). rows: first … end-1 of each
    shard's are all that this call carries, a part of a split one (W11); None: all. run: so many rows of a shard
    follow each other, where each rank owns one (`run_of`).
    """

    route: Route = Route.ALL
    owner: int | None = 0
    unit: int = 1
    routed: bool = True
    rows: tuple[int, int] | None = None
    run: int = 1


EVERYONE = Shares()

_ROUTES: dict[str, Route] = {
    "reduce_scatter": Route.TO_OWNER,
    "reduce": Route.TO_OWNER,
    "all_gather": Route.FROM_OWNER,
    "broadcast": Route.FROM_OWNER,
}


@lru_cache(maxsize=256)
def shares_of(kind: str, root: int = 0, unit: int = 1) -> Shares:
    """Those of a collective. root: of one that has it."""
    route = _ROUTES.get(kind, Route.ALL)
    if route is Route.ALL:
        return EVERYONE
    return Shares(route, root if kind in ROOTED else None, unit)


def run_of(window_slots: int, workers: int) -> int:
    """Rows of a shard that follow each other on a stream for which the job has asked so many slots (W13)."""
    return max(1, min(RUN_MAX, window_slots // (4 * workers)))


class Layout:
    """The data chunks of one call, counted from 0 in the order of sending. `chunks`: how many; `rows`: of each shard.

    count: values of the array. width: of a row.
    """

    def __init__(self, shares: Shares, count: int, width: int, workers: int) -> None:
        self._count, self._width = count, width
        self._owner = shares.owner
        self._unit = shares.unit
        self._shards = workers if shares.owner is None else 1
        self._run = shares.run
        longest = -(-(count // shares.unit) // self._shards) * shares.unit
        self._first, end = shares.rows or (0, -(-longest // width))
        self.rows = end - self._first
        alone = shares.route is not Route.ALL and workers == 1  # a rank has what is its own already
        self.chunks = 0 if alone else self.rows * self._shards

    def owner(self, chunk: int) -> int:
        """The rank that owns a data chunk's values."""
        return self._place(chunk)[0] if self._owner is None else self._owner

    def span(self, chunk: int) -> tuple[int, int]:
        """The array's values low … high-1 are what a data chunk carries; at most a row, none beyond a shard's end."""
        if self._owner is not None:
            low = (self._first + chunk) * self._width
            return low, min(low + self._width, self._count)
        shard, row = self._place(chunk)
        begin, end = (self._unit * place for place in shard_range(self._count // self._unit, shard, self._shards))
        low = min(begin + (self._first + row) * self._width, end)
        return low, min(low + self._width, end)

    def _place(self, chunk: int) -> tuple[int, int]:
        """(shard, row of those that the call carries)."""
        turn, rest = divmod(chunk, self._run * self._shards)
        first = turn * self._run
        shard, row = divmod(rest, min(self._run, self.rows - first))
        return shard, first + row


class Rows:
    """A 1-D array as the rows of its data chunks, padded with zeros. Reads and writes in place."""

    def __init__(self, array: Array, width: int, layout: Layout) -> None:
        self._array, self._width = array, width
        self._span, self._owner = layout.span, layout.owner

    def read(self, data: Sequence[int]) -> Array:
        """(k, width) values of ascending data chunks: a view where they are neighbours in the array."""
        view = self._together(data)
        if view is not None:
            return view
        rows = np.zeros((len(data), self._width), self._array.dtype)
        for place, low, high in self._pieces(data):
            rows[place].reshape(-1)[: high - low] = self._array[low:high]
        return rows

    def write(self, data: Sequence[int], values: Array) -> None:
        """Store (k, width) values; data chunks in any order."""
        view = self._together(data)
        if view is not None:
            view[:] = values
            return
        for place, low, high in self._pieces(data):
            self._array[low:high] = values[place].reshape(-1)[: high - low]

    def _pieces(self, data: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
        """(which of the rows, low, high): what lies together, a row each but where only the last one is short."""
        if len(data) > 1 and self._together(data[:-1]) is not None:
            yield slice(0, len(data) - 1), self._span(data[0])[0], self._span(data[-2])[1]
            yield slice(len(data) - 1, len(data)), *self._span(data[-1])
            return
        for row, chunk in enumerate(data):
            yield slice(row, row + 1), *self._span(chunk)

    def _together(self, data: Sequence[int]) -> Array | None:
        """The rows as a view, if they are whole and follow each other."""
        low, high = self._span(data[0])
        if len(data) > 1:
            if type(index_of(data)) is not slice or self._owner(data[0]) != self._owner(data[-1]):
                return None
            high = self._span(data[-1])[1]
        return self._array[low:high].reshape(-1, self._width) if high - low == len(data) * self._width else None


def index_of(rows: Sequence[int]) -> slice | list[int]:
    """A slice where rows ascend by one: NumPy then makes no copy."""
    run = range(rows[0], rows[-1] + 1)
    return slice(run.start, run.stop) if list(rows) == list(run) else list(rows)
