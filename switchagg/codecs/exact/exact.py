"""`exact`: the correctly rounded sum of all ranks' values, or their mean; the same bits whatever the way (F19-F21)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, SumTerms
from switchagg.codecs.codec import Array
from switchagg.codecs.exact.groups import GROUP, TYPES, WORKERS_MOST, Codes, codes_of, digits_of, group_count
from switchagg.codecs.exact.integers import from_words, to_words
from switchagg.codecs.exact.nearest import Rounding
from switchagg.codecs.plain import Narrow
from switchagg.description import COMBINING, Kind, shard_range

NARROW = Narrow()

TYPICAL_SPAN = 31
"""Of a group of gradients in float32: 4.6 bytes a value of 4 ranks, where 4.2 to 4.8 were measured."""


@dataclass(frozen=True)
class ExactSums(ArrayCodec):
    """All ranks' codes by MAX, then, in as many words as these ask for, the sum of integers."""

    name: ClassVar[str] = "exact"
    dtypes: ClassVar[tuple["np.dtype[np.generic]", ...]] = (np.dtype(np.float32), np.dtype(np.float64))
    lossy: ClassVar[bool] = False
    rounds: ClassVar[int] = 2

    def fault(self, workers: int) -> str:
        fault = f"codec exact can't sum {workers} workers exactly; at most {WORKERS_MOST}"
        return fault if workers > WORKERS_MOST else ""

    def sums(self, terms: SumTerms) -> bool:
        return terms.kind in COMBINING and terms.op in ("sum", "avg")

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        """Of gradients; it follows from values, not from their number."""
        return {"allreduce": (4.0 * digits_of(TYPICAL_SPAN, workers).words(GROUP) + 8.0) * values / GROUP}

    def typical(self, values: int) -> Array:
        array = np.zeros(values, np.float32)
        array[::GROUP], array[1::GROUP] = 2.0 ** (TYPICAL_SPAN - 1), 1
        return array

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        """Of a reduce-scatter only this rank's shard has sums."""
        terms, workers = shape.terms, shape.workers
        target = TYPES[terms.target or values.dtype.name]
        rounding = Rounding(target, workers if terms.op == "avg" else 1)
        shards, shard = [values], 0
        if terms.kind == "reduce_scatter":
            ends = [shard_range(len(values) // terms.unit, rank, workers) for rank in range(workers)]
            shards, shard = [values[terms.unit * low : terms.unit * high] for low, high in ends], shape.rank
        codes, size = np.concatenate([self.codes(part) for part in shards], axis=1), len(values)
        first_round = np.append(codes, np.array([size, -size], np.int32))
        yield Reduction(first_round, "max")
        agreed, (most, least) = first_round[:-2].reshape(codes.shape), first_round[-2:].tolist()
        if (agreed < codes).any():
            raise ValueError("agreed codes are below this rank's own: what carries the sums is faulty")
        if (most, -least) != (size, size):
            raise ValueError(f"ranks sum arrays of {-least} and of {most} values")
        agreed_of = np.split(agreed, np.cumsum([group_count(len(part)) for part in shards[:-1]]), axis=1)
        words_of = [self.encode(part, part_codes, workers) for part, part_codes in zip(shards, agreed_of, strict=True)]
        words, row_words = words_of[0], max(map(len, words_of))
        if terms.kind == "reduce_scatter":
            words = np.zeros(len(shards) * row_words, np.int32)
            for first, part in zip(range(0, len(words), max(1, row_words)), words_of, strict=False):
                words[first : first + len(part)] = part
        if words.size:
            kind: Kind = "reduce_scatter" if terms.kind == "reduce_scatter" else "allreduce"
            yield Reduction(words, kind=kind, codec=NARROW)
        sums = words[shard * row_words : (shard + 1) * row_words]
        self.decode(sums, agreed_of[shard], shards[shard], workers, rounding)

    def codes(self, values: Array) -> Codes:
        """This rank's codes of an array."""
        return codes_of(values)

    def encode(self, values: Array, codes: Codes, workers: int) -> NDArray[np.int32]:
        """This rank's words. codes: agreed."""
        return to_words(values, codes, workers)

    def decode(self, words: NDArray[np.int32], codes: Codes, values: Array, workers: int, rounding: Rounding) -> None:
        """Write sums to `values`. words: summed; more may follow them."""
        from_words(words, codes, values, workers, rounding)
