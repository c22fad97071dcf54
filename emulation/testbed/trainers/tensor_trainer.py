"""A rank of a run with tensor parallelism: `parallelize_module` on every block, and the times of each allreduce.

All ranks compute with the same samples, each with some columns and rows of a block's layers. Where rows meet, and in
the backward pass where columns do, ranks allreduce their partial values: four times for a block, and computing waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from emulation.testbed.trainers.ddp_trainer import join_process_group
from emulation.testbed.trainers.fsdp_trainer import FsdpTrainer
from emulation.testbed.trainers.trainer_messages import TransferTimes
from emulation.workloads.units import blocks_of
from emulation.workloads.workload import RankWorkload
from switchagg.description import Kind


class TimedAllreduces(TorchDispatchMode):
    """Notes the times of DTensor's allreduces, from the call until something waited for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        """Forget what ended."""
        self.spans: list[TransferTimes] = []
        self.waited_ns = 0
        self._pending: deque[TransferTimes] = deque()

    @property
    def moved_bytes(self) -> dict[Kind, int]:
        """Bytes of the arrays."""
        return {"allreduce": sum(span.size_bytes for span in self.spans)}

    def finish(self) -> None:
        """Do nothing: every allreduce is waited for."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # the tensors that they consist of come here
        name = str(func)
        if name == "_c10d_functional.all_reduce.default":
            span = TransferTimes(args[0].nbytes, time.monotonic_ns(), name=f"allreduce {len(self.spans)}")
            self.spans.append(span)
            self._pending.append(span)
        since_ns = time.monotonic_ns()
        result = func(*args, **(kwargs or {}))
        if name == "_c10d_functional.wait_tensor.default" and self._pending:
            span = self._pending.popleft()
            span.end_ns = time.monotonic_ns()
            self.waited_ns += span.end_ns - since_ns
        return result


def _replicated_inputs() -> ParallelStyle:
    return PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))


def plan_of(block: str) -> dict[str, ParallelStyle]:
    """How a block's layers are cut, by their names."""
    columns = [f"{block}.attention.{name}_linear" for name in ("query", "key", "value")]
    return {
        f"{block}.attention": _replicated_inputs(),
        f"{block}.net": _replicated_inputs(),
        **{name: ColwiseParallel() for name in (*columns, f"{block}.net.linear")},
        **{f"{block}.{part}.residual": RowwiseParallel() for part in ("attention", "net")},
    }


class TensorTrainer(FsdpTrainer):
    """See the module. The end is as under FSDP2."""

    def _share(self) -> tuple[int, int]:
        return 0, 1

    def _attach(self, workload: RankWorkload) -> None:
        join_process_group(self.config)
        self._model = workload.model
        self._collectives = TimedAllreduces()
        mesh = init_device_mesh("cpu", (self.config.workers,))
        for block in blocks_of(self._model):
            parallelize_module(self._model, mesh, plan_of(block))
        kinds: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for parameter in self._model.parameters():
            kinds[isinstance(parameter, DTensor)].append(parameter)
        workload.optimizer = workload.optimizer_of(
            [{"params": parameters} for parameters in kinds]
        )  # a fused step takes one kind
        dist.all_reduce(torch.zeros(1))  # whatever makes its threads at the first call makes them now
        self._check_path()

    def _notes(self) -> list[str]:
        return [
            "Tensor parallelism: all ranks compute with the same samples, each with some heads and inner values of "
            "every block; two allreduces of a block's activations in the forward and two in the backward pass, none of "
            "which overlaps with computing. Parameters are gathered for an evaluation only at the end."
        ]

    def _gradient_bytes(self, workload: RankWorkload) -> int:
        return sum(self._moved_bytes.values())

    def _gathered(self) -> list[torch.Tensor]:
        return [p.full_tensor() if isinstance(p, DTensor) else p for p in self._model.parameters()]

    def _loss(self, workload: RankWorkload, iteration: int) -> torch.Tensor:
        with self._collectives:
            return super()._loss(workload, iteration)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._collectives:
            super()._backward(loss)
