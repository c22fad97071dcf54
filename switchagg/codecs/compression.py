"""How one rank sums arrays through a codec, with what surrounds it: feedback, warm-up, a least size. Plain collectives,
which the caller carries out: a switch, a host method, servers, in real or virtual time.
"""

import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from switchagg.codecs.array_codec import SUM, ArrayCodec, ArrayShape, Memory, Reduction, SumTerms, Tensor, Tensors
from switchagg.codecs.codec import FLOAT32, Array, Codec
from switchagg.codecs.memory import Parts, clip, feedback_of, is_of
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import CodecSpec


def check_state(state: Mapping[str, Any], codec: str, rank: int, workers: int) -> None:
    """Raises ValueError for a state of another codec, or another place."""
    if state["codec"] != codec:
        raise ValueError(f"a state of codec {state['codec']}; this is {codec}")
    if (state["rank"], state["workers"]) != (rank, workers):
        state_rank, local_rank = f"{state['rank']} of {state['workers']}", f"{rank} of {workers}"
        raise ValueError(f"codec {codec}: a state of rank {state_rank}; this is rank {local_rank}")


class Compression:
    """The codec of one rank's sums. It is not thread-safe; iterators of several calls may be advanced in turn, but not
    of the same tensors.

    spec: as all ranks have it, for so many of them. seed: of random numbers, the same on all.
    """

    def __init__(self, spec: CodecSpec, rank: int, workers: int, seed: int = 0) -> None:
        """Raises ValueError for more workers than the codec sums."""
        self.spec = spec.for_workers(workers)
        self.workers = workers
        self._rank, self._seed = rank, seed
        self._text = str(spec)
        self._feedback = feedback_of(spec)
        self._sums: dict[str, int] = {}  # so far, of each tensor
        self._memories: dict[str, Memory] = {}  # of an array codec
        self._sizes: dict[str, int] = {}
        self._summing: set[str] = set()

    def __str__(self) -> str:
        """As users write it."""
        return self._text

    @property
    def remembers(self) -> bool:
        """Whether tensors must have names."""
        return self._feedback is not None or self.spec.warmup > 0

    @property
    def stepwise(self) -> bool:
        """Whether a sum is several collectives, or none with the codec of its own."""
        return isinstance(self.spec.codec, ArrayCodec)

    def takes(self, dtype: "np.dtype[Any]", values: int, named: bool = False, terms: SumTerms = SUM) -> bool:
        """Whether such a sum is this object's business; another travels as without a codec. named: the array has
        tensors: with momentum correction, short ones have their momentum, too."""
        codec = self.spec.codec
        if isinstance(codec, ArrayCodec) and not (dtype in codec.dtypes and codec.sums(terms)):
            return False
        if isinstance(codec, Codec) and (dtype != FLOAT32 or terms.kind != "allreduce"):
            return False
        return not self._is_short(values) or (named and self.spec.momentum > 0)

    def rounds(self, array: Array, tensors: Tensors | None, key: int = 0, terms: SumTerms = SUM) -> Iterator[Reduction]:
        """Sum an array that it takes, in place: done when the iterator ends.

        array: 1-D, contiguous, writable. tensors: all of it; None: it has no names. key: the call's number, the same on
        all ranks; read only without tensors. Raises ValueError at once for tensors that don't fit or are missing, or
        whose last sum hasn't ended; `close` an iterator that isn't run to its end.
        """
        if tensors is None or not (self.spec.lossy or self.remembers):
            if self.remembers:
                raise ValueError(
                    f"codec {self} remembers what each parameter lost: name them by tensors=, or give the call a key"
                )
            return self._nameless(array, key, terms)
        parts = tuple(tensors)
        self._check(parts, len(array))
        self._summing.update(tensor.name for tensor in parts)
        return self._named(array, parts, terms)

    def make_typical(self, array: Array) -> None:
        """Replace zeros by values of which as many bytes travel as `ArrayCodec.moved` says."""
        if isinstance(self.spec.codec, ArrayCodec):
            array[:] = self.spec.codec.typical(len(array))

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        """The learning rate has changed; factor: the old one / the new one. Residuals are in units of the rate.
        names: of the parameters that have it, whose slices "name[low:high]" have it, too; None: all."""
        if self._feedback is not None:
            self._feedback.rescale(factor, names)
        for name, memory in self._memories.items():
            if "lost" in memory and is_of(name, names):
                memory["lost"] *= np.float32(factor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's: plain numbers, and NumPy arrays by the names of tensors. No call may be in progress."""
        feedback = (
            {} if self._feedback is None else {name: memory.state() for name, memory in self._feedback.memories.items()}
        )
        memories = {
            name: {kind: np.copy(values) for kind, values in memory.items()} for name, memory in self._memories.items()
        }
        return {
            "codec": self._text,
            "rank": self._rank,
            "workers": self.workers,
            "sums": dict(self._sums),
            "kept": feedback,
            "memory": memories,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises ValueError for a state of another codec, or another place."""
        check_state(state, self._text, self._rank, self.workers)
        self._sums = dict(state["sums"])
        self._sizes = {name: len(part) for memory in state["kept"].values() for name, part in memory.items()}
        self._memories = {
            name: {kind: np.copy(values) for kind, values in of.items()} for name, of in state["memory"].items()
        }
        if self._feedback is not None:
            for kind, memory in self._feedback.memories.items():
                memory.load(state["kept"][kind])

    def _check(self, parts: Parts, values: int) -> None:
        """Raise ValueError for tensors that can't be summed now."""
        sizes = {tensor.name: math.prod(tensor.shape) for tensor in parts}
        if len(sizes) != len(parts):
            raise ValueError(f"tensors {', '.join(tensor.name for tensor in parts)[:200]}: a name is there twice")
        if sum(sizes.values()) != values:
            raise ValueError(f"tensors of {sum(sizes.values())} values: the array has {values}")
        for name, size in sizes.items():
            if self._sizes.setdefault(name, size) != size:
                raise ValueError(f"tensor {name} had {self._sizes[name]} values, it has {size} now")
            if name in self._summing:
                raise ValueError(f"tensor {name}: its last sum has not ended")

    def _is_short(self, values: int) -> bool:
        """Whether a sum of so few travels without the codec."""
        return self.spec.lossy and values < self.spec.least

    def _named(self, array: Array, parts: Parts, terms: SumTerms) -> Iterator[Reduction]:
        names = [tensor.name for tensor in parts]
        try:
            step = min((self._sums.get(name, 0) for name in names), default=0)
            exact = self.spec.lossy and (self._is_short(len(array)) or step < self.spec.warmup)
            feedback, codec = self._feedback, self.spec.codec
            if isinstance(codec, ArrayCodec) and codec.clip:
                clip(array, parts, codec.clip / math.sqrt(self.workers))
            residual = None if feedback is None else feedback.before(array, parts, exact)
            if exact:
                yield Reduction(array)
            else:
                number = zlib.crc32("\0".join(names).encode())
                shape = ArrayShape(parts, self._rank, self.workers, step, *self._keys(number, step), terms)
                yield from self._coded(array, residual, shape, [self._memories.setdefault(name, {}) for name in names])
            if feedback is not None:
                feedback.after(array, parts, exact)
            for name in names:
                self._sums[name] = self._sums.get(name, 0) + 1
        finally:
            self._summing.difference_update(names)

    def _nameless(self, array: Array, key: int, terms: SumTerms) -> Iterator[Reduction]:
        parts = (Tensor("", (len(array),)),)
        shape = ArrayShape(parts, self._rank, self.workers, 0, *self._keys(0, key), terms)
        return self._coded(array, None, shape, [_Forgetful(self._text)])

    def _coded(
        self, array: Array, residual: Array | None, shape: ArrayShape, memories: list[Memory]
    ) -> Iterator[Reduction]:
        codec = self.spec.codec
        if isinstance(codec, ArrayCodec):
            return codec.rounds_of(array, residual, shape, memories)
        return iter((Reduction(array, codec=codec, residual=residual),))

    def _keys(self, stream: int, number: int) -> tuple[int, int]:
        """The keys of this rank's random numbers, and of those that all ranks draw alike."""
        rank_key, shared = (call_key(self._seed, rank, stream, number) for rank in (self._rank, self.workers))
        return rank_key, shared


class _Forgetful(dict[str, Array]):
    """The memory of an array without names."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def __setitem__(self, kind: str, array: Array) -> None:
        raise ValueError(f"codec {self._codec} remembers parameters: name them by tensors=, or give the call a key")
