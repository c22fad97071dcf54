"""`exact`: the correctly rounded sum of all ranks' values, or their mean; the same bits whatever the way (F19-F21)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, SumTerms
from switchagg.codecs.codec import Array
from switchagg.codecs.exact.groups import GROUP, TYPES, WORKERS_MOST, Codes, Widths, codes_of, type_of, widths_of
from switchagg.codecs.exact.integers import Words, from_words, to_words
from switchagg.codecs.exact.nearest import Rounding
from switchagg.description import Kind, shard_range


@dataclass(frozen=True)
class ExactSums(ArrayCodec):
    """All ranks' codes by MAX, then, in as many words as these ask for, the sum of integers."""

    name: ClassVar[str] = "exact"
    dtypes: ClassVar[tuple["np.dtype[np.generic]", ...]] = (np.dtype(np.float32), np.dtype(np.float64))
    lossy: ClassVar[bool] = False
    rounds: ClassVar[int] = 2

    def fault(self, workers: int) -> str:
        return (
            ""
            if workers <= WORKERS_MOST
            else f"codec exact can't sum {workers} workers exactly; at most {WORKERS_MOST}"
        )

    def sums(self, terms: SumTerms) -> bool:
        return terms.kind in ("allreduce", "reduce_scatter") and terms.op in ("sum", "avg")

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"allreduce": 4.0 * 1.4 * values + 8.0 * values / GROUP}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        """Of a reduce-scatter only this rank's shard has sums."""
        terms, workers = shape.terms, shape.workers
        kind = type_of(values.dtype)
        rounding = Rounding(TYPES[terms.target] if terms.target else kind, workers if terms.op == "avg" else 1)
        shards = [values]
        if terms.kind == "reduce_scatter":
            ends = [shard_range(len(values) // terms.unit, rank, workers) for rank in range(workers)]
            shards = [values[terms.unit * low : terms.unit * high] for low, high in ends]
        codes = [self.codes(shard) for shard in shards]
        agreed = np.concatenate(codes, axis=1)
        local = agreed.copy()
        yield Reduction(agreed.reshape(-1), "max")
        if (agreed < local).any():
            raise ValueError("codec exact: codes came back that are below this rank's: what carries the sums is faulty")
        parts = np.split(agreed, np.cumsum([part.shape[1] for part in codes[:-1]]), axis=1)
        widths = [widths_of(part, len(shard), workers, kind) for part, shard in zip(parts, shards, strict=True)]
        most = max(int(width.words.sum()) for width in widths)
        words = np.zeros((len(shards), most), np.int32)
        for row, shard, width in zip(words, shards, widths, strict=True):
            row[: width.words.sum()] = self.encode(shard, width, workers)
        if words.size:
            yield Reduction(words.reshape(-1), kind=terms.kind)
        number = shape.rank if len(shards) > 1 else 0
        self.decode(words[number].view(np.uint32), shards[number], widths[number], workers, rounding)

    def codes(self, values: Array) -> Codes:
        """This rank's codes of an array."""
        return codes_of(values)

    def encode(self, values: Array, widths: Widths, workers: int) -> Array:
        """Its words, int32."""
        return to_words(values, widths, workers)

    def decode(self, words: Words, values: Array, widths: Widths, workers: int, rounding: Rounding) -> None:
        """Write sums to `values`. words: summed; more may follow."""
        from_words(words, values, widths, workers, rounding)
