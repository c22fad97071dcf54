"""The effect of calls without packets on arrays: sums of all ranks, in the order of ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.description import Kind, shard_range

Array = NDArray[Any]


def combine(arrays: Sequence[Array], op: str = "sum") -> None:
    """The sum, or the maximum, of all ranks' arrays in each of them; rounded after each addition, in order of ranks."""
    add = np.maximum if op == "max" else np.add
    total = arrays[0].copy()
    for array in arrays[1:]:
        add(total, array, out=total)
    for array in arrays:
        array[:] = total


def carry_out(kind: Kind, arrays: Sequence[Array], op: str, root: int) -> None:
    """A collective in place. Elements that a rank doesn't receive keep their values, or have those that another rank
    received."""
    workers = len(arrays)
    if kind in ("allreduce", "reduce", "reduce_scatter"):
        combine(arrays, op)
    elif kind == "broadcast":
        for array in arrays:
            array[:] = arrays[root]
    elif kind == "all_gather":
        for rank, array in enumerate(arrays):
            low, high = shard_range(array.size, rank, workers)
            for other in arrays:
                other[low:high] = array[low:high]


def in_rounds(rounds: Sequence[Iterator[tuple[Array, str]]]) -> None:
    """Rounds of all ranks side by side, each combined before the next (`switchagg.calls.array_calls.rounds_of`)."""
    for together in zip(*rounds, strict=True):
        combine([words for words, _ in together], together[0][1])
