"""A count sketch of each tensor, summed, and what is greatest in it: FetchSGD. Its cells and signs are rule F17.

Every rank does what FetchSGD's server does, with the same bits: V <- rho V + S, U <- U + V, of which S is the summed
sketch; the result is what is greatest among the medians of U's rows, and the cells of U and V that this lies in become
0. So momentum and error feedback are in the sketch: what isn't in a result remains in U, and nothing in a residual.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, spoil
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count, greatest, spans
from switchagg.codecs.rounding import draws
from switchagg.codecs.sparse.blocks import Chosen
from switchagg.description import Kind
from switchagg.option_syntax import decimal, option, share

_LEAST = 1024
"""Tensors of fewer values travel as they are."""


def _odd(text: str) -> int:
    if text not in {"1", "3", "5", "7", "9"}:
        raise ValueError("1, 3, 5, 7 or 9")
    return int(text)


class Cells:
    """The cells to which a tensor's values are added (F17): rows of `columns` cells; the tensor is cut into runs of as
    many values, and each run lies in each row, shifted around and perhaps negated."""

    def __init__(self, values: int, rows: int, columns: int) -> None:
        self.values, self.rows, self.columns = values, rows, columns
        numbers = draws(0, np.arange(rows, dtype=np.uint64), -(-values // columns)).astype(np.int64)
        self.shifts = numbers * columns >> 32
        self.negated = (numbers & 1).astype(bool)

    def sketch(self, values: Array, cells: Array) -> None:
        """Set cells (rows, columns) to the sums of the values that lie in them."""
        cells[:] = 0
        for run, low in enumerate(range(0, self.values, self.columns)):
            for row in range(self.rows):
                add = np.subtract if self.negated[row, run] else np.add
                for there, here in self._places(row, run):
                    part = cells[row, there]
                    add(part, values[low:][here], out=part)

    def estimate(self, cells: Array, values: Array) -> None:
        """Set each value to the median of what its cells say."""
        estimates = np.empty((self.rows, self.columns), np.float32)
        for run, low in enumerate(range(0, self.values, self.columns)):
            length = min(self.columns, self.values - low)
            for row in range(self.rows):
                copy = np.negative if self.negated[row, run] else np.positive
                for there, here in self._places(row, run):
                    copy(cells[row, there], out=estimates[row, here])
            values[low : low + length] = median([row[:length] for row in estimates])

    def clear(self, cells: Array, chosen: Chosen) -> None:
        """Set the cells of these values to 0."""
        runs, places = np.divmod(chosen, self.columns)
        for row in range(self.rows):
            cells[row, (places + self.shifts[row, runs]) % self.columns] = 0

    def _places(self, row: int, run: int) -> Iterator[tuple[slice, slice]]:
        """(cells, values of the run), one behind the other, where they are neighbours."""
        length = min(self.columns, self.values - run * self.columns)
        shift = int(self.shifts[row, run])
        ahead = min(length, self.columns - shift)
        yield slice(shift, shift + ahead), slice(0, ahead)
        if ahead < length:
            yield slice(0, length - ahead), slice(ahead, length)


def median(rows: list[Array]) -> Array:
    """The median of each column of an odd number of rows, which are sorted in place by exchanges of neighbours."""
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            least = np.minimum(rows[low], rows[low + 1])
            np.maximum(rows[low], rows[low + 1], out=rows[low + 1])
            rows[low] = least
    return rows[len(rows) // 2]


class _Part(NamedTuple):
    """A tensor's values; its share of what is summed; its cells, None: it travels as it is."""

    span: slice
    travelling: Array
    cells: Cells | None


@dataclass(frozen=True)
class Sketch(ArrayCodec):
    """rows: of a sketch. ratio: cells of all its rows, per value. top: part of the values that a result has. rho: of
    the momentum, which takes the optimiser's place."""

    name: ClassVar[str] = "sketch"
    rounds: ClassVar[int] = 1

    rows: int = option("rows", _odd, 5)
    ratio: float = option("ratio", share, 0.2)
    top: float = option("top", share, 0.01)
    rho: float = option("rho", decimal(1), 0.0)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4 * self.ratio * values}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        sizes = [span.stop - span.start for span in spans(shape.tensors)]
        cells = [self._cells(size) for size in sizes]
        lengths = [
            size if sketched is None else sketched.rows * sketched.columns
            for size, sketched in zip(sizes, cells, strict=True)
        ]
        travelling = np.empty(sum(lengths), np.float32)
        ends = np.cumsum(lengths)[:-1]
        parts = list(map(_Part, spans(shape.tensors), np.split(travelling, ends), cells))
        for part in parts:
            if part.cells is None:
                part.travelling[:] = values[part.span]
            else:
                with np.errstate(invalid="ignore", over="ignore"):
                    part.cells.sketch(values[part.span], part.travelling.reshape(part.cells.rows, -1))
        yield Reduction(travelling)
        for part, kept_of in zip(parts, memory, strict=True):
            lost = None if residual is None else residual[part.span]
            if not np.isfinite(part.travelling).all():
                spoil(values[part.span], lost)
                continue
            if lost is not None:
                lost.fill(0)
            self._serve(part, kept_of, values[part.span])

    def _cells(self, size: int) -> Cells | None:
        columns = -(-round(self.ratio * size) // self.rows)
        return Cells(size, self.rows, columns) if size >= _LEAST and self.rows * columns < size else None

    def _serve(self, part: _Part, memory: Memory, values: Array) -> None:
        """The result of one tensor, of the summed sketch."""
        velocity = part.travelling
        if self.rho:
            before = memory.get("velocity")
            if before is not None and before.size == velocity.size:
                velocity += np.float32(self.rho) * before.reshape(-1)
            memory["velocity"] = velocity = velocity.copy()
        if part.cells is None:
            values[:] = velocity
            return
        shape = (part.cells.rows, part.cells.columns)
        before = memory.get("lost")
        lost = velocity.reshape(shape).copy()
        if before is not None and before.shape == shape:
            lost += before
        part.cells.estimate(lost, values)
        chosen = greatest(values, chosen_count(len(values), self.top))
        chosen_values = values[chosen]
        values.fill(0)
        values[chosen] = chosen_values
        part.cells.clear(lost, chosen)
        memory["lost"] = lost
        if self.rho:
            part.cells.clear(memory["velocity"].reshape(shape), chosen)
