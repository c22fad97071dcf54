"""DiLoCo: each rank takes H steps alone; the mean of their changes is the gradient of an outer optimiser.

    every H steps:  delta_i = w0 - w_i;  w0 <- outer(w0, sum(delta) / n);  w_i <- w0

outer is SGD with Nesterov momentum, the inner optimiser the user's, usually AdamW, whose state stays each rank's own.
Buffers with floats are averaged in the same rounds. Douillard et al., *DiLoCo: Distributed Low-Communication Training
of Language Models*, 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchagg.option_syntax import count, decimal, option
from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.replica import PendingCollectives, Replica
from transport.torch.training.training_method import AttachedMethod, TrainingMethod


@dataclass(frozen=True)
class DiLoCo(TrainingMethod):
    """period: H, in steps. rate, momentum: of the outer optimiser."""

    name = "diloco"
    label = "DiLoCo"
    summary = "each rank steps by itself; after each period an outer optimiser steps by the mean of the changes"

    period: int = option("period", count(1), 500)
    rate: float = option("rate", decimal(), 0.7)
    momentum: float = option("momentum", decimal(1), 0.9)

    @property
    def round_steps(self) -> int:
        return self.period

    def begin(self, replica: Replica) -> AttachedMethod:
        return _DiLoCo(self, replica)


class OuterOptimizer:
    """The outer optimiser of these tensors: the shared copy (w0), and its steps."""

    def __init__(self, tensors: Sequence[torch.Tensor], rate: float, momentum: float) -> None:
        self._tensors = tensors
        self.shared = FlatTensors(tensors).read(tensors)
        self._optimizer = torch.optim.SGD(self.shared.arrays, lr=rate, momentum=momentum, nesterov=momentum > 0)

    def start(self, replica: Replica) -> PendingCollectives:
        """The mean of how far the ranks' own parameters have moved."""
        moved = FlatTensors(self._tensors).read(self._tensors)
        for local, shared in zip(moved.arrays, self.shared.arrays, strict=True):
            torch.sub(shared, local, out=local)
        return replica.start_sum(moved)

    def step(self, moved: FlatTensors) -> None:
        """Step by a mean."""
        for shared, gradient in zip(self.shared.arrays, moved.arrays, strict=True):
            shared.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"shared": self.shared.state(), "outer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.shared.load(state["shared"])
        self._optimizer.load_state_dict(state["outer"])


class _DiLoCo(AttachedMethod):
    def __init__(self, method: DiLoCo, replica: Replica) -> None:
        super().__init__(method, replica)
        self._period = method.period
        self._outer = OuterOptimizer(replica.parameters, method.rate, method.momentum)

    def after_step(self, step: int) -> None:
        if step % self._period == 0:
            self._round()

    def _round(self) -> None:
        moved = self._outer.start(self._replica)
        self._replica.average(self._replica.buffers)
        self._outer.step(moved.mean())
        self._outer.shared.write(self._replica.parameters)

    def complete(self) -> None:
        if self.steps % self._period:
            self._round()

    def state(self) -> dict[str, Any]:
        return self._outer.state()

    def load(self, state: dict[str, Any]) -> None:
        self._outer.load(state)
