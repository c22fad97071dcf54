"""`topk`: of each tensor the greatest values, in full.

The choice is made in each tensor and not in the whole array, as in most published code (GRACE, DGC, BytePS): where
layers are fused to a bucket those with small gradients would else never be sent, and what is sent would depend on how
they are fused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count, greatest, spans
from switchagg.codecs.gathered.packing import Chosen, add_up, gather_chosen, position_words
from switchagg.description import Kind
from switchagg.option_syntax import option, share


def chosen_bytes(values: int, most: int) -> float:
    """Bytes of a rank that sends at most so many values of an array in full."""
    return 4.0 * (most + (position_words(values, most) if most < values else 0))


@dataclass(frozen=True)
class TopK(ArrayCodec):
    """ratio: how many of a tensor's values are sent; one at least."""

    name: ClassVar[str] = "topk"
    adds: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    needs_feedback: ClassVar[bool] = True

    ratio: float = option("ratio", share, 0.01)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"all_gather": workers * chosen_bytes(values, chosen_count(values, self.ratio))}

    def ratio_at(self, step: int) -> float:
        """The ratio when a tensor has been summed so often before."""
        return self.ratio

    def choose(self, values: Array, shape: ArrayShape) -> Chosen:
        """The values that this rank sends."""
        ratio = self.ratio_at(shape.step)
        chosen = [
            part.start + greatest(values[part], chosen_count(values[part].size, ratio)) for part in spans(shape.tensors)
        ]
        positions = np.concatenate(chosen) if chosen else np.empty(0, np.intp)
        return Chosen(positions, values[positions])

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        chosen = self.choose(values, shape)
        if residual is not None:
            residual[:] = values
            residual[chosen.positions] = 0
        add_up((yield from gather_chosen(chosen, len(values), (shape.rank, shape.workers))), values)
