"""Values <-> words: rule F20. Groups that are alike in size, span and kind are written together."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import Array
from switchagg.codecs.exact.groups import GROUP, Codes, DigitLanes, Digits, Widths, digits_of, split, type_of, widths_of
from switchagg.codecs.exact.nearest import Rounding, to_nearest

Words = NDArray[np.uint32]
Positions = NDArray[np.int64]

COUNT_BITS = 10
"""Of a special word, for each: how many +inf, -inf, NaN."""


class _Alike(NamedTuple):
    """Groups that are written alike. values: places (k, size) of their values, words: of theirs. least: (k, 1)."""

    values: Positions
    words: Positions
    least: Positions
    span: int
    special: bool


def _alike(widths: Widths) -> Iterator[_Alike]:
    first_word = np.cumsum(widths.words) - widths.words
    kinds = np.stack([widths.sizes, widths.spans, widths.special])
    alike, numbers = np.unique(kinds, axis=1, return_inverse=True)
    for number, (size, span, special) in enumerate(alike.T):
        groups = np.flatnonzero(numbers.reshape(-1) == number)[:, np.newaxis]
        words = first_word[groups] + np.arange(widths.words[groups[0, 0]])
        yield _Alike(groups * GROUP + np.arange(size), words, widths.least[groups], int(span), bool(special))


def to_words(values: Array, codes: Codes, workers: int) -> NDArray[np.int32]:
    """This rank's words of an array. codes: agreed."""
    widths = widths_of(codes, len(values), workers, type_of(values.dtype))
    words = np.zeros(widths.words.sum(), np.uint32)
    for groups in _alike(widths):
        some = values[groups.values]
        parts = _cut(some, groups, digits_of(groups.span, workers)) + ([_specials(some)] if groups.special else [])
        words[groups.words] = np.concatenate(parts, axis=1) if parts else 0
    return words.view(np.int32)


def from_words(words: NDArray[np.int32], codes: Codes, values: Array, workers: int, rounding: Rounding) -> None:
    """Write the rounded sums to `values`. words: summed; more may follow."""
    widths = widths_of(codes, len(values), workers, type_of(values.dtype))
    for groups in _alike(widths):
        digits, size = digits_of(groups.span, workers), groups.values.shape[1]
        sums = words.view(np.uint32)[groups.words]
        integers = _integers(sums, size, groups.span, digits, workers)
        results = to_nearest(integers, groups.least, digits.bits, rounding)
        values[groups.values] = _with_specials(results, sums[:, -size:]) if groups.special else results


def _cut(values: Array, groups: _Alike, digits: Digits) -> list[Words]:
    """Full words, then lanes, of x * 2**-least + 2**span."""
    magnitude, exponent = split(values)
    shift, sign = exponent - groups.least, np.where(np.signbit(values), -1, 1)
    mask, carry, parts = (1 << digits.bits) - 1, np.zeros(values.shape, np.int64), []
    for number in range(digits.total):
        at = number * digits.bits - shift
        window = magnitude >> np.clip(at, 0, 63).astype(np.uint64) << np.clip(-at, 0, 63).astype(np.uint64)
        carry += sign * (window & np.uint64(mask)).astype(np.int64) + digits.bias(number, groups.span)
        parts.append((carry & mask).astype(np.uint32))
        carry >>= digits.bits
    rest = parts.pop() if digits.lanes else np.zeros(0, np.uint32)
    for lanes in digits.lanes:
        parts.append(_to_lanes(rest & np.uint32((1 << lanes.bits) - 1), lanes))
        rest = rest >> np.uint32(lanes.bits)
    return parts


def _integers(sums: Words, size: int, span: int, digits: Digits, workers: int) -> NDArray[np.int64]:
    """Summed integers, without bias, (k, size) in digits, the lowest first; the last one has the sign."""
    parts = [sums[:, number * size : (number + 1) * size].astype(np.int64) for number in range(digits.full)]
    first, shift, rest = digits.full * size, 0, np.zeros((len(sums), size), np.int64)
    for lanes in digits.lanes:
        end = first + lanes.words(size)
        rest += _from_lanes(sums[:, first:end], size, lanes).astype(np.int64) << shift
        first, shift = end, shift + lanes.bits
    parts += [rest] * bool(digits.lanes)
    carry, integers = np.zeros((len(sums), size), np.int64), []
    for number, part in enumerate(parts):
        carry += part - workers * digits.bias(number, span)
        integers.append(carry & (1 << digits.bits) - 1)
        carry >>= digits.bits
    return np.stack([*integers, carry])


def _to_lanes(digit: Words, lanes: DigitLanes) -> Words:
    """Value i in word i mod H, lane i // H, of H words."""
    count, size = digit.shape
    words = lanes.words(size)
    padded = np.zeros((count, lanes.per_word * words), np.uint32)
    padded[:, :size] = digit
    columns = padded.reshape(count, lanes.per_word, words) << _shifts(lanes)
    words_of: Words = np.bitwise_or.reduce(columns, axis=1)
    return words_of


def _from_lanes(words: Words, size: int, lanes: DigitLanes) -> Words:
    columns: Words = np.right_shift(words[:, np.newaxis], _shifts(lanes))
    columns &= np.uint32((1 << lanes.width) - 1)
    return columns.reshape(len(words), -1)[:, :size]


def _shifts(lanes: DigitLanes) -> Words:
    return np.arange(lanes.per_word, dtype=np.uint32)[:, np.newaxis] * np.uint32(lanes.width)


def _specials(values: Array) -> Words:
    kinds = np.stack([values == np.inf, values == -np.inf, np.isnan(values)]).astype(np.uint32)
    positive, negative, none = kinds
    counts: Words = positive | negative << np.uint32(COUNT_BITS) | none << np.uint32(2 * COUNT_BITS)
    return counts


def _with_specials(values: Array, counts: Words) -> Array:
    positive, negative, none = (
        counts >> np.uint32(COUNT_BITS * k) & np.uint32((1 << COUNT_BITS) - 1) for k in range(3)
    )
    values = np.where(positive > 0, np.inf, np.where(negative > 0, -np.inf, values))
    values[(none > 0) | (positive > 0) & (negative > 0)] = np.nan
    return values
