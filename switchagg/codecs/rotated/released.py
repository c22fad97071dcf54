"""THC as its published code has it: one norm for a whole array, and its table looked up at the host. For comparison.

`thc_table` takes a row's own scale; this rotates blocks of 1,024 values, and takes the array's scale for all of them
(F15). Where layers differ in magnitude small ones drown: an error of .54, where scales of their own give .02.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, spoil
from switchagg.codecs.codec import FLOAT32, GREATEST_CODE, Array, CallShape, lost
from switchagg.codecs.rotated.rows import codes_of_rms, sums_of_squares
from switchagg.codecs.rotated.thc import LANES, TABLE, Thc
from switchagg.description import Kind

BLOCK = 1024
"""Values that are rotated together; arrays are padded with zeros to a multiple."""

_LEVELS = Thc("thc_released", TABLE)


def _blocks(values: int) -> int:
    return max(1, -(-values // BLOCK))


@dataclass(frozen=True)
class ThcReleased(ArrayCodec):
    """A value that isn't finite makes every rank's whole result NaN; finite ones remain in the residual."""

    name: ClassVar[str] = "thc_released"
    rounds: ClassVar[int] = 2

    def fault(self, workers: int) -> str:
        return _LEVELS.fault(workers)

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4.0 + 4 * _blocks(values) * BLOCK // LANES}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        blocks = _blocks(len(values))
        padded = np.zeros((blocks, BLOCK), np.float32)
        padded.reshape(-1)[: len(values)] = values
        code = codes_of_rms(sums_of_squares(padded).sum(keepdims=True) / padded.size)
        yield Reduction(code, op="max")
        if code[0] >= GREATEST_CODE:
            spoil(values, residual)
            return
        coding = _LEVELS.begin(CallShape(FLOAT32, blocks, BLOCK // LANES, shape.workers, shape.key))
        every = slice(0, blocks)
        coding.agree(0, np.repeat(code, blocks))
        words = coding.encode(padded, every)
        if residual is not None:
            residual[:] = lost(coding, padded, words, every).reshape(-1)[: len(values)]
        yield Reduction(words.reshape(-1))
        values[:] = coding.decode(words, every).reshape(-1)[: len(values)]
