"""Floats in fixed point under an exponent that the codec's name says: rule F22.

No rank tells another anything about its values before they travel, so nothing of them shows where they are masked
(X4), and a call needs no scale chunks. A row with a value that isn't below 2**exponent, or isn't finite, comes back as
NaN on all ranks: the last word of a row counts the ranks that have such a value in it.
"""

from typing import Any

import numpy as np

from switchagg.codecs.codec import Array, CallShape, RowIndex
from switchagg.codecs.fixed_point import FixedPoint, Floats, Scales, exponents

EXPONENTS = (0, 4, 8, 16)


class Constant(FixedPoint):
    """float32 and float64 of magnitudes below 2**exponent."""

    rounds = 0

    def __init__(self, exponent: int) -> None:
        self.name, self._exponent = f"constant{exponent}", exponent

    def row_values(self, dtype: "np.dtype[Any]", words: int) -> int:
        return words - 1

    def begin(self, shape: CallShape) -> Scales:
        return _ConstantScales(shape, self._exponent)


class _ConstantScales(Scales):
    """The `Coding` of a call."""

    def __init__(self, shape: CallShape, exponent: int) -> None:
        super().__init__(shape)
        self._exponent = exponent
        self.agree(0, np.full(shape.rows, exponent, np.int32))

    def encode(self, values: Floats, rows: RowIndex) -> Array:
        words = np.zeros((len(values), values.shape[1] + 1), self.integer)
        unfit = exponents(values) > self._exponent
        words[:, :-1] = super().encode(np.where(unfit[:, np.newaxis], 0, values).astype(self.dtype), rows)
        words[:, -1] = unfit
        return words

    def decode(self, words: Array, rows: RowIndex) -> Floats:
        values = super().decode(words[:, :-1], rows)
        values[words[:, -1] != 0] = np.nan
        return values
