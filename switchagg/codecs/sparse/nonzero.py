"""Exact sums of arrays that have blocks of zeros: first a count for each block of the ranks where it isn't zero, four
counts in a word, then the blocks that some rank has. It pays where those and the map are fewer than all, as with the
gradients of embeddings; else everything travels, and the map was in vain (1/1024 of it with blocks of 256).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.sparse.blocks import (
    Blocks,
    Chosen,
    inner_bytes,
    inner_fault,
    inner_option,
    sum_chosen,
    summed,
)
from switchagg.description import Kind
from switchagg.option_syntax import count, option

_WORKERS_MAX = 255
"""Most ranks that a lane of 8 bits counts."""

_LITTLE = np.dtype("<i4")


def presence(blocks: Blocks) -> NDArray[np.int32]:
    """1 for each block that isn't all zeros, four in a word: the first in the lowest bits."""
    lanes = np.zeros(-(-blocks.count // 4) * 4, np.uint8)
    lanes[: len(blocks.full_blocks)] = (blocks.full_blocks != 0).any(axis=1)
    lanes[len(blocks.full_blocks) : blocks.count] = (blocks.rest != 0).any()
    words: NDArray[np.int32] = lanes.view(_LITTLE).astype(np.int32)
    return words


def present(words: NDArray[np.int32], blocks: int) -> Chosen:
    """The blocks that a sum of `presence` counts."""
    return np.flatnonzero(words.astype(_LITTLE).view(np.uint8)[:blocks])


@dataclass(frozen=True)
class NonZero(ArrayCodec):
    """block: values of one. inner: what carries them."""

    name: ClassVar[str] = "nonzero"
    rounds: ClassVar[int] = 2

    block: int = option("block", count(1), 256)
    inner: str = inner_option()

    def fault(self, workers: int) -> str:
        if workers > _WORKERS_MAX:
            return f"codec {self.name} can't count {workers} workers; at most {_WORKERS_MAX}"
        return inner_fault(self.inner, workers)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        """At most, where there are no blocks of zeros."""
        return {"allreduce": values / self.block + values * inner_bytes(self.inner)}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        blocks = Blocks(values, self.block)
        words = presence(blocks)
        if not blocks.count:
            return
        yield Reduction(words)
        chosen = present(words, blocks.count)
        if len(chosen) * self.block * inner_bytes(self.inner) + words.nbytes >= len(values) * inner_bytes(self.inner):
            yield from summed(values, self.inner, shape.workers, residual)
        elif len(chosen):
            yield from sum_chosen(blocks, chosen, (self.inner, shape.workers), residual)
        elif residual is not None:
            residual.fill(0)
