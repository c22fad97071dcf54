"""Sums through a codec of several ranks in one process, step by step, in memory: for tests and studies."""

from collections.abc import Sequence

import numpy as np

from switchagg.call import rounds_of
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
) -> None:
    """Sum one array of each rank, in place. key: the number of the call. elements: E of the switch whose bits it gives.

    Where a codec leaves a sum of floats to its carrier, ranks are added in their order.
    """
    calls = [one.rounds(array, tensors, key) for one, array in zip(compressions, arrays, strict=True)]
    while True:
        steps = [next(call, None) for call in calls]
        every = [step for step in steps if step is not None]
        if len(every) != len(steps):
            assert not every, "ranks disagree on how many rounds there are"
            return
        carry_out(every, key, elements)


def carry_out(steps: Sequence[Reduction], key: int = 0, elements: int = 360) -> None:
    """A reduction of all ranks, in place."""
    first, workers = steps[0], len(steps)
    assert all((one.kind, one.op, one.codec) == (first.kind, first.op, first.codec) for one in steps)
    assert all(one.array.shape == first.array.shape and one.array.dtype == first.array.dtype for one in steps)
    if first.codec is None:
        combine([one.array for one in steps], first.kind, first.op)
        return
    coded = [
        rounds_of(one.array, elements, workers, first.codec, key=call_key(0, rank, 0, key), residual=one.residual)
        for rank, one in enumerate(steps)
    ]
    for rounds in zip(*coded, strict=True):
        combine([words for words, _ in rounds], "allreduce", rounds[0][1])


def combine(arrays: Sequence[Array], kind: str = "allreduce", op: str = "sum") -> None:
    """A collective of all ranks, in place."""
    workers, size = len(arrays), len(arrays[0])
    if kind == "all_gather":
        bounds = [size * rank // workers for rank in range(workers + 1)]
        whole = np.concatenate([a[bounds[rank] : bounds[rank + 1]] for rank, a in enumerate(arrays)])
    else:
        whole = arrays[0].copy()
        for array in arrays[1:]:
            (np.add if op == "sum" else np.maximum)(whole, array, out=whole)
    for array in arrays:
        array[:] = whole
