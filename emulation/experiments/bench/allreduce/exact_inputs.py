"""Inputs of ranks in the benchmark, and the sums that must come out, also by codecs that lose something."""

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import ArrayCodec, Tensor, Tensors
from switchagg.codecs.compression import Compression
from switchagg.codecs.exact.exact import TYPICAL_SPAN
from switchagg.codecs.lanes import Lanes
from switchagg.lockstep import sum_together
from transport.group.method_name import MethodName

Array = NDArray[Any]
FLOATS_OFF = 1e-4
"""Share of the greatest value by which codecs may be off that leave sums of floats, in any order, to the method."""


class ExactInputs:
    """Inputs whose exact sum is known: small whole numbers, different on every rank and in every operation.

    Rank r's element i of operation k is pattern(i + k mod 101) with pattern(i) = (7i + 13r) mod 101 - 50. float32 sums
    of these are exact in any order, and the switch's fixed point represents them exactly. A lossy codec may be off by
    what its rule allows (`tolerance`). greatest: their limit, 50 for 32 bits and more. op: sum, max, min, or avg, of
    which every value is a multiple of the number of ranks, so that the average is a whole number. gradients: for codec
    exact, whose time and bytes follow from values: float32 of the span of gradients in place of whole numbers. They
    are multiples of 2**(2 - TYPICAL_SPAN), so float64 adds them exactly and only the last rounding is left.
    """

    PERIOD, GREATEST = 101, 50

    def __init__(
        self,
        rank: int,
        workers: int,
        dtype: str,
        elements_most: int,
        greatest: int = GREATEST,
        op: str = "sum",
        gradients: bool = False,
    ) -> None:
        index = np.arange(self.PERIOD)
        factor = workers if op == "avg" else 1
        patterns = [((7 * index + 13 * r) % (2 * greatest + 1) - greatest) * factor for r in range(workers)]
        if gradients:
            patterns = [_gradients(r, self.PERIOD) for r in range(workers)]
        turns = -(-(elements_most + self.PERIOD) // self.PERIOD)
        combine = {"max": np.max, "min": np.min}.get(op, np.sum)
        self._patterns = patterns
        self._rank_input = np.tile(patterns[rank].astype(dtype), turns)
        sums = combine(patterns, axis=0)
        self._sums = np.tile((sums if gradients else sums // factor).astype(dtype), turns)

    def fill(self, array: Array, operation: int) -> None:
        """Write this rank's input."""
        at = operation % self.PERIOD
        np.copyto(array, self._rank_input[at : at + len(array)])

    def of_all(self, elements: int, operation: int) -> list[Array]:
        """Every rank's input."""
        return [self.of(rank, elements, operation) for rank in range(len(self._patterns))]

    def of(self, rank: int, elements: int, operation: int, first: int = 0) -> Array:
        """A rank's input, or so many elements of it from `first` on."""
        pattern = np.roll(self._patterns[rank], -(first + operation)).astype(self._rank_input.dtype)
        return np.resize(pattern, elements)

    def combined(self, elements: int, operation: int) -> Array:
        """The sum that must come out: a view."""
        at = operation % self.PERIOD
        return self._sums[at : at + elements]

    def wrong(self, array: Array, operation: int, tolerance: float = 0.0) -> int:
        """How many elements differ from the exact sum, by more than that."""
        exact = self.combined(len(array), operation)
        if not tolerance:
            return int(np.count_nonzero(array != exact))
        return len(array) - int(np.count_nonzero(np.abs(array - exact) <= tolerance))


def _gradients(rank: int, count: int) -> Array:
    """float64, each of which float32 holds: normal numbers, of which a group of codec exact spans TYPICAL_SPAN bits."""
    unit = 2.0 ** (2 - TYPICAL_SPAN)
    values = np.round(np.random.default_rng(rank).standard_normal(count) / unit) * unit
    return values.astype(np.float32).astype(np.float64)


def tolerance(method: MethodName, workers: int, dtype: str) -> float:
    """How far a sum of `Numbers` may be off, by the rule of the method's codec; 0: not at all.

    Lanes (F9, F10): n * s / h, s at most 1 % above the greatest value, which with feedback has an earlier call's
    remainder in it, at most s / h. Sums of 16-bit floats: the rounding of n - 1 additions.
    """
    most = workers * ExactInputs.GREATEST
    if dtype != "float32":
        return 0.0
    if method.is_hook:
        return (workers - 1) * most * 2.0 ** -(8 if method.codec == "bf16" else 11)
    spec = method.spec
    codec = spec.codec if spec and not spec.momentum else None
    if isinstance(codec, Lanes):
        half = codec.half(workers)
        return most * 1.01 * (1 + 1 / half) / half
    return 0.0


def tensors_of(method: MethodName, array: Array) -> Tensors | None:
    """The array as one parameter, a matrix as square as can be, for codecs that ask; each size is another one."""
    spec, size = method.spec, len(array)
    if spec is None or array.dtype != np.float32 or (spec.row_codec is not None and not (spec.feedback or spec.warmup)):
        return None
    rows = next(rows for rows in range(math.isqrt(size), 0, -1) if not size % rows)
    return (Tensor(f"{size} values", (rows, size // rows)),)


class SumCheck:
    """The check of a rank's results of a method: sums of `ExactInputs`, by the rule of the codec where there is one.

    By a codec without a rule the first sum must be what the codec gives in memory, bit for bit; later sums depend on
    all before. All ranks have the same bits in any case: `digest`.
    """

    def __init__(self, method: MethodName, numbers: ExactInputs, workers: int, dtype: str, elements: int) -> None:
        """elements: of a row of the switch whose bits the method gives."""
        spec = method.spec if dtype == "float32" else None
        self._method, self.numbers, self._workers, self._elements = method, numbers, workers, elements
        self._tolerance = tolerance(method, workers, dtype)
        self._spec = spec if spec is not None and spec.lossy and not self._tolerance else None
        self._least = spec.least if spec is not None else 0
        self._lossy = bool(self._tolerance) or self._spec is not None
        self._operations = 0

    def wrong(self, array: Array, operation: int) -> int:
        """How many elements are not what they must be."""
        if self._spec is None or len(array) < self._least:
            return self.numbers.wrong(array, operation, self._tolerance if len(array) >= self._least else 0.0)
        self._operations += 1
        if self._operations > 1:
            return 0
        arrays, spec = self.numbers.of_all(len(array), operation), self._spec
        ranks = [Compression(spec, rank, self._workers) for rank in range(self._workers)]
        sum_together(ranks, arrays, tensors_of(self._method, array), elements=self._elements)
        expected = arrays[0]
        if isinstance(spec.codec, ArrayCodec) and spec.codec.adds:
            allowed = FLOATS_OFF * float(np.abs(expected).max())
            return len(array) - int(np.count_nonzero(np.abs(array - expected) <= allowed))
        return int(np.count_nonzero(array.view(np.uint32) != expected.view(np.uint32)))

    def digest(self, array: Array) -> int:
        """A digest of the result's bits; 0 where the result must be exact."""
        return zlib.crc32(array.data) if self._lossy else 0
