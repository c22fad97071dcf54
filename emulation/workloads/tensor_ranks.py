"""Tensor parallelism of all ranks in one process: real shares of layers, for networks in virtual time.

A rank's forward and backward pass run in a thread that stops at each allreduce, until the network has done it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from emulation.workloads.replicas import Replicas
from emulation.workloads.units import blocks_of
from emulation.workloads.workload import RankWorkload, Score

Array = NDArray[np.float32]
Reduce = Callable[[torch.Tensor], torch.Tensor]
COLUMNS = ("attention.query_linear", "attention.key_linear", "attention.value_linear", "net.linear")
ROWS = ("attention.residual", "net.residual")
PARTS = ("attention", "net")
STOPS_PER_BLOCK = 2 * len(PARTS)  # allreduces: where rows meet, and in the backward pass where columns do


class _Enter(torch.autograd.Function):
    """Values that all ranks have, into layers of which each has some columns: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        ctx.reduce = reduce
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.reduce(gradient), None


class _Leave(torch.autograd.Function):
    """The sum of the outputs of all ranks' rows."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        return reduce(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


_enter: Callable[..., torch.Tensor] = _Enter.apply
_leave: Callable[..., torch.Tensor] = _Leave.apply


class RowLinear(nn.Module):
    """Some rows of a linear layer; the bias is added to the sum."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, reduce: Reduce) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self._reduce = reduce

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = _leave(functional.linear(values, self.weight), self._reduce)
        return summed + self.bias


class TensorRank:
    """A rank's computing with its share of the workload's model."""

    def __init__(self, workload: RankWorkload, rank: int, workers: int) -> None:
        self.workload = workload
        self.loss = 0.0
        self.cut: dict[str, int] = {}  # parameter -> the dimension in which it is cut
        self._reduce: Reduce = lambda values: values
        model = workload.model
        with torch.no_grad():
            for block in blocks_of(model):
                for name in COLUMNS:
                    layer = model.get_submodule(f"{block}.{name}")
                    for parameter in ("weight", "bias"):
                        full: torch.Tensor = getattr(layer, parameter)
                        setattr(layer, parameter, nn.Parameter(full.chunk(workers, 0)[rank].clone()))
                        self.cut[f"{block}.{name}.{parameter}"] = 0
                for name in ROWS:
                    layer = model.get_submodule(f"{block}.{name}")
                    weight, bias = layer.weight, layer.bias
                    assert isinstance(weight, torch.Tensor)
                    assert isinstance(bias, torch.Tensor)
                    rows = RowLinear(weight.chunk(workers, 1)[rank].clone(), bias.clone(), self._sum)
                    model.get_submodule(f"{block}.{name.partition('.')[0]}").residual = rows
                    self.cut[f"{block}.{name}.weight"] = 1
                for name in PARTS:
                    model.get_submodule(f"{block}.{name}").register_forward_pre_hook(
                        lambda _, inputs: (_enter(inputs[0], self._sum), *inputs[1:])
                    )
        workload.optimizer = workload.fused_steps_of(model.parameters())

    def iterate(self, iteration: int) -> Iterator[Array]:
        """Forward and backward. Yields arrays, which must be allreduced in place before it goes on, and sets `loss`."""
        stops: SimpleQueue[Array | BaseException | None] = SimpleQueue()
        words: SimpleQueue[bool] = SimpleQueue()

        def reduce(values: torch.Tensor) -> torch.Tensor:
            copy = values.detach().clone(memory_format=torch.contiguous_format)
            stops.put(copy.numpy().reshape(-1))
            if not words.get():
                raise RuntimeError("the run has ended")
            return copy

        def compute() -> None:
            self._reduce = reduce
            try:
                loss = self.workload.loss(self.workload.model, iteration)
                loss.backward()
                self.loss = loss.item()
            except BaseException as error:
                stops.put(error)
            else:
                stops.put(None)

        thread = Thread(target=compute, name="a rank of tensor parallelism", daemon=True)
        thread.start()
        going = False
        try:
            while (stop := stops.get()) is not None:
                if isinstance(stop, BaseException):
                    raise stop
                yield stop
                words.put(True)
            going = True
        finally:
            if not going:
                words.put(False)
            thread.join()

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        return self._reduce(values)


class TensorReplicas(Replicas):
    """All ranks of a workload with tensor parallelism: the same samples for each."""

    def __init__(self, name: str, seed: int, workers: int, *more: Any) -> None:
        super().__init__(name, seed, workers, *more)
        self._parameter_count = super().parameters
        self.blocks = len(blocks_of(self.workloads[0].model))
        self.ranks = [TensorRank(workload, rank, workers) for rank, workload in enumerate(self.workloads)]

    def _shares(self, workers: int) -> Sequence[tuple[int, int]]:
        return [(0, 1)] * workers

    @property
    def parameters(self) -> int:
        return self._parameter_count

    def evaluate(self) -> Score:
        return self._gathered(0).evaluate()

    def parameter_hashes(self) -> list[str]:
        """sha256 of each rank's parameters, with the other ranks' shares of layers that are cut."""
        return [self._gathered(rank).parameter_sha256() for rank in range(len(self.ranks))]

    def _gathered(self, rank: int) -> RankWorkload:
        """A rank's whole model."""
        workload = self.workloads[rank]
        every = [dict(other.model.named_parameters()) for other in self.workloads]
        model = workload.task.build_model()
        with torch.no_grad():
            for name, target in model.named_parameters():
                dimension = self.ranks[rank].cut.get(name)
                if dimension is None:
                    target.copy_(every[rank][name])
                else:
                    target.copy_(torch.cat([parameters[name] for parameters in every], dimension))
        return workload.with_model(model)
