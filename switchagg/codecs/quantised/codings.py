"""The codings of families of lanes: a scale of a row, and the lane of a value under it."""

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import Array, CallShape, Codes, RowIndex
from switchagg.codecs.lanes import GREATEST_SCALE, INFINITE, LEAST_SCALE, MAGNITUDE, LaneScales, row_sums

CLIPPED_AT = 2.5
"""Sigmas: TernGrad's."""

THRESHOLD = 1.5
"""Means of the magnitudes: `twobit`'s."""


def mean(values: Array, greatest: NDArray[np.int64], of: np.ufunc) -> NDArray[np.float64]:
    """(k,): of what `of` makes of those that aren't 0: padding, and what gets no gradient, says nothing of the scale of
    others. 0 if all are, or the row's greatest is. values: (k, width)."""
    finite = np.where(greatest[:, np.newaxis] > 0, values, np.float32(0))
    means: NDArray[np.float64] = row_sums(finite, of) / np.maximum(np.count_nonzero(finite, axis=1), 1)
    return means


def bits_of(scales: NDArray[np.float64], greatest: NDArray[np.int64]) -> NDArray[np.int64]:
    """As float32, at most the row's greatest magnitude."""
    capped = np.minimum(scales, float(np.finfo(np.float32).max)).astype(np.float32)
    return np.minimum(capped.view(np.uint32), greatest)


class Clipped(LaneScales):
    """s is at most 2.5 sigma, of this rank's row; the mean of gradients counts as 0."""

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        return bits_of(CLIPPED_AT * np.sqrt(mean(values, greatest, np.square)), greatest)


class Signs(LaneScales):
    """q is the sign, s the mean magnitude."""

    def __init__(self, shape: CallShape, bits: int, half: int, random: bool) -> None:
        super().__init__(shape, bits, half, random)
        self._thresholds = np.zeros((shape.rows, 1, 1), np.int32)

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        return bits_of(mean(values, greatest, np.abs), greatest)

    def agree(self, first: int, codes: Codes) -> None:
        super().agree(first, codes)
        self._thresholds[first : first + len(codes), 0, 0] = np.where(codes > 0, self._below(codes), MAGNITUDE)

    def _below(self, codes: Codes) -> Codes:
        """(k,) bits: of the largest magnitudes that become 0."""
        return np.zeros_like(codes)

    def _integers(self, values: Array, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        magnitudes = (values.view(np.uint32) & MAGNITUDE).view(np.int32)
        signs = values.view(np.int32) >> np.int32(31) | np.int32(1)
        return np.where(magnitudes > self._thresholds[rows], signs, np.int32(0))


class ThresholdCoding(Signs):
    """A value as large as s, or larger, is sent as s: 1.5 mean magnitudes, but no more than the largest, rounded down,
    so that each row in which a rank has something gives something."""

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        return bits_of(THRESHOLD * mean(values, greatest, np.abs), greatest) >> 16 << 16

    def _below(self, codes: Codes) -> Codes:
        return (np.clip(codes, LEAST_SCALE, GREATEST_SCALE) << 16) - np.int32(1)


class Vote(Signs):
    """Each rank's sign is a vote; all ranks' result is n times the majority's."""

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(greatest > 0, 0x3F800000, 0)

    def _decoded(self, integers: NDArray[np.int32], rows: RowIndex) -> NDArray[np.float32]:
        return (np.sign(integers) * np.int32(self.ranks)).astype(np.float32)


class Halves(LaneScales):
    """Values are rounded to fp16 first; s is a power of two, so that integers are multiples of one, too."""

    def __init__(self, shape: CallShape, bits: int, half: int, random: bool) -> None:
        super().__init__(shape, bits, 1 << half.bit_length() - 1, random)

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        rounded = self.rounded(greatest.astype(np.uint32).view(np.float32)).view(np.uint32).astype(np.int64)
        upwards = np.minimum(rounded + 0x7FFFFF >> 23 << 23, (GREATEST_SCALE & ~127) << 16)
        return np.where(rounded < INFINITE, upwards, INFINITE << 1)

    def _integers(self, values: Array, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        return super()._integers(self.rounded(values), rows)

    @staticmethod
    def rounded(values: Array) -> NDArray[np.float32]:
        """To the nearest number of the type, ties to even."""
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float16).astype(np.float32)


class BrainHalves(Halves):
    """The same with bf16."""

    @staticmethod
    def rounded(values: Array) -> NDArray[np.float32]:
        bits = values.view(np.uint32)
        return (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
