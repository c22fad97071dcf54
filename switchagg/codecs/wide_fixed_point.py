"""float32 <-> fixed-point numbers of two int32 words, for calls of a few chunks: rule F8.

A code here is one of F1 rounded up to a multiple of 16, so that it is hardly ever another one in the next call of the
same kind, and can be predicted. The second word pays for that. With n workers, L = ceil(log2 n) and k = 31 - L, a value
under code c becomes q = rint(x * 2**(2k - c)), an integer of 2k bits and a sign, which travels as a high word
q >> k and a low word of the k bits below.

No overflow: x has 24 significand bits, so |q| <= 2**2k - 2**(2k - 24), and -2**k <= high < 2**k. As n <= 2**L, high
words sum to at least -2**31 and less than 2**31, low words to at most n * (2**k - 1) < 2**31.

Error bound: each q is off by at most 1/2, so a result, before its final rounding, by at most n * 2**(c - 2k - 1). The
row's largest magnitude is at least 2**(c - 16), so it has at least 2k - 15 bits, 41 with 8 workers and 35 with 64; a
float32 has 24.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import Array, CallShape, Codec, Codes, RowIndex
from switchagg.codecs.fixed_point import NONFINITE, ZERO, exponents, headroom_bits

STEP = 16
"""Codes are multiples of it, but for ZERO and NONFINITE."""


def coarse(codes: Codes) -> Codes:
    """Codes of F1, rounded up."""
    return np.where((codes > ZERO) & (codes < NONFINITE), -(-codes // STEP) * STEP, codes).astype(np.int32)


def low_bits(workers: int) -> int:
    """k: bits of a low word."""
    return 31 - headroom_bits(workers)


def to_words(integers: NDArray[np.int64], elements: int, workers: int) -> NDArray[np.int32]:
    """(k, elements) int32 that carry (k, elements // 2) int64: high words first, then low ones, then zeros."""
    count, width = integers.shape
    bits = low_bits(workers)
    words = np.zeros((count, elements), np.int32)
    words[:, :width] = integers >> bits
    words[:, width : 2 * width] = integers & ((1 << bits) - 1)
    return words


def from_words(sums: NDArray[np.int32], workers: int) -> NDArray[np.int64]:
    """(k, elements // 2) int64 of summed words."""
    width = sums.shape[1] // 2
    high = sums[:, :width].astype(np.int64)
    return (high << low_bits(workers)) + sums[:, width : 2 * width]


class WideScales:
    """The `Coding` of a call. All products are exact: float64 holds any float32 times any of the powers."""

    def __init__(self, shape: CallShape) -> None:
        self.ranks = shape.workers
        self._bits = 2 * low_bits(shape.workers)
        self._blank = np.zeros(shape.rows, bool)
        self._exponent = np.zeros((shape.rows, 1), np.int32)

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        """See `Coding`."""
        return coarse(exponents(values))

    def agree(self, first: int, codes: Codes) -> None:
        """Set the agreed codes of rows first, first + 1, …; codes (k,) int32."""
        rows = slice(first, first + len(codes))
        self._blank[rows] = codes >= NONFINITE
        # beyond what F1 gives lies only what broken workers send
        self._exponent[rows, 0] = np.clip(np.where((codes > ZERO) & (codes < NONFINITE), codes, 0), -144, 128)

    def encode(self, values: Array, rows: RowIndex) -> NDArray[np.int64]:
        """A row's own code must not exceed its agreed one: what would overflow becomes zero, as blank rows do."""
        with np.errstate(invalid="ignore"):
            scaled = np.rint(values * np.ldexp(1.0, self._bits - self._exponent[rows]))
            usable = (np.abs(scaled) < 2.0**self._bits) & ~self._blank[rows, np.newaxis]
        return np.where(usable, scaled, 0).astype(np.int64)

    def decode(self, words: Array, rows: RowIndex) -> NDArray[np.float32]:
        """Blank rows become NaN (F4)."""
        with np.errstate(over="ignore"):
            values = (words.astype(np.float64) * np.ldexp(1.0, self._exponent[rows] - self._bits)).astype(np.float32)
        values[self._blank[rows]] = np.nan
        return values


class WideFixedPoint(Codec):
    """float32 in two words a value, in calls so small that their codes are predicted (F8)."""

    name = "wide_fixed_point"
    signed_words = True
    rounds = 1
    dtypes = (np.dtype(np.float32),)

    def word(self, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
        return np.dtype(np.int64)

    def begin(self, shape: CallShape) -> WideScales:
        return WideScales(shape)
