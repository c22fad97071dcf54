"""Known sums: the known calls of a step by PyTorch, in flight together, each compared with ==."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from emulation.experiments.chaos.known_calls import KnownCall, known_calls, stop_call, stop_fault


class KnownSums:
    """The calls of one step. `start` them before others, `check` them later; the last gives whether to stop."""

    def start(self, rank: int, workers: int, step: int, stop: bool) -> None:
        """Submits all calls. stop: this rank wants the job to end after this step."""
        self._workers = workers
        self._pending = [(call, *_begin(call)) for call in known_calls(rank, workers, step)]
        self._stop = torch.from_numpy(stop_call(stop))
        self._stop_call: Any = dist.all_reduce(self._stop, async_op=True)

    def check(self) -> tuple[int, list[str], bool]:
        """Waits for all: how many sums were right, what was wrong with the others, and whether some rank wants to end.

        Raises what a failed call raises.
        """
        faults = []
        for call, work, result in self._pending:
            work.wait()
            faults.append(call.fault(result.numpy()))
        self._stop_call.wait()
        faults = [fault for fault in (*faults, stop_fault(self._stop.numpy(), self._workers)) if fault]
        return len(self._pending) + 1 - len(faults), faults, int(self._stop[0]) > 0


def _begin(call: KnownCall) -> tuple[Any, torch.Tensor]:
    """The call under way, and its result."""
    array = torch.from_numpy(call.array)
    match call.kind:
        case "broadcast":
            return dist.broadcast(array, call.root, async_op=True), array
        case "reduce_scatter":
            shard = torch.empty_like(array[call.shard])
            return dist.reduce_scatter_tensor(shard, array, async_op=True), shard
        case "all_gather":
            gathered = torch.empty_like(array)
            return dist.all_gather_into_tensor(gathered, array[call.shard].clone(), async_op=True), gathered
        case _:
            op = dist.ReduceOp.MAX if call.op == "max" else dist.ReduceOp.SUM
            return dist.all_reduce(array, op, async_op=True), array
