"""An array as blocks of which some travel, the codec that carries their sums, and values that aren't finite.

A NaN or an infinity on any rank makes the results of every rank NaN, all of them (as F4 does with a row), and what is
finite remains in the residual: a step that is skipped because of it loses nothing.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import FLOAT32, Array, Codec
from switchagg.codecs.lanes import WIDTHS, Lanes
from switchagg.codecs.rotated.rows import Rotated
from switchagg.option_syntax import one_of, option

_INNER: dict[str, Codec] = {codec.name: codec for codec in (*map(Lanes, WIDTHS), *map(Rotated, WIDTHS))}

Chosen = NDArray[np.int64]
"""Numbers of blocks, ascending."""


def inner_option() -> Any:
    """The option `inner`: the codec of what is summed; "": as sums travel without one."""
    return option("inner", one_of(*_INNER), "")


def inner_bytes(inner: str) -> float:
    """Bytes of a value in the sum."""
    return _INNER[inner].bits(FLOAT32) / 8 if inner else 4


def inner_fault(inner: str, workers: int) -> str:
    return _INNER[inner].fault(workers) if inner else ""


class Blocks:
    """An array as blocks of neighbours; the last one may be short."""

    def __init__(self, values: Array, block: int) -> None:
        self.values, self.block = values, block
        self.count = -(-len(values) // block)
        full_count = len(values) // block
        self.full_blocks = values[: full_count * block].reshape(full_count, block)
        self.rest = values[full_count * block :]

    def take(self, chosen: Chosen, spare: int = 0) -> Array:
        """The chosen blocks' values, one block behind the other, then `spare` zeros."""
        full, ends = self._split(chosen)
        count = len(full) * self.block
        chosen_values = np.zeros(count + ends * len(self.rest) + spare, self.values.dtype)
        np.take(self.full_blocks, full, 0, chosen_values[:count].reshape(-1, self.block), "clip")
        if ends:
            chosen_values[count : count + len(self.rest)] = self.rest
        return chosen_values

    def put(self, chosen: Chosen, values: Array) -> None:
        """Set them to what `take` gave."""
        full, ends = self._split(chosen)
        count = len(full) * self.block
        self.full_blocks[full] = values[:count].reshape(-1, self.block)
        if ends:
            self.rest[:] = values[count : count + len(self.rest)]

    def replace(self, chosen: Chosen, sums: Array, residual: Array | None, lost: Array | None) -> None:
        """Make the results: sums of the chosen blocks, zeros elsewhere. lost: of the chosen, for the residual."""
        if residual is not None and lost is not None:
            np.copyto(residual, self.values)
            Blocks(residual, self.block).put(chosen, lost)
        self.values.fill(0)
        self.put(chosen, sums)

    def _split(self, chosen: Chosen) -> tuple[Chosen, bool]:
        """The whole ones, and whether the short one is among them."""
        ends = bool(len(chosen)) and int(chosen[-1]) == len(self.full_blocks)
        return chosen[: len(chosen) - ends], ends


def finite(values: Array) -> bool:
    """Whether every value is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.dot(values, values)) or bool(np.isfinite(values).all())


def summed(array: Array, inner: str, workers: int, residual: Array | None) -> Iterator[Reduction]:
    """The sum of an array. residual: gets what the inner codec loses."""
    codec = _INNER[inner].for_workers(workers) if inner else None
    if codec is None and residual is not None:
        residual.fill(0)
    yield Reduction(array, codec=codec, residual=None if codec is None else residual)


def sum_chosen(blocks: Blocks, chosen: Chosen, how: tuple[str, int], residual: Array | None) -> Iterator[Reduction]:
    """The sums of these blocks, zeros elsewhere. how: inner codec, workers."""
    travelling = blocks.take(chosen)
    lost = None if residual is None else np.empty_like(travelling)
    yield from summed(travelling, *how, lost)
    blocks.replace(chosen, travelling, residual, lost)
