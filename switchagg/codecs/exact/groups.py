"""Groups of values that are as many bits wide as their own values need: rules F19 and F20."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import LEAST_CODE, Array
from switchagg.codecs.fixed_point import headroom_bits

GROUP = 64
"""Values of a group; the last one of an array may have fewer."""

SPECIAL = 1 << 12
"""The upper code of a group that has a NaN or an infinity."""

WORD_BITS = 32

THIRD = WORD_BITS // 3
"""A lane as wide lets a word have three. Digits too wide for half a word have a lower part there, if the upper part's
lanes are no wider: then both take less than a word."""

WORKERS_MOST = 1023
"""Most ranks in a sum: a special word counts them in 10 bits."""

Integers = NDArray[np.int64]
Codes = NDArray[np.int32]
"""(2, groups): the upper codes, then the lower ones."""


class FloatType(NamedTuple):
    """Finite numbers of a type: multiples of 2**least, below 2**greatest, of so many significant bits."""

    precision: int
    least: int
    greatest: int


TYPES = {
    "float32": FloatType(24, -149, 128),
    "float64": FloatType(53, -1074, 1024),
    "bfloat16": FloatType(8, -133, 128),
    "float16": FloatType(11, -24, 16),
}


def type_of(dtype: "np.dtype[Any]") -> FloatType:
    """Of an array's values, as they travel."""
    return TYPES[dtype.name]


def group_count(values: int) -> int:
    """How many groups an array has."""
    return -(-values // GROUP)


def split(values: Array) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """m and e of finite values ±m * 2**e; those of infinities and NaN are 0."""
    kind = type_of(values.dtype)
    unsigned, fraction = f"u{values.itemsize}", kind.precision - 1
    bits = values.view(unsigned).astype(np.uint64)
    field = (bits >> np.uint64(fraction)).astype(np.int32) & ((1 << 8 * values.itemsize - kind.precision) - 1)
    magnitude = bits & np.uint64((1 << fraction) - 1)
    magnitude |= (field > 0).astype(np.uint64) << np.uint64(fraction)
    magnitude[field == (1 << 8 * values.itemsize - kind.precision) - 1] = 0
    return magnitude, np.maximum(field, 1) - 1 + np.int32(kind.least)


def codes_of(values: Array) -> Codes:
    """This rank's codes of the groups of an array (F19)."""
    end = len(values) // GROUP * GROUP
    parts = [values[:end].reshape(-1, GROUP), values[end:].reshape(1, -1)]
    return np.concatenate([_codes(part) for part in parts if part.size], axis=1) if len(values) else _codes(parts[0])


def _codes(groups: Array) -> Codes:
    magnitude, exponent = split(groups)
    lowest = np.frexp((magnitude & -magnitude.view(np.int64).view(np.uint64)).astype(np.float64))[1] - 1 + exponent
    highest = np.frexp(magnitude.astype(np.float64))[1] + exponent
    zero, codes = magnitude == 0, np.empty((2, len(groups)), np.int32)
    codes[0] = np.where(zero, LEAST_CODE, highest).max(axis=1, initial=LEAST_CODE)
    codes[1] = np.where(zero, LEAST_CODE, -lowest).max(axis=1, initial=LEAST_CODE)
    codes[0, ~np.isfinite(groups).all(axis=1)] = SPECIAL
    return codes


class Widths(NamedTuple):
    """How the groups of an array travel, by agreed codes; an entry for each group.

    sizes: values. spans: S; least: the exponent of the least bit; special: whether special words follow. words: how
    many it has.
    """

    sizes: Integers
    spans: Integers
    least: Integers
    special: NDArray[np.bool_]
    words: Integers


class DigitLanes(NamedTuple):
    """A digit of so many bits that stands in lanes of `width` bits, so many to a word."""

    bits: int
    width: int
    per_word: int

    def words(self, values: int) -> int:
        """H: words of so many values."""
        return -(-values // self.per_word)


class Digits(NamedTuple):
    """How a biased integer of S + 1 bits is cut: the lowest bits in `full` words of `bits` bits, the rest in lanes, of
    which the first have the lower bits (F20)."""

    bits: int
    full: int
    lanes: tuple[DigitLanes, ...]

    @property
    def total(self) -> int:
        """How many digits a value has, those in lanes taken as one."""
        return self.full + bool(self.lanes)

    def words(self, values: int) -> int:
        """Words of so many values."""
        return self.full * values + sum(lanes.words(values) for lanes in self.lanes)

    def bias(self, number: int, span: int) -> int:
        """What 2**span has in a digit."""
        return 1 << span % self.bits if number == span // self.bits else 0


@lru_cache(maxsize=4096)
def digits_of(span: int, workers: int) -> Digits:
    """For a group of this span; 0: of zeros alone."""
    headroom = headroom_bits(workers)
    bits = WORD_BITS - headroom
    full, rest = divmod(span + (span > 0), bits)
    half = WORD_BITS // 2 - headroom
    lower = half if half < rest <= half + THIRD - headroom else 0
    widths = [part for part in (lower, rest - lower) if part]
    lanes = (DigitLanes(part, part + headroom, WORD_BITS // (part + headroom)) for part in widths)
    return Digits(bits, full, tuple(lanes))


def widths_of(codes: Codes, values: int, workers: int, kind: FloatType) -> Widths:
    """codes: agreed. What no ranks of ours could agree on counts as the nearest that they could."""
    upper, lower = codes.astype(np.int64)
    special = upper >= SPECIAL
    upper = np.minimum(np.where(special, kind.greatest, upper), kind.greatest)
    least = np.clip(-lower, kind.least, kind.greatest - 1)
    zero = (upper <= kind.least) | (lower == LEAST_CODE)
    spans = np.where(zero, 0, np.clip(upper - least, 1, kind.greatest - kind.least))
    sizes = np.full(len(spans), GROUP)
    some, numbers = np.unique(spans, return_inverse=True)
    cuts = [digits_of(int(span), workers) for span in some]
    words = np.array([cut.words(GROUP) for cut in cuts], np.int64)[numbers.reshape(-1)]
    if values % GROUP:
        sizes[-1] = values % GROUP
        words[-1] = digits_of(int(spans[-1]), workers).words(values % GROUP)
    return Widths(sizes, spans, least, special, words + special * sizes)
