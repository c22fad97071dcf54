"""`gtopk`: of what ranks chose, only the greatest sums are applied; what was sent in vain goes back to the residual.

The published tree merges the choices of two ranks at a time and cuts after each merge, so what survives depends on who
met whom. Here all is gathered and cut once: the greatest of the whole sum, in one round. Every rank cuts the same bits,
so all keep the same. A tree made of all-gathers would move log2(n) times as much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayShape, Memory, Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count, greatest, spans
from switchagg.codecs.gathered.packing import add_up, gather_chosen
from switchagg.codecs.gathered.topk import TopK


@dataclass(frozen=True)
class GlobalTopK(TopK):
    """ratio: how many of a tensor's values are sent, and how many of its sums are applied."""

    name: ClassVar[str] = "gtopk"

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        chosen = self.choose(values, shape)
        if residual is not None:
            residual[:] = values
        everyones = yield from gather_chosen(chosen, len(values), (shape.rank, shape.workers))
        add_up(everyones, values)
        applied = np.zeros(len(values), np.bool_)
        for sent_values in everyones:
            applied[sent_values.positions] = True
        for part in spans(shape.tensors):
            sums = np.flatnonzero(applied[part])
            best = sums[greatest(values[part][sums], chosen_count(len(values[part]), self.ratio))]
            applied[part] = False
            applied[part][best] = True
        values[~applied] = 0
        if residual is not None:
            residual[chosen.positions[applied[chosen.positions]]] = 0
