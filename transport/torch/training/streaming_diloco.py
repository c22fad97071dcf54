"""Streaming DiLoCo: the model in F fragments, each with a round of its own, which travels while ranks go on computing.

Every H/F steps the next fragment is applied. It was sent `delay` steps before, and parameters have changed since, so
w_i <- (1 - mix) w0 + mix w_i. Fragments are runs of parameters, of about equal size. Buffers with floats are
averaged when the last fragment is applied. Douillard et al., *Streaming DiLoCo with overlapping communication*, 2025.
"""

from dataclasses import dataclass
from typing import Any

import torch

from switchagg.option_syntax import count, decimal, option
from transport.torch.training.diloco import DiLoCo, OuterOptimizer
from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.replica import PendingCollectives, Replica
from transport.torch.training.training_method import AttachedMethod


@dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """fragments: F, which divides the period. delay: steps that a fragment travels, below period / F. mix: share of a
    rank's own parameters when a fragment is applied; 0: all ranks have the same bits then."""

    name = "streaming_diloco"
    label = "Streaming DiLoCo"
    summary = "DiLoCo by fragments, which travel while ranks compute"

    period: int = option("period", count(1), 100)
    fragments: int = option("fragments", count(1), 4)
    delay: int = option("delay", count(0), 1)
    mix: float = option("mix", decimal(1), 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period % self.fragments:
            raise ValueError(f"{self.name}: period={self.period} is no multiple of fragments={self.fragments}")
        if self.delay >= self.interval:
            raise ValueError(f"{self.name}: delay={self.delay}: must be below period / fragments = {self.interval}")

    @property
    def interval(self) -> int:
        """Steps between two fragments' turns."""
        return self.period // self.fragments

    def begin(self, replica: Replica) -> AttachedMethod:
        if len(replica.parameters) < self.fragments:
            raise ValueError(
                f"{self.name}: fragments={self.fragments}: the model has {len(replica.parameters)} tensors"
            )
        return _Streaming(self, replica)


class _Streaming(AttachedMethod):
    def __init__(self, method: StreamingDiLoCo, replica: Replica) -> None:
        super().__init__(method, replica)
        self._options = method
        self._tensors = fragments_of(replica.parameters, method.fragments)
        self._outers = [OuterOptimizer(tensors, method.rate, method.momentum) for tensors in self._tensors]
        self._applied = [0] * method.fragments  # the step that applied each fragment last
        self._flight: tuple[int, PendingCollectives] | None = None  # the fragment whose turn is next
        self._landed: tuple[int, FlatTensors] | None = None

    def after_step(self, step: int) -> None:
        interval, delay, n = self._options.interval, self._options.delay, self._options.fragments
        if (step + delay) % interval == 0:
            fragment = ((step + delay) // interval - 1) % n
            self._flight = (fragment, self._outers[fragment].start(self._replica))
        if step % interval == 0:
            self._apply()
            if (step // interval) % n == 0:
                self._replica.average(self._replica.buffers)

    def _land(self) -> None:
        """Wait for the sum in flight, and keep it until it is applied."""
        if self._flight is not None:
            fragment, moved = self._flight
            self._landed, self._flight = (fragment, moved.mean()), None

    def _apply(self) -> None:
        self._land()
        if self._landed is None:  # `finish` has done it
            return
        fragment, moved = self._landed
        self._landed = None
        self._step(fragment, moved, self._options.mix)

    def _step(self, fragment: int, moved: FlatTensors, mix: float) -> None:
        self._outers[fragment].step(moved)
        self._applied[fragment] = self.steps
        for local, shared in zip(self._tensors[fragment], self._outers[fragment].shared.views, strict=True):
            local.detach().copy_(shared.lerp(local.to(shared.dtype), mix) if mix else shared)

    def complete(self) -> None:
        self._apply()
        for fragment, outer in enumerate(self._outers):
            if self._applied[fragment] < self.steps:
                self._step(fragment, outer.start(self._replica).mean(), 0.0)
            outer.shared.write(self._tensors[fragment])

    def state(self) -> dict[str, Any]:
        self._land()
        return {
            "outers": [outer.state() for outer in self._outers],
            "applied": list(self._applied),
            "landed": None if self._landed is None else (self._landed[0], self._landed[1].state()),
        }

    def load(self, state: dict[str, Any]) -> None:
        self._land()
        for outer, saved in zip(self._outers, state["outers"], strict=True):
            outer.load(saved)
        self._applied = list(state["applied"])
        self._landed = None
        if state["landed"] is not None:
            fragment, saved = state["landed"]
            self._landed = (fragment, FlatTensors(self._tensors[fragment]).load(saved))


def fragments_of(parameters: list[torch.Tensor], fragments: int) -> list[list[torch.Tensor]]:
    """Runs of parameters in order, none empty; a run ends where its share of all values is nearest."""
    runs: list[list[torch.Tensor]] = []
    left, values = list(parameters), sum(parameter.numel() for parameter in parameters)
    for fragment in range(fragments, 0, -1):
        share, run_values = values / fragment, 0
        run: list[torch.Tensor] = []
        while len(left) >= fragment and (not run or fragment == 1 or run_values + left[0].numel() / 2 <= share):
            run_values += left[0].numel()
            run.append(left.pop(0))
        values -= run_values
        runs.append(run)
    return runs
