"""float32 <-> biased integers of 16 bits and fewer, several in a word: rules F9 and F10. Families that
differ in the scale of a row, or in what becomes of a value (F11 to F13), are subclasses: quantised/.

A word of 32 bits has k = 32 // w lanes of w bits. With n workers a lane holds 0 … 2h, h = (2**w - 1) // n // 2: then no
sum of n lanes carries into the next one, and words are summed as they are by whatever sums int32. A row has a scale s,
at least the largest magnitude that any worker has in it: the upper half of a float32, rounded up. A value x travels as
q + h, q = x * h / s rounded: to the nearest integer in lanes of 16 bits, at random in narrower ones, so that the mean
of many roundings is the value.

Error bound: a result is off by at most n * s / h, half of that where rounding is to the nearest, and by the rounding of
float32. s exceeds the row's largest magnitude by less than 1 %, but is at least 2**-100.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import GREATEST_CODE, Array, CallShape, Codec, Codes, RowIndex
from switchagg.codecs.rounding import PAIRS, draws

WIDTHS = (16, 10, 8, 6, 5, 4)

LEAST_SCALE = 27 << 7
"""2**-100, as the upper half of a float32: no factor is subnormal because of it."""

GREATEST_SCALE = 0x7F7F
"""The largest finite one."""

NEAREST_BITS = 16
"""Lanes of so many bits are rounded to the nearest."""

FRACTION = 16
"""Bits of a value that a random number decides on."""

MAGNITUDE = np.uint32(0x7FFFFFFF)
"""Bits of a float32 without its sign."""

INFINITE = 0x7F800000
"""An infinity, as bits; of NaN there are more."""

BLOCK = 1 << 16
"""Values that are encoded together: what the dozen steps between need stays in a processor's cache."""

PARTIAL_SUMS = 16
"""Value i of a row is added to sum i mod 16: an order that NumPy and vectors of any width have in common."""


def row_sums(values: Array, of: np.ufunc) -> NDArray[np.float64]:
    """(k,): of rows (k, width) of float32. of: `np.abs` or `np.square`, in float64."""
    rows, width = values.shape
    sums, step = np.empty((rows, PARTIAL_SUMS)), max(1, BLOCK // width)
    for first in range(0, rows, step):
        terms = of(values[first : first + step], dtype=np.float64)
        if width % PARTIAL_SUMS:
            terms = np.pad(terms, ((0, 0), (0, -width % PARTIAL_SUMS)))
        np.einsum("kij->kj", terms.reshape(len(terms), -1, PARTIAL_SUMS), out=sums[first : first + step])
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    totals: NDArray[np.float64] = sums[:, 0]
    return totals


class LaneScales:
    """The `Coding` of a call."""

    def __init__(self, shape: CallShape, bits: int, half: int, random: bool) -> None:
        self.ranks = shape.workers
        self._key, self._words, self._bits, self._half, self._random = shape.key, shape.words, bits, half, random
        self._limit = half << FRACTION if self._random else half
        self._up = np.zeros((shape.rows, 1, 1), np.float32)
        self._down = np.zeros((shape.rows, 1, 1), np.float32)
        self._blank = np.zeros(shape.rows, bool)

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        """See `Coding`."""
        return np.concatenate([self._codes(values[block]) for block in _blocks(values)])

    def _codes(self, values: Array) -> Codes:
        greatest = (values.view(np.uint32) & MAGNITUDE).max(axis=1).astype(np.int64)
        scales = self._scales(values, np.where(greatest < INFINITE, greatest, 0))
        codes = np.minimum(scales + 0xFFFF >> 16, GREATEST_SCALE)
        return np.where(np.maximum(greatest, scales) < INFINITE, codes, GREATEST_CODE).astype(np.int32)

    def _scales(self, values: Array, greatest: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k,): the scale of each row as the bits of a float32, before it is rounded up; INFINITE makes it blank.
        greatest: its largest magnitude as such; 0 for rows that aren't finite, of which nothing counts."""
        return greatest

    def agree(self, first: int, codes: Codes) -> None:
        """Set the agreed codes of rows first, first + 1, …; codes (k,) int32."""
        rows = slice(first, first + len(codes))
        self._blank[rows] = codes >= GREATEST_CODE
        scales = np.clip(codes, LEAST_SCALE, GREATEST_SCALE).astype(np.uint32) << np.uint32(16)
        exact = scales.view(np.float32).astype(np.float64)
        usable = (codes > 0) & ~self._blank[rows]
        self._up[rows, 0, 0] = np.where(usable, self._limit / exact, 0).astype(np.float32)
        self._down[rows, 0, 0] = np.where(usable, exact / self._half, 0).astype(np.float32)

    def encode(self, values: Array, rows: RowIndex) -> NDArray[np.int32]:
        """Words of these rows. Values beyond the agreed scale are sent as the scale; blank rows become zeros."""
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.array(rows)
        words = np.empty((len(values), self._words), np.int32)
        for block in _blocks(values):
            words[block] = self._encoded(values[block], numbers[block])
        return words

    def _encoded(self, values: Array, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        lanes = 32 // self._bits
        integers = self._integers(values.reshape(len(values), lanes, self._words), rows)
        integers += self._half
        words = np.zeros((len(values), self._words), np.uint32)
        for lane in range(lanes):
            words |= integers[:, lane].view(np.uint32) << np.uint32(lane * self._bits)
        words[self._blank[rows]] = 0
        return words.view(np.int32)

    def _integers(self, values: Array, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """(k, lanes, words): q of each value."""
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = values * self._up[rows]
        limit = np.float32(self._limit)
        np.fmin(scaled, limit, out=scaled)
        np.fmax(scaled, -limit, out=scaled)
        integers = np.rint(scaled, out=scaled).astype(np.int32)
        if self._random:
            integers += self._draws(rows, values.shape[1])
            integers >>= FRACTION
        return integers

    def _draws(self, rows: NDArray[np.int64], lanes: int) -> NDArray[np.int32]:
        """(k, lanes, words) of 16 bits: the halves of a number for each pair of lanes."""
        pairs = np.arange(-(-lanes // 2), dtype=np.uint64)
        random_words = draws(self._key, rows.astype(np.uint64)[:, np.newaxis] * np.uint64(PAIRS) + pairs, self._words)
        halves = np.stack((random_words & np.uint32(0xFFFF), random_words >> np.uint32(16)), axis=2)
        return halves.reshape(len(rows), -1, self._words)[:, :lanes].view(np.int32)

    def decode(self, words: Array, rows: RowIndex) -> NDArray[np.float32]:
        """Blank rows become NaN (F4)."""
        shifts = (np.arange(32 // self._bits, dtype=np.uint32) * np.uint32(self._bits))[:, np.newaxis]
        sums = words.view(np.uint32)[:, np.newaxis] >> shifts & np.uint32((1 << self._bits) - 1)
        values = self._decoded(sums.view(np.int32) - np.int32(self.ranks * self._half), rows)
        values[self._blank[rows]] = np.nan
        return values.reshape(len(words), -1)

    def _decoded(self, integers: NDArray[np.int32], rows: RowIndex) -> NDArray[np.float32]:
        """(k, lanes, words): what sums of q stand for."""
        values = integers.astype(np.float32)
        with np.errstate(over="ignore"):
            values *= self._down[rows]
        return values


def _blocks(values: Array) -> Iterator[slice]:
    """Rows that are coded together."""
    block_rows = max(1, BLOCK // values.shape[1])
    return (slice(first, first + block_rows) for first in range(0, len(values), block_rows))


class Lanes(Codec):
    """float32 in lanes of so many bits; one round of agreement.

    Attributes of a family: widths: of lanes, in bits. levels: h; 0: the greatest that so many workers allow. random:
    rounding, unless error feedback keeps what is lost (`CallShape.nearest`); None: in lanes that are narrow.
    """

    family = "lanes"
    widths: tuple[int, ...] = WIDTHS
    levels = 0
    random: bool | None = None
    coding: type[LaneScales] = LaneScales

    rounds = 1
    lossy = True
    dtypes = (np.dtype(np.float32),)

    def __init__(self, lane_bits: int) -> None:
        self.lane_bits = lane_bits
        self.name = f"{self.family}{lane_bits}"

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        return 32 // self.lane_bits

    def half(self, workers: int) -> int:
        """h: a lane of each worker holds 0 … 2h; 0: it can't."""
        most = ((1 << self.lane_bits) - 1) // workers // 2
        return most if not self.levels else self.levels if self.levels <= most else 0

    def fault(self, workers: int) -> str:
        if self.half(workers):
            return ""
        most = ", ".join(
            f"{type(self)(bits).name} {((1 << bits) - 1) // 2 // (self.levels or 1)}" for bits in sorted(self.widths)
        )
        return f"codec {self.name} can't sum {workers} workers exactly; workers at most: {most}"

    def begin(self, shape: CallShape) -> LaneScales:
        if fault := self.fault(shape.workers):
            raise ValueError(fault)
        random = self.lane_bits < NEAREST_BITS if self.random is None else self.random
        return self.coding(shape, self.lane_bits, self.half(shape.workers), random and not shape.nearest)
