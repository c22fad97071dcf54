"""int32 whose sums don't wrap on the wire though those of the values do: rule F18, for verified sums.

With n workers and L = ceil(log2 n) the low 32 - L bits of value i are word i; the L bits above them lie in a lane of 2L
bits of a word behind these. No sum of n words or lanes carries, and the sums recombine modulo 2**32.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import Array, CallShape, Codec, RowIndex
from switchagg.codecs.fixed_point import headroom_bits
from switchagg.codecs.plain import Unchanged


class Split(Codec):
    """int32, for calls whose sums may wrap. `for_workers` gives the codec that rows are cut for."""

    name = "split"
    rounds = 0
    dtypes = (np.dtype(np.int32),)

    def __init__(self, workers: int = 1) -> None:
        self._headroom = headroom_bits(workers)

    def for_workers(self, workers: int) -> Codec:
        return _split_for(workers)

    def row_values(self, dtype: "np.dtype[Any]", words: int) -> int:
        lanes = lanes_of(self._headroom)
        return words * lanes // (lanes + 1) if lanes else words

    def begin(self, shape: CallShape) -> Unchanged:
        return _SplitRows(shape) if shape.workers > 1 else Unchanged(1)


_split_for = lru_cache(maxsize=64)(Split)


def lanes_of(headroom: int) -> int:
    """k: lanes of a word, for so many high bits; 0 for none."""
    return 32 // (2 * headroom) if headroom else 0


class _SplitRows(Unchanged):
    """The `Coding` of more than one worker."""

    def __init__(self, shape: CallShape) -> None:
        super().__init__(shape.workers)
        self._words, high_bits = shape.words, headroom_bits(shape.workers)
        self._low_bits, self._lanes = np.uint32(32 - high_bits), lanes_of(high_bits)
        self._width = shape.words * self._lanes // (self._lanes + 1)
        self._lane_words = -(-self._width // self._lanes)
        self._shifts = (np.arange(self._lanes, dtype=np.uint32) * np.uint32(2 * high_bits))[:, np.newaxis]
        self._mask = np.uint32((1 << 2 * high_bits) - 1)

    def encode(self, values: Array, rows: RowIndex) -> NDArray[np.int32]:
        """Words (k, words): low bits, lanes of high bits, zeros."""
        bits = values.view(np.uint32)
        highs = np.zeros((len(bits), self._lanes * self._lane_words), np.uint32)
        highs[:, : self._width] = bits >> self._low_bits
        words = np.zeros((len(bits), self._words), np.uint32)
        words[:, : self._width] = bits & np.uint32((1 << int(self._low_bits)) - 1)
        lanes = highs.reshape(len(bits), self._lanes, self._lane_words) << self._shifts
        words[:, self._width : self._width + self._lane_words] = lanes.sum(axis=1, dtype=np.uint32)
        return words.view(np.int32)

    def decode(self, words: Array, rows: RowIndex) -> NDArray[np.int32]:
        """Sums of the values modulo 2**32."""
        bits = words.view(np.uint32)
        lane_words = bits[:, np.newaxis, self._width : self._width + self._lane_words]
        highs = (lane_words >> self._shifts & self._mask).reshape(len(bits), -1)[:, : self._width]
        sums: NDArray[np.uint32] = bits[:, : self._width] + (highs << self._low_bits)
        return sums.view(np.int32)
