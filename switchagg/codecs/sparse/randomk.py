"""A random part of the values, drawn alike by all ranks, so nothing says which they are: rule F16.

The array is cut into as many runs of blocks as travel, equal but for one block, and of each one block is drawn: without
replacement, in ascending order, in one pass over what travels. Without feedback a value counts as often as its run has
blocks, so the mean of many sums is the sum of all; with feedback it counts once, and the rest is kept for later.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, spoil
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count
from switchagg.codecs.rounding import draws
from switchagg.codecs.sparse.blocks import (
    Blocks,
    Chosen,
    finite,
    inner_bytes,
    inner_fault,
    inner_option,
    summed,
)
from switchagg.description import Kind
from switchagg.option_syntax import count, option, share


def drawn(blocks: int, chosen: int, key: int) -> tuple[Chosen, NDArray[np.int64]]:
    """The blocks that travel, and how many blocks each is drawn from (F16)."""
    edges = np.arange(chosen + 1, dtype=np.int64) * blocks // chosen
    lengths = np.diff(edges)
    numbers = draws(key, np.zeros(1, np.uint64), chosen)[0].astype(np.int64)
    return edges[:-1] + (numbers * lengths >> 32), lengths


@dataclass(frozen=True)
class RandomK(ArrayCodec):
    """ratio: what travels of all. block: neighbours that travel together. inner: what carries them."""

    name: ClassVar[str] = "randomk"
    rounds: ClassVar[int] = 1

    ratio: float = option("ratio", share, 0.01)
    block: int = option("block", count(1), 1)
    inner: str = inner_option()

    def fault(self, workers: int) -> str:
        return inner_fault(self.inner, workers)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": self.ratio * values * inner_bytes(self.inner)}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        blocks = Blocks(values, self.block)
        count = chosen_count(blocks.count, self.ratio)
        if count == blocks.count:
            yield from summed(values, self.inner, shape.workers, residual)
            return
        chosen, lengths = drawn(blocks.count, count, shape.shared)
        travelling = blocks.take(chosen, 1)
        travelling[-1] = 0 if finite(values) else np.nan  # tells all ranks of what isn't drawn
        lost = None if residual is None else np.empty_like(travelling)
        yield from summed(travelling, self.inner, shape.workers, lost)
        if np.isnan(travelling[-1]):
            spoil(values, residual)
            return
        if residual is None:
            of_values = np.repeat(lengths.astype(np.float32), self.block)
            with np.errstate(over="ignore"):
                travelling[:-1] *= of_values[: len(travelling) - 1]
        blocks.replace(chosen, travelling, residual, lost)
