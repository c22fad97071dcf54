"""THC: rotated rows in 16 levels, whose numbers are summed in 8-bit lanes: rule F15.

`thc` has levels at equal distances, 0 … 15, for up to 17 workers. `thc_table` has those of the paper's table for b = 4,
g = 30, p = 1/32, and looks them up at the host: what travels is a level's number of 0 … 30, so sums need no table; for
up to 8 workers. Between two levels a value is rounded at random, with error feedback, too, as published. Other than as
released, a row has a scale of its own.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import GREATEST_CODE, Array, CallShape, Codec, Codes, RowIndex
from switchagg.codecs.rotated.rows import RotatedRows
from switchagg.codecs.rounding import PAIRS, draws

UNIFORM = tuple(range(16))
TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)

REACH = 2.154
"""In rms of the row: what 1 in 32 of normally distributed values exceeds."""

LANES, LANE_BITS = 4, 8

FRACTION = 16
"""Bits of a value that a random number decides on."""


class LevelRows:
    """The `Coding` of rows whose values lie in -1 … 1."""

    def __init__(self, shape: CallShape, levels: tuple[int, ...]) -> None:
        self.ranks = shape.workers
        self._key, self._words, self._most = shape.key, shape.words, levels[-1]
        below = np.searchsorted(levels, np.arange(self._most), side="right") - 1
        self._low = np.array(levels, np.int32)[below]
        self._gap = np.array(levels, np.int32)[below + 1] - self._low
        self._blank = np.zeros(shape.rows, bool)

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        raise TypeError("rows of levels have no codes of their own")

    def agree(self, first: int, codes: Codes) -> None:
        """See `Coding`."""
        self._blank[first : first + len(codes)] = codes >= GREATEST_CODE

    def encode(self, values: Array, rows: RowIndex) -> NDArray[np.int32]:
        """Words of these rows. Values outside the levels are sent as the nearest; blank rows become zeros."""
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.array(rows)
        half, most = np.float32(self._most << FRACTION - 1), np.float32(self._most << FRACTION)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = values.reshape(len(values), LANES, self._words) * half
            scaled += half
        np.fmax(np.fmin(scaled, most, out=scaled), np.float32(0), out=scaled)
        places = np.rint(scaled, out=scaled).astype(np.int32)
        below = np.minimum(places >> FRACTION, self._most - 1)
        low, gap = self._low[below], self._gap[below]
        random_words = draws(
            self._key, numbers.astype(np.uint64)[:, np.newaxis] * np.uint64(PAIRS) + _PAIRS, self._words
        )
        random = np.stack((random_words & np.uint32(0xFFFF), random_words >> np.uint32(FRACTION)), axis=2).reshape(
            places.shape
        )
        up = places - (low << FRACTION) + gap * random.astype(np.int32) >= gap << FRACTION
        levels = (low + np.where(up, gap, 0)).astype(np.uint32)
        words: NDArray[np.uint32] = np.bitwise_or.reduce(levels << _SHIFTS, axis=1)
        words[self._blank[rows]] = 0
        return words.view(np.int32)

    def decode(self, words: Array, rows: RowIndex) -> NDArray[np.float32]:
        """The sum of values."""
        sums = (words.view(np.uint32)[:, np.newaxis] >> _SHIFTS & np.uint32(0xFF)).astype(np.int32)
        values = (2 * sums - self.ranks * self._most).astype(np.float32)
        values *= np.float32(1 / self._most)
        return values.reshape(len(words), -1)


_PAIRS = np.arange(LANES // 2, dtype=np.uint64)
_SHIFTS = (np.arange(LANES, dtype=np.uint32) * np.uint32(LANE_BITS))[:, np.newaxis]


class Thc(Codec):
    """float32 in levels, 4 to a word; one round of agreement. levels: their numbers, from 0."""

    rounds = 1
    lossy = True
    dtypes = (np.dtype(np.float32),)

    def __init__(self, name: str, levels: tuple[int, ...]) -> None:
        self.name, self.levels = name, levels

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        return LANES

    def fault(self, workers: int) -> str:
        most = ((1 << LANE_BITS) - 1) // self.levels[-1]
        return "" if workers <= most else f"codec {self.name} can't sum {workers} workers exactly; at most {most}"

    def begin(self, shape: CallShape) -> RotatedRows:
        if fault := self.fault(shape.workers):
            raise ValueError(fault)
        return RotatedRows(LevelRows(shape, self.levels), shape, REACH)


THC = (Thc("thc", UNIFORM), Thc("thc_table", TABLE))
