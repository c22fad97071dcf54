"""Known calls: one of every kind, on integers whose results follow from arithmetic. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LONG, WIDE, SHORT, SHARD = 20_000, 3_000, 8, 500
"""Elements: many chunks of int32; int64, which are split; a call of one packet; a rank's shard."""

BEYOND_INT32 = 1 << 33


class KnownCall(NamedTuple):
    """A call of one rank. array: what it gives, whole; the values are the call's from then on. shard: this rank's part
    of it. expected: the result: of the whole array, of a reduce-scatter that of the shard."""

    what: str
    kind: str
    op: str
    root: int
    array: NDArray[Any]
    shard: slice
    expected: NDArray[Any]

    def fault(self, result: NDArray[Any]) -> str:
        """What is wrong with a result, or ""."""
        if np.array_equal(result, self.expected):
            return ""
        at = int((result != self.expected).nonzero()[0][0])
        return f"{self.what}: element {at} is {int(result[at])}, not {int(self.expected[at])}"


def known_calls(rank: int, workers: int, step: int) -> list[KnownCall]:
    """The calls of a step, which are in flight together."""
    numbers, triangle, root = np.arange(LONG, dtype=np.int32), workers * (workers + 1) // 2, step % workers
    wide, short = np.arange(WIDE, dtype=np.int64) * BEYOND_INT32, numbers[:SHORT]
    shards, shard = numbers[: SHARD * workers], slice(SHARD * rank, SHARD * (rank + 1))
    shard_values = np.zeros_like(shards)
    shard_values[shard] = shards[shard] ^ step

    def call(what: str, kind: str, array: NDArray[Any], expected: NDArray[Any], op: str = "sum") -> KnownCall:
        return KnownCall(what, kind, op, root if kind == "broadcast" else 0, array, shard, expected)

    return [
        call("allreduce of int32", "allreduce", numbers * (rank + 1) + step, numbers * triangle + step * workers),
        call("allreduce of int64", "allreduce", wide * (rank + 1) - step, wide * triangle - step * workers),
        call("max", "allreduce", short * (rank - workers) + step, step - short, op="max"),
        call("broadcast", "broadcast", (numbers - step) * np.int32(rank == root), numbers - step),
        call("reduce-scatter", "reduce_scatter", shards * (rank + 1) + step, shards[shard] * triangle + step * workers),
        call("all-gather", "all_gather", shard_values, shards ^ step),
    ]


def stop_call(stop: bool) -> NDArray[np.int32]:
    """The array of the step's last call: its sum says how many ranks want to end."""
    return np.full(SHORT, int(stop), np.int32)


def stop_fault(stops: NDArray[Any], workers: int) -> str:
    """What is wrong with that sum, or ""."""
    right = 0 <= stops[0] <= workers and bool((stops == stops[0]).all())
    return "" if right else f"allreduce of flags: {stops.tolist()}"
