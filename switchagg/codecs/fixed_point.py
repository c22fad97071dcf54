"""Floating point <-> integers with one shared power-of-two exponent per chunk: rules F1 to F7.

Exponent codes are int32 so that they travel as ordinary values of a chunk with op MAX: a number's code is the smallest
e with |x| < 2**e; ZERO lies below all of them, NONFINITE above. With n workers, L = ceil(log2 n) and a chunk's agreed
exponent e, a float32 becomes rint(x * 2**(31 - L - e)). A float64 becomes the 64-bit integer rint(x * 2**(62 - L - e)),
which travels, as any int64, in three limbs of 25, 25 and 14 bits whose sums can't carry out of int32.

Error bound (F5), before the final rounding to the float type: n * 2**(e + L - 32) for float32, n * 2**(e + L - 63) for
float64, and twice that with more than 128 workers. The chunk's largest magnitude is at least 2**(e - 1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import GREATEST_CODE, LEAST_CODE, Array, CallShape, Codec, Codes, RowIndex

Floats = NDArray[np.floating[Any]]

ZERO = LEAST_CODE
"""Code of a chunk that holds only zeros: below every number's."""

NONFINITE = GREATEST_CODE
"""Code of a chunk that holds NaN or an infinity: above every number's, so that MAX brings it to every worker (F4)."""


CLOSE_BITS = 7
"""The largest L at which a float32's 24 bits keep it below 2**(31 - L) when it is rounded (F3)."""


def headroom_bits(workers: int) -> int:
    """L: bits kept free so that the sum of `workers` integers can't overflow (F3). 0 for one worker, 6 for 64."""
    return (workers - 1).bit_length()


def exponents(chunks: Floats) -> Codes:
    """Code of each row of (k, E) float32 or float64 values (F1)."""
    if chunks.dtype == np.float32:
        bits = (chunks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1).astype(np.int64)
        mantissa_bits, special, bias = 23, 255, 126
    else:
        bits = (chunks.view(np.uint64) & np.uint64((1 << 63) - 1)).max(axis=1).astype(np.int64)
        mantissa_bits, special, bias = 52, 2047, 1022
    field = bits >> mantissa_bits
    codes: Codes = (field - bias).astype(np.int32)
    for row in np.flatnonzero((field == 0) | (field == special)):
        if field[row] == special:
            codes[row] = NONFINITE
        elif bits[row] == 0:
            codes[row] = ZERO
        else:  # subnormal: the value is bits * 2**(-bias - mantissa_bits), without an implicit leading 1
            codes[row] = int(bits[row]).bit_length() - bias - mantissa_bits
    return codes


class Scales:
    """The `Coding` of a call: powers of two that take rows of floats to integers and back, worked out once per agreed
    group of codes (F2).

    Each row has two factors in either direction, because the whole power can lie outside the float type's range; all
    products but the last are exact, so that a value is rounded once. `plain` is True while no row needs its second
    factor, is blank (agreed to be NONFINITE), or can overflow when it is turned back.
    """

    def __init__(self, shape: CallShape) -> None:
        dtype, rows, self.ranks = shape.dtype, shape.rows, shape.workers
        self.dtype = dtype
        self.integer = np.dtype(np.int32 if dtype == np.float32 else np.int64)
        self.plain = True
        self._bits, self._largest = (31, 126) if dtype == np.float32 else (62, 1022)
        headroom = headroom_bits(shape.workers)
        self._bits -= headroom
        self._most = (1 << self._bits) - 1 if dtype == np.float32 and headroom > CLOSE_BITS else None
        self.up = np.ones((2, rows, 1), dtype)
        self.down = np.ones((2, rows, 1), dtype)
        self.blank = np.zeros(rows, bool)

    def agree(self, first: int, codes: Codes) -> None:
        """Set the agreed codes of rows first, first + 1, …; codes (k,) int32."""
        rows = slice(first, first + len(codes))
        self.blank[rows] = codes >= NONFINITE
        usable = np.where((codes > ZERO) & (codes < NONFINITE), codes, 0)
        shift = np.clip(self._bits - usable, -2 * self._largest, 2 * self._largest)
        unit = np.ones((), self.dtype)
        near = np.clip(shift, -self._largest, self._largest)
        for part, power in enumerate((near, shift - near)):
            self.up[part, rows, 0] = np.ldexp(unit, power)
            self.down[part, rows, 0] = np.ldexp(unit, -power)
        if (near != shift).any() or self.blank[rows].any() or (shift < self._bits - self._largest + 8).any():
            self.plain = False

    def prepare(self, values: Floats, rows: RowIndex) -> Codes:
        """See `Coding`."""
        return exponents(values)

    def encode(self, values: Floats, rows: RowIndex) -> Array:
        """int32 of float32, int64 of float64 (F2). A row's own code must not exceed its agreed one. Blank rows become
        zeros."""
        if self.plain:
            scaled = values * self.up[0, rows]
            return self._bounded(np.rint(scaled, out=scaled).astype(self.integer))
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = values * self.up[0, rows] * self.up[1, rows]
            np.rint(scaled, out=scaled)
            scaled[self.blank[rows]] = 0
            return self._bounded(scaled.astype(self.integer))

    def _bounded(self, words: Array) -> Array:
        return words if self._most is None else np.clip(words, -self._most, self._most, out=words)

    def decode(self, words: Array, rows: RowIndex) -> Floats:
        """float32 of int32, float64 of int64 (F2); blank rows become NaN (F4)."""
        values: Floats = words.astype(self.dtype)
        if self.plain:
            values *= self.down[0, rows]
            return values
        with np.errstate(over="ignore"):
            values *= self.down[0, rows]
            values *= self.down[1, rows]
        values[self.blank[rows]] = np.nan
        return values


class FixedPoint(Codec):
    """float32 and float64, 32 and 64 bits a value; one round of agreement."""

    name = "fixed_point"
    signed_words = True
    rounds = 1
    dtypes = (np.dtype(np.float32), np.dtype(np.float64))

    def begin(self, shape: CallShape) -> Scales:
        return Scales(shape)
