"""The greatest values of an array: exact, by magnitude, NaN above all; of equal ones the first.

A sample's quantile leaves few candidates, of which the greatest are found exactly: what is chosen doesn't depend on the
sample, only the time does.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import Tensors
from switchagg.codecs.codec import Array

_SAMPLE = 1 << 16
"""Values at least; fewer are all looked at."""


def spans(tensors: Tensors) -> Iterator[slice]:
    """Where each tensor lies in its array."""
    low = 0
    for tensor in tensors:
        high = low + math.prod(tensor.shape)
        yield slice(low, high)
        low = high


def chosen_count(values: int, ratio: float) -> int:
    """How many values of a tensor are sent: one at least."""
    return min(values, max(1, round(ratio * values)))


def magnitudes(values: Array) -> NDArray[np.uint32]:
    """Magnitudes of float32 as integers in the same order; those of NaN are the greatest."""
    magnitudes: NDArray[np.uint32] = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return magnitudes


def greatest(values: Array, count: int) -> NDArray[np.intp]:
    """The positions of so many of the greatest, ascending."""
    size = len(values)
    if count >= size:
        return np.arange(size)
    of = magnitudes(values)
    near: NDArray[np.intp] = np.flatnonzero(of >= quantile(of, count, surely=True))
    if len(near) < count:
        near = np.arange(size)
    of = of[near]
    last = np.partition(of, len(of) - count)[len(of) - count]
    chosen = of > last
    chosen[np.flatnonzero(of == last)[: count - np.count_nonzero(chosen)]] = True
    positions: NDArray[np.intp] = near[chosen]
    return positions


def quantile(of: NDArray[np.uint32], count: int, *, surely: bool = False) -> np.uint32:
    """A bound that about `count` values reach, by a sample of every so many; surely: hardly ever fewer."""
    step = len(of) // _SAMPLE | 1  # odd: rows of weights have even lengths
    sample = of[::step]
    hits = count / len(of) * len(sample)
    if surely:
        hits += 4 * math.sqrt(hits) + 4
    place = len(sample) - math.ceil(hits)
    if place <= 0:
        return np.uint32(0)
    return np.uint32(np.partition(sample, place)[place])
