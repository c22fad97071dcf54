"""The contract of codecs that see whole arrays: which values travel, or what they are turned into, depends on all of
them. A `Codec` instead sees the rows of packets.

An array codec sums an array by plain collectives of the ranks, one after the other: it yields each, and goes on when
that has been combined in place. What moves them is the caller's business: a switch, a host method, servers, in real
or virtual time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from switchagg.codecs.codec import FLOAT32, Array, Codec
from switchagg.description import Kind


class Tensor(NamedTuple):
    """A parameter's part of an array. name: the same on all ranks, and as long as the job lasts."""

    name: str
    shape: tuple[int, ...]

    def part(self, low: int, high: int) -> "Tensor":
        """The tensor of the values low … high-1 in memory, with a name of its own where they are not all."""
        is_all = (low, high) == (0, math.prod(self.shape))
        return self if is_all else Tensor(f"{self.name}[{low}:{high}]", (high - low,))


Tensors = Sequence[Tensor]
"""The tensors that make up an array, one behind the other."""

Memory = MutableMapping[str, Array]
"""Arrays that a codec keeps of one tensor between calls, by names of the codec's. They are saved with the job's state;
"lost" is rescaled when the learning rate changes (`Compression.rescale`)."""


class Reduction(NamedTuple):
    """A collective of all ranks, in place.

    kind: "allreduce", of float32, float64, int32 or int64; "reduce_scatter" of the same, after which this rank has the
    sums of its own shard (`own_shard`); "all_gather", of any type: this rank has filled its own shard; or "broadcast",
    of any type, from the rank `root`. op: "sum" or "max" (int32). codec: how a sum travels; None: as sums travel there
    where nobody asks for a codec. residual: see `ArrayCodec.rounds_of`; only with a codec.
    """

    array: Array
    op: str = "sum"
    kind: Kind = "allreduce"
    codec: Codec | None = None
    residual: Array | None = None
    root: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether what travels are its values as they are; a codec of integers concerns a switch alone."""
        return self.codec is None or self.array.dtype.kind == "i"


class SumTerms(NamedTuple):
    """What callers want of a sum; a codec says which of it it can (`ArrayCodec.sums`).

    kind: "reduce_scatter": this rank needs the sums of its own shard alone; of others it gets all. op: "sum" or "avg".
    target: the type that results are rounded to, "bfloat16" and "float16" in arrays of float32; "": the array's. unit:
    values that lie in the same shard, as of a `CallRequest`.
    """

    kind: Kind = "allreduce"
    op: str = "sum"
    target: str = ""
    unit: int = 1


SUM = SumTerms()


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The facts of a call that a rank knows before it looks at values.

    tensors: of the array. step: how often these have been summed before. key: of this rank's random numbers, shared: of
    those that all ranks draw alike; both another one for each call (`switchagg.codecs.rounding`). terms: of the sum.
    """

    tensors: Tensors
    rank: int
    workers: int
    step: int
    key: int
    shared: int
    terms: SumTerms = SUM


class ArrayCodec(ABC):
    """A way to sum arrays. A subclass is a frozen dataclass: its fields are options (`switchagg.option_syntax`).

    dtypes: arrays that it takes. lossy: sums lack something, so short arrays travel without it, and error feedback has
    something to do. adds: what travels is summed on the way, by a switch for one; else it is gathered. rounds:
    collectives that depend on each other. needs_feedback: without error feedback it doesn't converge. masks: it forgets
    the momentum of what it has sent (DGC). momentum: of the correction that comes with it where error feedback is;
    nesterov: in Nesterov's form. clip: the norm of a tensor's sum of gradients that this rank's part of it, the norm /
    sqrt(workers), may not exceed; 0: any.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple["np.dtype[Any]", ...]] = (FLOAT32,)
    lossy: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    rounds: ClassVar[int]
    needs_feedback: ClassVar[bool] = False
    masks: ClassVar[bool] = False
    momentum: ClassVar[float] = 0.0
    nesterov: int = 0
    clip: float = 0.0

    def fault(self, workers: int) -> str:
        """Why it can't sum so many ranks; "" if it can."""
        return ""

    def sums(self, terms: SumTerms) -> bool:
        """Whether it can sum by these terms; it rounds to no type but the array's."""
        return (terms.kind, terms.op) == ("allreduce", "sum")

    @abstractmethod
    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        """About how many bytes the arrays of each kind of collective have, for a long array of so many values."""

    def typical(self, values: int) -> Array:
        """So many values of which as many bytes travel as `moved` says; of most codecs they do of zeros."""
        return np.zeros(values, np.float32)

    def bits(self, workers: int) -> float:
        """Bits that a rank sends for each value of a long array, those included that say which values they are."""
        values = 1 << 24
        moved = self.moved(values, workers)
        return 8 * (moved.get("allreduce", 0) + moved.get("all_gather", 0) / workers) / values

    @abstractmethod
    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        """Sum `values`, 1-D of one of its types, over all ranks in place by `shape.terms`: done when the iterator ends.

        residual: of the same length; gets what of this rank's values isn't in the sum: values - what its codes stand
        for. memory: of each tensor, at first empty. Iterators of several calls may be advanced in turn.
        """


def spoil(values: Array, residual: Array | None) -> None:
    """Make a call's results NaN, as some rank's values are not finite. residual: gets the finite ones."""
    if residual is not None:
        np.copyto(residual, values)
        residual[~np.isfinite(residual)] = 0
    values.fill(np.nan)
