"""Sums through a codec of several ranks in one process, step by step, in memory: for tests and studies."""

from collections.abc import Iterable, Sequence

import numpy as np

from switchagg.calls.array_calls import Begin, begin_in_python, plain_rounds
from switchagg.codecs.array_codec import Reduction, Tensors
from switchagg.codecs.codec import Array
from switchagg.codecs.compression import Compression
from switchagg.codecs.rounding import call_key


def sum_together(
    compressions: Sequence[Compression],
    arrays: Sequence[Array],
    tensors: Tensors | None = None,
    key: int = 0,
    elements: int = 360,
    begin: Begin = begin_in_python,
) -> None:
    """Sum one array of each rank, in place. key: the number of the call. elements: E of the switch whose bits it gives.
    begin: codes rows, as of `rounds_of`.

    Where a codec leaves a sum of floats to its carrier, ranks are added in their order.
    """
    calls = [compression.rounds(array, tensors, key) for compression, array in zip(compressions, arrays, strict=True)]
    _together(calls, key, elements, begin)


def carry_out(steps: Sequence[Reduction], key: int = 0, elements: int = 360) -> None:
    """A reduction of all ranks, in place."""
    _together([(step,) for step in steps], key, elements)


def _together(calls: Sequence[Iterable[Reduction]], key: int, elements: int, begin: Begin = begin_in_python) -> None:
    keys = [call_key(0, rank, 0, key) for rank in range(len(calls))]
    plain = [plain_rounds(call, elements, len(calls), key, begin) for call, key in zip(calls, keys, strict=True)]
    for steps in zip(*plain, strict=True):
        first = steps[0]
        assert all((step.kind, step.op) == (first.kind, first.op) for step in steps)
        assert all((step.array.shape, step.array.dtype) == (first.array.shape, first.array.dtype) for step in steps)
        combine([step.array for step in steps], first.kind, first.op)


def combine(arrays: Sequence[Array], kind: str = "allreduce", op: str = "sum") -> None:
    """A collective of all ranks, in place."""
    workers, size = len(arrays), len(arrays[0])
    if kind == "all_gather":
        bounds = [size * rank // workers for rank in range(workers + 1)]
        result = np.concatenate([a[bounds[rank] : bounds[rank + 1]] for rank, a in enumerate(arrays)])
    else:
        result = arrays[0].copy()
        for array in arrays[1:]:
            (np.add if op == "sum" else np.maximum)(result, array, out=result)
    for array in arrays:
        array[:] = result
