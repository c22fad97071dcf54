"""The blocks of values on which all ranks agree, in two plain sums: first a weight of each block, then the blocks that
weigh most. Blocks that aren't sent stay in the residual. ScaleCom, ARC-Top-K and OmniReduce have this aim; here there
are no pairs of index and value, so a switch sums it as it sums everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, spoil
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count, greatest
from switchagg.codecs.sparse.blocks import (
    Blocks,
    inner_bytes,
    inner_fault,
    inner_option,
    sum_chosen,
    summed,
)
from switchagg.description import Kind
from switchagg.option_syntax import count, option, share


def weights(blocks: Blocks, workers: int) -> Array:
    """The Euclidean norm of each block, scaled so that no sum of finite ones is infinite."""
    squares = _squares(blocks, np.float32)
    if not np.isfinite(squares).all():
        squares = _squares(blocks, np.float64)
    scaled: Array = (np.sqrt(squares) / (2 * workers * blocks.block**0.5)).astype(np.float32)
    return scaled


def _squares(blocks: Blocks, dtype: type) -> Array:
    """The sum of squares of each block."""
    with np.errstate(over="ignore", invalid="ignore"):
        of_whole = np.einsum("ij,ij->i", blocks.full_blocks, blocks.full_blocks, dtype=dtype)
        of_rest = np.einsum("i,i", blocks.rest, blocks.rest, dtype=dtype)
    return np.append(of_whole, of_rest)[: blocks.count]


@dataclass(frozen=True)
class Agreed(ArrayCodec):
    """ratio: what travels of all blocks. block: values of one. inner: what carries them."""

    name: ClassVar[str] = "agreed"
    rounds: ClassVar[int] = 2
    needs_feedback: ClassVar[bool] = True

    ratio: float = option("ratio", share, 0.1)
    block: int = option("block", count(1), 64)
    inner: str = inner_option()

    def fault(self, workers: int) -> str:
        return inner_fault(self.inner, workers)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4 * values / self.block + self.ratio * values * inner_bytes(self.inner)}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        blocks = Blocks(values, self.block)
        count = chosen_count(blocks.count, self.ratio)
        if count == blocks.count:
            yield from summed(values, self.inner, shape.workers, residual)
            return
        of_all = weights(blocks, shape.workers)
        yield Reduction(of_all)
        if not np.isfinite(of_all).all():
            spoil(values, residual)
            return
        yield from sum_chosen(blocks, greatest(of_all, count), (self.inner, shape.workers), residual)
