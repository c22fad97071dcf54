"""Integers in digits -> floats, rounded once to the nearest, ties to even: rule F21."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.exact.groups import FloatType

Digits = NDArray[np.int64]
"""(digits, k, size): the lowest first, each but the last one of so many bits, not negative."""


class Rounding(NamedTuple):
    """target: the type that results have. divisor: of sums, 1 or the number of ranks."""

    target: FloatType
    divisor: int = 1


def to_nearest(digits: Digits, least: NDArray[np.int64], bits: int, rounding: Rounding) -> NDArray[np.float64]:
    """(k, size): digits * 2**least / divisor, as float64 that the target type holds."""
    negative = digits[-1] < 0
    head, at, tail = _head(_magnitude(digits, negative, bits), bits)
    if rounding.divisor > 1:
        head, remainder = np.divmod(head, np.uint64(rounding.divisor))
        tail |= remainder > 0
    lowest = least + at
    length = np.frexp((head >> np.uint64(11)).astype(np.float64))[1] + 11  # no head but 0 is below 2**53
    target = rounding.target
    unit = np.maximum(lowest + length - target.precision, target.least)
    drop = unit - lowest
    far = drop > 64  # less than half a unit
    tail |= far & (head > 0)
    head, drop = np.where(far, np.uint64(0), head), np.clip(drop, 1, 64).astype(np.uint64)
    quotient = head >> (drop - np.uint64(1)) >> np.uint64(1)
    half = head >> (drop - np.uint64(1)) & np.uint64(1)
    below = (head & ((np.uint64(1) << (drop - np.uint64(1))) - np.uint64(1))) > 0
    quotient += half & (below | tail | (quotient & np.uint64(1) > 0))
    with np.errstate(over="ignore"):
        values: NDArray[np.float64] = np.ldexp(quotient.astype(np.float64), unit.astype(np.int32))
        values[values >= np.ldexp(1.0, target.greatest)] = np.inf
    return np.where(negative, -values, values)


def _magnitude(digits: Digits, negative: NDArray[np.bool_], bits: int) -> NDArray[np.uint64]:
    magnitude, carry = np.empty(digits.shape, np.uint64), np.zeros(digits.shape[1:], np.int64)
    for number, digit in enumerate(digits):
        carry += np.where(negative, -digit, digit)
        is_last = number == len(digits) - 1
        magnitude[number] = carry if is_last else carry & (1 << bits) - 1
        carry >>= bits
    return magnitude


def _head(magnitude: NDArray[np.uint64], bits: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
    """The highest 64 bits from the first that is set, the exponent of their lowest, and whether any bit below is set.
    Four digits have them, as they have 22 bits or more."""
    padded = np.concatenate([np.zeros((3, *magnitude.shape[1:]), np.uint64), magnitude])
    top = len(padded) - 1 - np.argmax((padded[::-1] > 0), axis=0)
    top = np.maximum(top, 3)
    below = np.logical_or.accumulate(padded > 0, axis=0)

    def digit(number: int) -> NDArray[np.uint64]:
        places: NDArray[np.int64] = top[np.newaxis] - number
        digits: NDArray[np.uint64] = np.take_along_axis(padded, places, axis=0)[0]
        return digits

    head, room = np.zeros(top.shape, np.uint64), 64 - np.frexp(digit(0).astype(np.float64))[1]
    at = bits * (top - 3) - room
    tail = (top > 3) & np.take_along_axis(below, np.maximum(top - 4, 0)[np.newaxis], axis=0)[0]
    for number in range(4):
        up = room - bits * number
        part, down = digit(number), np.clip(-up, 0, 63).astype(np.uint64)
        head |= part << np.clip(up, 0, 63).astype(np.uint64) >> down
        tail |= part & ((np.uint64(1) << down) - np.uint64(1)) > 0
    return head, at, tail
