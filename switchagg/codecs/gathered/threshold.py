"""Values beyond a threshold, of which each rank has another number: all agree on the greatest before they gather.

`threshold` (Strom) sends +-tau in place of each such value; what it is beyond that stays in the residual. `drop`
(gradient dropping) sends them in full; its threshold is the quantile of a sample of each tensor.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import chosen_count, magnitudes, quantile, spans
from switchagg.codecs.gathered.packing import (
    Chosen,
    add_up,
    bit_words,
    gather_beside,
    gather_chosen,
    pack_bits,
    position_words,
    unpack_bits,
)
from switchagg.codecs.gathered.topk import chosen_bytes
from switchagg.description import Kind
from switchagg.option_syntax import option, positive, share

_TYPICAL = 0.01
"""Share of values beyond a threshold where nothing is known of them, for an estimate of bits."""


def _agree(count: int) -> Generator[Reduction, None, int]:
    """The greatest count of all ranks."""
    most = np.array([count], np.int32)
    yield Reduction(most, op="max")
    return int(most[0])


@dataclass(frozen=True)
class Threshold(ArrayCodec):
    """tau: in units of a gradient, the same for all tensors. If a rank has a value that isn't finite, all get NaN."""

    name: ClassVar[str] = "threshold"
    adds: ClassVar[bool] = False
    rounds: ClassVar[int] = 2
    needs_feedback: ClassVar[bool] = True

    tau: float = option("tau", positive(), 2.0**-10)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        most = chosen_count(values, _TYPICAL)
        return {"allreduce": 4.0, "all_gather": workers * 4.0 * (position_words(values, most) + bit_words(most))}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        tau, size = np.float32(self.tau), len(values)
        of = magnitudes(values)
        positions = np.flatnonzero(of > tau.view(np.uint32))
        sent_values = np.copysign(tau, values[positions])
        finite = np.isfinite(values[positions]).all()
        if residual is not None:
            residual[:] = values
        most = yield from _agree(len(positions) if finite else size + 1)
        if most > size:
            if residual is not None and not finite:
                residual[~np.isfinite(residual)] = 0
            values[:] = np.nan
            return
        if residual is not None:
            residual[positions] -= sent_values
        values[:] = 0
        if most:
            beside = np.zeros(bit_words(most), np.int32)
            beside[: bit_words(len(sent_values))] = pack_bits(np.signbit(sent_values))
            place = (shape.rank, shape.workers)
            for where, words in (yield from gather_beside(positions, beside, (size, most), place)):
                values[where] += np.where(unpack_bits(words, len(where)), -tau, tau)


@dataclass(frozen=True)
class Drop(ArrayCodec):
    """ratio: about how many of a tensor's values are sent."""

    name: ClassVar[str] = "drop"
    adds: ClassVar[bool] = False
    rounds: ClassVar[int] = 2
    needs_feedback: ClassVar[bool] = True

    ratio: float = option("ratio", share, 0.01)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4.0, "all_gather": workers * chosen_bytes(values, chosen_count(values, self.ratio))}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        of, size = magnitudes(values), len(values)
        beyond = np.zeros(size, np.bool_)
        for part in spans(shape.tensors):
            if count := chosen_count(len(of[part]), self.ratio):
                # Equal ones go together: else a tensor of equal ones would never be sent. Zeros are none to send.
                beyond[part] = of[part] >= max(quantile(of[part], count), np.uint32(1))
        positions = np.flatnonzero(beyond)
        chosen = Chosen(positions, values[positions])
        if residual is not None:
            residual[:] = values
            residual[positions] = 0
        most = yield from _agree(len(positions))
        values[:] = 0
        if most:
            add_up((yield from gather_chosen(chosen, size, (shape.rank, shape.workers), most)), values)
