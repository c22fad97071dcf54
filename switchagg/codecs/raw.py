"""Bytes that a switch only stores, as they are and in their order (W14). It can't carry sums, so no option names it."""

import numpy as np

from switchagg.codecs.codec import Array, CallShape, Codec, RowIndex
from switchagg.codecs.plain import Unchanged


class Raw(Codec):
    """uint8, four in a word."""

    name = "raw"
    adds = False
    rounds = 0
    dtypes = (np.dtype(np.uint8),)

    def word(self, dtype: "np.dtype[np.generic]") -> "np.dtype[np.generic]":
        return np.dtype(np.int32)

    def values_per_word(self, dtype: "np.dtype[np.generic]") -> int:
        return 4

    def begin(self, shape: CallShape) -> "_Bytes":
        return _Bytes(shape.workers)


class _Bytes(Unchanged):
    def encode(self, values: Array, rows: RowIndex) -> Array:
        return np.ascontiguousarray(values).view(">i4").astype(np.int32)

    def decode(self, words: Array, rows: RowIndex) -> Array:
        return words.astype(">i4").view(np.uint8)
