"""float32 in lanes, each row rotated at random first: rule F14.

A rotated row's values are about normally distributed, whatever they were: so its scale follows from its root mean
square, not from its largest magnitude, and a heavy tail costs no resolution. Values of a row are sent clipped to s =
T(h) rms; T(h) grows with the number of levels, as clipping and rounding should lose about as much.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import GREATEST_CODE, Array, CallShape, Codec, Codes, Coding, RowIndex
from switchagg.codecs.lanes import BLOCK, GREATEST_SCALE, LEAST_SCALE, Lanes, row_sums
from switchagg.codecs.rotated.rotation import rotation_of

REACH = (
    *(1.150, 1.863, 2.418, 2.886, 3.297, 3.668, 4.009, 4.325),
    *(4.621, 4.901, 5.167, 5.420, 5.663, 5.896, 6.121),
)
"""T(h), for h of 1, 2, … bits: what 4**-1, 4**-2, … of normally distributed values exceed."""

_BF16_ONE = 0x3F80
"""The code of 1."""


def sums_of_squares(values: Array) -> NDArray[np.float64]:
    """(k,): of rows (k, width) of float32; not finite where a value isn't."""
    with np.errstate(invalid="ignore", over="ignore"):
        return row_sums(values, np.square)


def codes_of_rms(mean_squares: NDArray[np.float64]) -> Codes:
    """Codes of their roots, each the upper half of a float32, rounded up; GREATEST_CODE where one isn't finite."""
    finite = np.isfinite(mean_squares)
    rms = np.sqrt(np.where(finite, mean_squares, 0)).astype(np.float32)
    codes = np.minimum(rms.view(np.uint32).astype(np.int64) + 0xFFFF >> 16, GREATEST_SCALE)
    return np.where(finite, codes, GREATEST_CODE).astype(np.int32)


class RotatedRows:
    """The `Coding` of a call: that of `inner` codes rotated rows in units of the greatest value that is sent.

    reach: that value, in rms of the row.
    """

    def __init__(self, inner: Coding, shape: CallShape, reach: float) -> None:
        self._inner, self._reach, self._words = inner, reach, shape.words
        self._largest = np.zeros((shape.rows, 1))
        self._blank = np.zeros(shape.rows, bool)

    @property
    def ranks(self) -> int:
        """How many contributions a decoded sum holds; all workers', at first."""
        return self._inner.ranks

    @ranks.setter
    def ranks(self, ranks: int) -> None:
        self._inner.ranks = ranks

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        """See `Coding`."""
        return codes_of_rms(sums_of_squares(values) / values.shape[1])

    def agree(self, first: int, codes: Codes) -> None:
        """Set the agreed codes of rows first, first + 1, …; codes (k,) int32."""
        rows = slice(first, first + len(codes))
        self._blank[rows] = codes >= GREATEST_CODE
        usable = (codes > 0) & ~self._blank[rows]
        scales = np.clip(codes, LEAST_SCALE, GREATEST_SCALE).astype(np.uint32) << np.uint32(16)
        self._largest[rows, 0] = np.where(usable, self._reach * scales.view(np.float32).astype(np.float64), 0)
        self._inner.agree(first, np.where(usable, _BF16_ONE, codes).astype(np.int32))

    def encode(self, values: Array, rows: RowIndex) -> NDArray[np.int32]:
        """Words of these rows. Values beyond the agreed scale are sent as the scale; blank rows become zeros."""
        words = np.empty((len(values), self._words), np.int32)
        rotation = rotation_of(values.shape[1])
        for block, some in _blocks(rows, *values.shape):
            largest = self._largest[some]
            rotated = rotation.rotated(values[block], 1 / np.where(largest > 0, largest, 1))
            rotated[largest[:, 0] == 0] = 0
            words[block] = self._inner.encode(rotated, some)
        return words

    def decode(self, words: Array, rows: RowIndex) -> NDArray[np.float32]:
        """Blank rows become NaN (F4)."""
        parts = []
        for block, some in _blocks(rows, len(words), self._words):
            rotated = self._inner.decode(words[block], some)
            values = rotation_of(rotated.shape[1]).back(rotated, self._largest[some])
            values[self._largest[some, 0] == 0] = 0
            values[self._blank[some]] = np.nan
            parts.append(values)
        return np.concatenate(parts)


def _blocks(rows: RowIndex, count: int, width: int) -> Iterator[tuple[slice, list[int]]]:
    """Rows that are coded together: which of the given ones, and which of the call's."""
    numbers = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows
    block_rows = max(1, BLOCK // width)
    for first in range(0, count, block_rows):
        yield slice(first, first + block_rows), numbers[first : first + block_rows]


class Rotated(Codec):
    """Lanes of so many bits, of rotated rows; one round of agreement."""

    rounds = 1
    lossy = True
    dtypes = (np.dtype(np.float32),)

    def __init__(self, lane_bits: int) -> None:
        self.lanes = Lanes(lane_bits)
        self.name = f"rotated{lane_bits}"

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        return self.lanes.values_per_word(dtype)

    def fault(self, workers: int) -> str:
        return self.lanes.fault(workers).replace("lanes", "rotated")

    def begin(self, shape: CallShape) -> RotatedRows:
        if fault := self.fault(shape.workers):
            raise ValueError(fault)
        return RotatedRows(self.lanes.begin(shape), shape, REACH[self.lanes.half(shape.workers).bit_length() - 1])
