"""Known sums: calls of every kind on integers whose results follow from arithmetic, in flight together, each compared
with ==."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

LONG, WIDE, SHORT, SHARD = 20_000, 3_000, 8, 500
"""Elements: many chunks of int32; int64, which are split; a call of one packet; a rank's shard."""

BEYOND_INT32 = 1 << 33


class KnownSums:
    """The calls of one step. `start` them before others, `check` them later; the last gives whether to stop."""

    def start(self, rank: int, workers: int, step: int, stop: bool) -> None:
        """Submits all calls. stop: this rank wants the job to end after this step."""
        self._workers, triangle, begin = workers, workers * (workers + 1) // 2, torch.arange
        self._pending: list[tuple[str, Any, Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = []

        long = begin(LONG, dtype=torch.int32) * (rank + 1) + step
        expected = begin(LONG, dtype=torch.int32) * triangle + step * workers
        self._add("allreduce of int32", dist.all_reduce(long, async_op=True), long, expected)

        wide = begin(WIDE, dtype=torch.int64) * BEYOND_INT32 * (rank + 1) - step
        expected = begin(WIDE, dtype=torch.int64) * BEYOND_INT32 * triangle - step * workers
        self._add("allreduce of int64", dist.all_reduce(wide, async_op=True), wide, expected)

        highest = begin(SHORT, dtype=torch.int32) * (rank - workers) + step
        expected = -begin(SHORT, dtype=torch.int32) + step
        self._add("max", dist.all_reduce(highest, dist.ReduceOp.MAX, async_op=True), highest, expected)

        root = step % workers
        values = begin(LONG, dtype=torch.int32) - step if rank == root else torch.zeros(LONG, dtype=torch.int32)
        self._add(
            "broadcast", dist.broadcast(values, root, async_op=True), values, begin(LONG, dtype=torch.int32) - step
        )

        shards = begin(SHARD * workers, dtype=torch.int32) * (rank + 1) + step
        shard = torch.empty(SHARD, dtype=torch.int32)
        first = SHARD * rank
        expected = begin(first, first + SHARD, dtype=torch.int32) * triangle + step * workers
        self._add("reduce-scatter", dist.reduce_scatter_tensor(shard, shards, async_op=True), shard, expected)

        gathered = torch.empty(SHARD * workers, dtype=torch.int32)
        part = begin(first, first + SHARD, dtype=torch.int32) ^ step
        expected = begin(SHARD * workers, dtype=torch.int32) ^ step
        self._add("all-gather", dist.all_gather_into_tensor(gathered, part, async_op=True), gathered, expected)

        self._stop = torch.full((SHORT,), int(stop), dtype=torch.int32)
        self._stop_call: Any = dist.all_reduce(self._stop, async_op=True)

    def check(self) -> tuple[int, list[str], bool]:
        """Waits for all: how many sums were right, what was wrong with the others, and whether some rank wants to end.

        Raises what a failed call raises.
        """
        faults = []
        for what, work, expected in self._pending:
            work.wait()
            result, right = expected()
            if not torch.equal(result, right):
                at = int((result != right).nonzero()[0])
                faults.append(f"{what}: element {at} is {int(result[at])}, not {int(right[at])}")
        self._stop_call.wait()
        stops = int(self._stop[0])
        if not 0 <= stops <= self._workers or bool((self._stop != stops).any()):
            faults.append(f"allreduce of flags: {self._stop.tolist()}")
        return len(self._pending) + 1 - len(faults), faults, stops > 0

    def _add(self, what: str, work: Any, result: torch.Tensor, expected: torch.Tensor) -> None:
        self._pending.append((what, work, lambda: (result, expected)))
