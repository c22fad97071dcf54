"""A random rotation of a row of any length, by rule F14: signs that look random, then butterflies.

Any vector becomes one whose values are about normally distributed: one scale serves them all, and their mean square,
which a rotation keeps, says what it is. The signs are fixed, the same in all rows, calls and ranks: nothing has to be
agreed, and a row that is sent again has the same bits. NumPy, in the order of the compiled core, so with its bits.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.rounding import hashes

Floats = NDArray[np.float32]
Factors = NDArray[np.float64]
"""(k, 1), one for each row."""

LARGEST = float(np.finfo(np.float32).max)

GROUP = 32
"""Values whose signs are the bits of one hash."""

SECOND = 1 << 16
"""The first number whose hash is of signs between the two transforms: without them one would half undo the other."""


class Rotation:
    """The rotation of rows of `width` values.

    A power of two is rotated by one Hadamard transform. Other widths are `rows` of `inner` values, `inner` the largest
    power of two that divides them: each is transformed; then columns are, in two overlapping halves, the first `outer`
    rows and the last ones, `outer` the largest power of two within.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        inner = width & -width
        outer = 1 << (width // inner).bit_length() - 1
        self._inner, self._outer = inner, outer * inner
        self._factor = 1 / np.sqrt(np.float64(inner * outer))
        self._within = np.float32(1 / np.sqrt(np.float64(outer)))
        self._overlap = slice(width - self._outer, self._outer)
        self._signs, self._second = _signs(1, width), _signs(SECOND, max(0, 2 * self._outer - width))

    def rotated(self, values: Floats, factors: Factors) -> Floats:
        """(k, width): rotated factor * values."""
        with np.errstate(invalid="ignore", over="ignore"):
            rows = _flipped(values, self._signs, _single(factors * self._factor))
            _mix(rows, 1, self._inner)
            _mix(rows[:, : self._outer], self._inner, self._outer)
            if self._outer < self.width:
                rows[:, self._overlap] = _flipped(rows[:, self._overlap], self._second, self._within)
                _mix(rows[:, self._overlap.start :], self._inner, self._outer)
        return rows

    def back(self, rows: Floats, factors: Factors) -> Floats:
        """(k, width): factor * what rotates to `rows`, which are overwritten."""
        with np.errstate(invalid="ignore", over="ignore"):
            if self._outer < self.width:
                _mix(rows[:, self._overlap.start :], self._inner, self._outer)
                rows[:, self._overlap] = _flipped(rows[:, self._overlap], self._second, self._within)
            _mix(rows[:, : self._outer], self._inner, self._outer)
            _mix(rows, 1, self._inner)
            return _flipped(rows, self._signs, _single(factors * self._factor))


def _single(factors: Factors) -> Floats:
    return np.minimum(factors, LARGEST).astype(np.float32)


def _signs(first: int, count: int) -> NDArray[np.uint32]:
    """Sign bits of so many values: those of the hashes of first, first + 1, …, from the lowest bit on."""
    bits = hashes(np.arange(first, first - (-count // GROUP), dtype=np.uint32))[:, np.newaxis]
    signs: NDArray[np.uint32] = bits >> np.arange(GROUP, dtype=np.uint32) << np.uint32(31)
    return signs.reshape(-1)[:count]


def _flipped(values: Floats, signs: NDArray[np.uint32], factors: Floats | np.float32) -> Floats:
    flipped: Floats = (values.view(np.uint32) ^ signs).view(np.float32)
    flipped *= factors
    return flipped


def _mix(rows: Floats, apart: int, end: int) -> None:
    """a, b -> a + b, a - b of values that lie `apart`, then twice as far, …, to below `end`; in place."""
    while apart < end:
        for first in range(0, rows.shape[1], 2 * apart) if apart >= GROUP else range(0):
            a, b = rows[:, first : first + apart], rows[:, first + apart : first + 2 * apart]
            sums = a + b
            np.subtract(a, b, out=b)
            a[:] = sums
        if apart < GROUP:  # many short runs: as strides
            for offset in range(apart):
                a, b = rows[:, offset :: 2 * apart], rows[:, offset + apart :: 2 * apart]
                sums = a + b
                np.subtract(a, b, out=b)
                a[:] = sums
        apart *= 2


@lru_cache(maxsize=64)
def rotation_of(width: int) -> Rotation:
    """The rotation of rows of so many values."""
    return Rotation(width)
