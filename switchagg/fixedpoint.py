"""Floating point <-> integers with one shared power-of-two exponent per chunk: rules F1 to F7 of PROTOCOL.md.

Exponent codes are int32 so that they travel as ordinary values of a chunk with op MAX: a number's code is the smallest
e with |x| < 2**e; ZERO lies below all of them, NONFINITE above. With n workers, L = ceil(log2 n) and a chunk's agreed
exponent e, a float32 becomes rint(x * 2**(31 - L - e)). A float64 becomes the 64-bit integer rint(x * 2**(62 - L - e)),
which travels, as any int64, in three limbs of 25, 25 and 14 bits whose sums can't carry out of int32.

Error bound (F5), before the final rounding to the float type: n * 2**(e + L - 32) for float32, n * 2**(e + L - 63) for
float64. The chunk's largest magnitude is at least 2**(e - 1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.int32]

ZERO = -(1 << 15)
"""Code of a chunk that holds only zeros: below every number's."""

NONFINITE = (1 << 15) - 1
"""Code of a chunk that holds NaN or an infinity: above every number's, so that MAX carries it to everyone (F4)."""

LIMB_BITS = 25
"""64 workers times (2**25 - 1) stays below 2**31."""

LIMBS = 3


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
    """Powers of two that take rows of floats to integers and back, worked out once per agreed group of codes (F2).

    Each row has two factors in either direction, because the whole power can lie outside the float type's range; all
    products but the last are exact, so that a value is rounded once. `plain` is True while no row needs its second
    factor, is blank (agreed to be NONFINITE), or can overflow when it is turned back.
    """

    def __init__(self, rows: int, workers: int, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.integer = np.dtype(np.int32 if dtype == np.float32 else np.int64)
        self.plain = True
        self._bits, self._largest = (31, 126) if dtype == np.float32 else (62, 1022)
        self._bits -= headroom_bits(workers)
        self.up = np.ones((2, rows, 1), dtype)
        self.down = np.ones((2, rows, 1), dtype)
        self.blank = np.zeros(rows, bool)

    def agree(self, first: int, codes: Codes) -> None:
        """Set the agreed codes of rows first, first + 1, …; codes (k,) int32."""
        rows = slice(first, first + len(codes))
        self.blank[rows] = codes >= NONFINITE
        usable = np.where((codes > ZERO) & (codes < NONFINITE), codes, 0)
        shift = np.clip(self._bits - usable, -2 * self._largest, 2 * self._largest)
        one = np.ones((), self.dtype)
        near = np.clip(shift, -self._largest, self._largest)
        for part, power in enumerate((near, shift - near)):
            self.up[part, rows, 0] = np.ldexp(one, power)
            self.down[part, rows, 0] = np.ldexp(one, -power)
        if (near != shift).any() or self.blank[rows].any() or (shift < self._bits - self._largest + 8).any():
            self.plain = False


def quantise(chunks: Floats, scales: Scales, rows: slice | list[int]) -> NDArray[Any]:
    """Integers of (k, E) floats under the scales of those rows: int32 for float32, int64 for float64 (F2).

    A row's own code must not exceed its agreed one. Blank rows become zeros.
    """
    if scales.plain:
        scaled = chunks * scales.up[0, rows]
        return np.rint(scaled, out=scaled).astype(scales.integer)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = chunks * scales.up[0, rows] * scales.up[1, rows]
        np.rint(scaled, out=scaled)
        scaled[scales.blank[rows]] = 0
        return scaled.astype(scales.integer)


def dequantise(sums: NDArray[Any], scales: Scales, rows: slice | list[int]) -> Floats:
    """Floats of (k, E) integer sums: float32 of int32, float64 of int64 (F2); blank rows become NaN (F4)."""
    values: Floats = sums.astype(scales.dtype)
    if scales.plain:
        values *= scales.down[0, rows]
        return values
    with np.errstate(over="ignore"):
        values *= scales.down[0, rows]
        values *= scales.down[1, rows]
    values[scales.blank[rows]] = np.nan
    return values


def to_limbs(values: NDArray[np.int64], elements: int) -> NDArray[np.int32]:
    """(k, elements) int32 that carry (k, elements // 3) int64: low limbs first, then middle, high, then zeros (F6)."""
    count, width = values.shape
    bits = values.view(np.uint64)
    limbs = np.zeros((count, elements), np.int32)
    mask = np.uint64((1 << LIMB_BITS) - 1)
    for limb in range(LIMBS):
        part = (bits >> np.uint64(limb * LIMB_BITS)) & mask
        limbs[:, limb * width : (limb + 1) * width] = part.astype(np.int32)
    return limbs


def from_limbs(sums: NDArray[np.int32]) -> NDArray[np.int64]:
    """(k, elements // 3) int64 of summed limbs, exact modulo 2**64 (F6)."""
    width = sums.shape[1] // LIMBS
    parts = sums.view(np.uint32).astype(np.uint64)
    total = np.zeros((sums.shape[0], width), np.uint64)
    for limb in range(LIMBS):
        total += parts[:, limb * width : (limb + 1) * width] << np.uint64(limb * LIMB_BITS)
    return total.view(np.int64)
