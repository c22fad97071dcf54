"""PowerSGD: each matrix as a product of two thin ones, P Q^T, found by one step of power iteration from the last Q.

Two sums that depend on each other: P = M Q, with everything that isn't compressed, then Q = M^T P' with P' the
orthonormal columns of the summed P. A rank's residual is its own matrix less the *mean* of all, P' Q^T / n, as
published, so residuals and result together are the sum. What follows a sum is done in a fixed order of elementary
operations: the same bits on all ranks, whatever their processors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, Tensors, spoil
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import spans
from switchagg.codecs.rounding import draws
from switchagg.description import Kind
from switchagg.option_syntax import count, decimal, option

_SPANNED = 1e-6
"""The part of a vector that is left when it lies in the span of others."""

_TOGETHER = 1 << 16
"""Values of a product that are made at once: they stay in a processor's cache."""


class Matrix(NamedTuple):
    """A tensor that is compressed. place: of the tensor; values: (rows, columns), a view."""

    place: int
    span: slice
    values: Array


def orthonormal(rows: Array) -> Array:
    """These vectors (k, length) by Gram-Schmidt, in float64; what lies in the span of the ones before becomes zeros."""
    exact = rows.astype(np.float64)
    for place, row in enumerate(exact):
        least = _SPANNED * _length(row)
        for other in exact[:place]:
            row -= other * np.sum(other * row)
        length = _length(row)
        row /= length if length > least else np.inf
    columns: Array = exact.astype(np.float32)
    return columns


def _length(row: Array) -> float:
    return float(np.sqrt(np.sum(row * row)))


def next_start(start: Array, right: Array) -> Array:
    """The Q that the next sum starts from; where nothing was found, the old one."""
    vectors = orthonormal(right)
    nothing = ~vectors.any(axis=1)
    vectors[nothing] = start[nothing]
    return vectors


def product(left: Array, right: Array, out: Array) -> None:
    """out (rows, columns) = left^T right, of (k, rows) and (k, columns); no library's order of adding."""
    np.multiply(left[0][:, np.newaxis], right[0], out=out)
    for column, row in zip(left[1:], right[1:], strict=True):
        out += column[:, np.newaxis] * row


def pieces(buffer: Array, matrices: Sequence[Matrix], rank: int, axis: int) -> Iterator[Array]:
    """Views (rank, rows or columns) of each matrix's part of a buffer."""
    low = 0
    for matrix in matrices:
        length = matrix.values.shape[axis]
        yield buffer[low : low + rank * length].reshape(rank, length)
        low += rank * length


@dataclass(frozen=True)
class PowerSgd(ArrayCodec):
    """rank: columns of P and Q. rate: what is compressed becomes smaller by more than that, else it is sent exactly; so
    are vectors."""

    name: ClassVar[str] = "powersgd"
    rounds: ClassVar[int] = 2
    needs_feedback: ClassVar[bool] = True

    rank: int = option("rank", count(1), 1)
    rate: float = option("rate", decimal(), 2.0)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        """Bytes moved for a square matrix."""
        return {"allreduce": 8 * self.rank * values**0.5}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        matrices, exact = self._sorted(values, shape.tensors)
        rows, columns = (self.rank * sum(matrix.values.shape[axis] for matrix in matrices) for axis in (0, 1))
        first = np.concatenate([values[span] for span in exact] + [np.empty(rows, np.float32)])
        lefts = list(pieces(first[len(first) - rows :], matrices, self.rank, 0))
        starts = [self._begin(matrix, shape.shared, memory[matrix.place]) for matrix in matrices]
        with np.errstate(invalid="ignore", over="ignore"):
            for matrix, start, left in zip(matrices, starts, lefts, strict=True):
                np.matmul(start, matrix.values.T, out=left)
        yield Reduction(first)
        low = 0
        for span in exact:
            values[span] = first[low : (low := low + span.stop - span.start)]
            if residual is not None:
                residual[span] = 0
        if not matrices:
            return
        second = np.empty(columns, np.float32)
        rights = list(pieces(second, matrices, self.rank, 1))
        with np.errstate(invalid="ignore", over="ignore"):
            lefts = [orthonormal(left) for left in lefts]
            for matrix, left, right in zip(matrices, lefts, rights, strict=True):
                np.matmul(left, matrix.values, out=right)
        yield Reduction(second)
        for matrix, start, left, right in zip(matrices, starts, lefts, rights, strict=True):
            lost = None if residual is None else residual[matrix.span]
            if np.isfinite(right).all():
                self._finish(matrix, left, right, lost, shape.workers)
                memory[matrix.place]["q"] = next_start(start, right)
            else:
                spoil(matrix.values.reshape(-1), lost)

    def _sorted(self, values: Array, tensors: Tensors) -> tuple[list[Matrix], list[slice]]:
        """The matrices to compress, and the spans that are sent as they are."""
        matrices, exact = [], []
        for place, (tensor, span) in enumerate(zip(tensors, spans(tensors), strict=True)):
            size, rows = span.stop - span.start, tensor.shape[0] if len(tensor.shape) > 1 else 0
            if rows and (rows + size // rows) * self.rank * self.rate < size:
                matrices.append(Matrix(place, span, values[span].reshape(rows, -1)))
            else:
                exact.append(span)
        return matrices, exact

    def _begin(self, matrix: Matrix, shared: int, memory: Memory) -> Array:
        """The Q of the last sum; at first random numbers, the same on all ranks."""
        columns = matrix.values.shape[1]
        last_q = memory.get("q")
        if last_q is not None and last_q.shape == (self.rank, columns):
            return last_q
        sequences = np.arange(self.rank, dtype=np.uint64) + np.uint64(matrix.place * self.rank)
        drawn: Array = (draws(shared, sequences, columns).view(np.int32) / np.float32(1 << 31)).astype(np.float32)
        return drawn

    def _finish(self, matrix: Matrix, left: Array, right: Array, lost: Array | None, workers: int) -> None:
        """The result, and what this rank's values differ from the mean."""
        rows, columns = matrix.values.shape
        mean = right / np.float32(workers)
        step = max(1, _TOGETHER // columns)
        for low in range(0, rows, step):
            some = slice(low, low + step)
            if lost is not None:
                of_lost = lost.reshape(rows, columns)[some]
                product(left[:, some], mean, of_lost)
                np.subtract(matrix.values[some], of_lost, out=of_lost)
            product(left[:, some], right, matrix.values[some])
