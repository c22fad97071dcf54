"""Workloads: real models on real data that every machine has already, data-parallel, seeded, with held-out data.

The tasks are in tasks/. Nothing is downloaded. No layer keeps running statistics (as BatchNorm does), so gradients
are all that ranks exchange and equal gradients keep ranks equal.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from emulation.scenario.errors import WorkloadError
from emulation.scenario.scenario_tables import ADAMW, SGD
from emulation.scenario.workload_kinds import WORKLOADS
from emulation.workloads.fused_steps import FusedSteps
from emulation.workloads.tasks.task import Batch, LearningTask

WEIGHT_DECAY = 0.01
WARM_UP_STEPS = 10  # the learning rate rises over these: large first steps of AdamW cost more than they bring


@dataclass(frozen=True)
class Score:
    """On held-out data. accuracy: share of right answers, 0 … 1. loss: mean cross-entropy, nats per answer."""

    accuracy: float
    loss: float


class RankWorkload:
    """A rank's share of a task: its model, its batches, its optimiser.

    model: initial parameters follow from the seed alone: the same bits on every rank, without communication.
    optimizer: "adamw": the rate rises over WARM_UP_STEPS and falls to zero along a cosine at `iterations`; "sgd": at
    the task's constant rate.
    """

    def __init__(
        self,
        task: LearningTask,
        seed: int,
        rank: int,
        workers: int,
        batch_per_worker: int,
        iterations: int,
        optimizer: str,
    ) -> None:
        if task.samples < workers * batch_per_worker:
            raise WorkloadError(
                f"workload {task.name}: {workers} workers x {batch_per_worker} samples is more than the "
                f"{task.samples} it has to learn from; lower batch_per_worker to {task.samples // workers} or less"
            )
        self.task = task
        self.seed, self.rank, self.workers = seed, rank, workers
        self.batch_per_worker, self.iterations = batch_per_worker, iterations
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = task.build_model()
        self._constant_rate = task.sgd_learning_rate if optimizer == SGD else None
        self._peak_rate = task.peak_learning_rate
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    @cached_property
    def optimizer(self) -> Any:
        """PyTorch's own, unless it was set to another that steps the model."""
        return self.optimizer_of(self.model.parameters())

    def fused_steps_of(self, parameters: Iterable[torch.Tensor]) -> FusedSteps:
        """What steps as `optimizer_of` does, with the same bits."""
        if self._constant_rate is not None:
            return FusedSteps(parameters, self._constant_rate)
        return FusedSteps(parameters, self.task.peak_learning_rate, WEIGHT_DECAY)

    def optimizer_of(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """The workload's optimiser for these: the model's parameters, or a rank's shards of them."""
        # Fused: one pass over the parameters, a third of the time of the other implementations on a CPU.
        if self._constant_rate is not None:
            return torch.optim.SGD(parameters, lr=self._constant_rate, fused=True)
        return torch.optim.AdamW(parameters, lr=self.task.peak_learning_rate, weight_decay=WEIGHT_DECAY, fused=True)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def gradient_bytes(self) -> int:
        """float32 bytes that are summed over the ranks in each iteration."""
        return 4 * self.parameters

    def sample_indices(self, iteration: int) -> np.ndarray:
        """Samples (batch_per_worker,) of this rank. Within an epoch no sample comes twice, on any rank.

        Samples that don't fill a batch on all ranks are left out of that epoch; the next epoch shuffles again.
        """
        together = self.workers * self.batch_per_worker
        epoch, step = divmod(iteration, self.task.samples // together)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.task.samples)
            self._epoch = epoch
        first = step * together + self.rank * self.batch_per_worker
        return self._order[first : first + self.batch_per_worker]

    def train_batch(self, iteration: int) -> Batch:
        generator = np.random.default_rng([self.seed, iteration, self.rank])
        return self.task.batch(self.sample_indices(iteration), generator)

    def loss(self, model: nn.Module, iteration: int) -> torch.Tensor:
        """Mean cross-entropy of this rank's batch, a scalar to call `backward` on. model: ours, or DDP around it."""
        inputs, targets = self.train_batch(iteration)
        return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def learning_rate(self, iteration: int) -> float:
        if self._constant_rate is not None:
            return self._constant_rate
        rise = min(1.0, (iteration + 1) / WARM_UP_STEPS)
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, iteration / self.iterations)))
        return self._peak_rate * rise * fall

    def use_sgd(self, rate: float, momentum: float) -> None:
        """From now on steps of SGD with momentum, at a rate that rises to `rate` and falls to zero as AdamW's does."""
        self._constant_rate, self._peak_rate = None, rate
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum, fused=True)

    def step(self, iteration: int) -> None:
        """Step the optimiser along the gradients, and drop them."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(iteration)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def ps_options(self) -> dict[str, Any]:
        """Fields of PsConfig for servers that make our steps. They step by each rank's gradient, at 1/n of the rate."""
        sizes = tuple(4 * parameter.numel() for parameter in self.model.parameters())
        return {"learning_rate": self.task.sgd_learning_rate / self.workers, "tensor_bytes": sizes}

    def evaluate(self) -> Score:
        right, loss, answers = 0, 0.0, 0
        with torch.no_grad():
            for inputs, targets in self.task.held_out():
                logits, wanted = self.model(inputs).flatten(0, -2), targets.flatten()
                right += int((logits.argmax(1) == wanted).sum())
                loss += float(functional.cross_entropy(logits, wanted, reduction="sum"))
                answers += len(wanted)
        return Score(right / answers, loss / answers)

    def replica(self) -> RankWorkload:
        """The same with a model and an optimiser of its own, whose parameters are initial ones of any seed."""
        with torch.random.fork_rng(devices=[]):
            other = self.with_model(self.task.build_model())
        other.optimizer = other.optimizer_of(other.model.parameters())
        return other

    def with_model(self, model: nn.Module) -> RankWorkload:
        """The same with another model, to evaluate it."""
        other = copy.copy(self)
        other.model = model
        return other

    def parameter_sha256(self) -> str:
        """sha256 of all parameters' bits, in the model's order."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(np.ascontiguousarray(parameter.detach().numpy()).data)
        return digest.hexdigest()


def learning_task(name: str) -> LearningTask:
    """The task of workload `name`, with its data and model. Raises WorkloadError."""
    if name not in WORKLOADS:
        raise WorkloadError(f"no workload {name!r}; there are: {', '.join(WORKLOADS)}")
    make = WORKLOADS[name].make
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(import_module(module), attribute)
    task: LearningTask = make()
    return task


def build_workload(
    name: str,
    seed: int,
    rank: int,
    workers: int,
    batch_per_worker: int,
    iterations: int = 150,
    optimizer: str = ADAMW,
) -> RankWorkload:
    """Workload `name` for one rank. iterations: at their end AdamW's rate is zero.

    Raises WorkloadError.
    """
    return RankWorkload(learning_task(name), seed, rank, workers, batch_per_worker, iterations, optimizer)


def compute_on_one_thread() -> None:
    """Makes results repeatable bit by bit on one machine: sums in torch don't depend on how threads share them.

    It concerns the whole process. Ranks share few cores in an emulation: threads of their own would only compete.
    """
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # `use_deterministic_algorithms` would import the compiler, a second
