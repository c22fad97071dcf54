"""One rank's model, its optimiser, and the collectives that training methods make of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from transport.torch.training.flat import Flat

COUPLED = (torch.optim.LBFGS,)
"""Optimisers that evaluate the loss several times in a step."""


class Pending:
    """Collectives in flight on a Flat. wait: until they are done; raises DistBackendError."""

    def __init__(self, flat: Flat, works: Sequence[Any], replica: "Replica") -> None:
        self._flat, self._works, self._replica, self._what = flat, works, replica, replica.what

    def wait(self) -> Flat:
        since_ns = time.monotonic_ns()
        with named(self._what):
            for work in self._works:
                work.wait()
        self._replica.waited_ns += time.monotonic_ns() - since_ns
        self._replica.waited_calls += len(self._works)
        return self._flat

    def mean(self) -> Flat:
        """The sums divided by the ranks."""
        flat = self.wait()
        for array in flat.arrays:
            array.div_(self._replica.workers)
        return flat


class Replica:
    """model: whole on each rank, in DDP or not. group: of torch.distributed; None: DDP's, or else the default one.

    parameters: those of the optimizer's that are trained, in its order. buffers: the model's with floats, such as
    BatchNorm's statistics. what: method, rank, step, for errors. Raises ValueError for what can't be trained so.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None, name: str
    ) -> None:
        self.ddp = model if isinstance(model, DistributedDataParallel) else None
        self.model = cast(nn.Module, model.module) if self.ddp else model
        self.optimizer = optimizer
        found = group or (self.ddp.process_group if self.ddp else dist.group.WORLD)
        if found is None:
            raise ValueError(f"{name}: torch.distributed has no process group; init_process_group comes first")
        self.group = cast(Any, found)
        self.rank, self.workers = int(self.group.rank()), int(self.group.size())
        self.name, self.step, self.waited_ns, self.waited_calls = name, 0, 0, 0
        self.started: Callable[[int, Any], None] = lambda size_bytes, work: None
        if isinstance(optimizer, COUPLED):
            raise ValueError(f"{name}: {type(optimizer).__name__} evaluates the loss several times in a step")
        self.parameters: list[torch.Tensor] = [one for one in self._given() if one.requires_grad]
        if not self.parameters:
            raise ValueError(f"{name}: the optimizer has no parameter that is trained")
        if any(isinstance(one, DTensor) for one in self.parameters):
            raise ValueError(f"{name}: parameters are sharded (DTensor); each rank must hold the whole model")
        self._count = len(self._given())
        self.buffers: list[torch.Tensor] = [one for one in self.model.buffers() if one.is_floating_point()]

    def _given(self) -> list[torch.Tensor]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    @property
    def what(self) -> str:
        return f"{self.name}, rank {self.rank} of {self.workers}, step {self.step}"

    def check(self) -> None:
        """Raises ValueError if the optimizer has other parameters than at first, or one has a sparse gradient."""
        if len(self._given()) != self._count:
            raise ValueError(f"{self.what}: parameters were added to the optimizer after attach")
        if any(one.grad is not None and one.grad.layout != torch.strided for one in self.parameters):
            raise ValueError(f"{self.what}: sparse gradients can't be exchanged; make them dense (sparse=False)")

    def agree(self, words: str) -> None:
        """Raises ValueError on all ranks, naming two, unless they have the same method and parameters."""
        mine = f"{words} for {sum(one.numel() for one in self.parameters)} parameters"
        everyone: list[Any] = [None] * self.workers
        dist.all_gather_object(everyone, mine, group=self.group)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise ValueError(f"{self.what}: rank 0 attaches {everyone[0]}, rank {rank} attaches {theirs}")

    def share(self) -> None:
        """Give all ranks rank 0's parameters and buffers; DDP has done so."""
        if self.ddp is None:
            tensors = [*dict.fromkeys([*self.model.parameters(), *self.parameters]), *self.model.buffers()]
            flat = Flat(tensors).read(tensors)
            with named(self.what):
                for piece in flat.pieces():
                    dist.broadcast(piece, group=self.group, group_src=0)
            flat.write(tensors)

    def set_synchronous(self, synchronous: bool) -> None:
        """Whether DDP, if there is one, sums the gradients of the next backward pass: as its no_sync does."""
        if self.ddp is not None:
            self.ddp.require_backward_grad_sync = synchronous

    def start_sum(self, flat: Flat) -> Pending:
        """Sum over all ranks, in place."""
        return self.start(flat, lambda piece: dist.all_reduce(piece, group=self.group, async_op=True))

    def start(self, flat: Flat, begin: Callable[[torch.Tensor], Any]) -> Pending:
        """A collective on each piece."""
        with named(self.what):
            works = []
            for piece in flat.pieces():
                works.append(begin(piece))
                self.started(piece.numel() * piece.element_size(), works[-1])
        return Pending(flat, works, self)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their means over all ranks; these have the same bits everywhere."""
        if tensors:
            self.start_sum(Flat(tensors).read(tensors)).mean().write(tensors)

    def average_gradients(self) -> None:
        """As DDP; one that a rank lacks counts as zeros."""
        flat = Flat(self.parameters).read([one.grad for one in self.parameters])
        for parameter, mean in zip(self.parameters, self.start_sum(flat).mean().views, strict=True):
            parameter.grad = mean.to(parameter.dtype)


@contextmanager
def named(what: str) -> Iterator[None]:
    """Errors of collectives begin with this."""
    try:
        yield
    except Exception as error:
        raise dist.DistBackendError(f"{what}: {error}") from error
