"""A rank's model, its optimiser, and the collectives that training methods make of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from switchagg.codecs.array_codec import Reduction, Tensors
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import CodecSpec
from transport.torch.feedback import RateFollower, tensor_of
from transport.torch.training.coded_collectives import CodedCollectives
from transport.torch.training.flat_tensors import FlatTensors

COUPLED = (torch.optim.LBFGS,)
"""Optimisers that evaluate the loss several times in a step."""


class PendingCollectives:
    """Collectives in flight on FlatTensors. wait: until they are done; raises DistBackendError."""

    def __init__(self, flat: FlatTensors, works: Sequence[Any], replica: "Replica") -> None:
        self._flat, self._works, self._replica, self._what = flat, works, replica, replica.what

    def wait(self) -> FlatTensors:
        since_ns = time.monotonic_ns()
        with named(self._what):
            for work in self._works:
                work.wait()
        self._replica.waited_ns += time.monotonic_ns() - since_ns
        self._replica.waited_calls += len(self._works)
        return self._flat

    def mean(self) -> FlatTensors:
        """The sums divided by the ranks."""
        flat = self.wait()
        for array in flat.arrays:
            array.div_(self._replica.workers)
        return flat


class Replica:
    """model: whole on each rank, in DDP or not. group: of torch.distributed; None: DDP's, or else the default one.

    parameters: the optimizer's that are trained, in its order. buffers: the model's with floats, such as
    BatchNorm's statistics. what: method, rank, step, for errors. Raises ValueError for a model that can't be trained
    so.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None, name: str
    ) -> None:
        self.ddp = model if isinstance(model, DistributedDataParallel) else None
        self.model = cast(nn.Module, model.module) if self.ddp else model
        self.optimizer = optimizer
        process_group = group or (self.ddp.process_group if self.ddp else dist.group.WORLD)
        if process_group is None:
            raise ValueError(f"{name}: torch.distributed has no process group; init_process_group comes first")
        self.group = cast(Any, process_group)
        self.rank, self.workers = int(self.group.rank()), int(self.group.size())
        self.name, self.step, self.waited_ns, self.waited_calls = name, 0, 0, 0
        self._started: Callable[[int, Any], None] = lambda size_bytes, work: None
        if isinstance(optimizer, COUPLED):
            raise ValueError(f"{name}: {type(optimizer).__name__} evaluates the loss several times in a step")
        self.parameters: list[torch.Tensor] = [
            parameter for parameter in self._optimizer_parameters() if parameter.requires_grad
        ]
        if not self.parameters:
            raise ValueError(f"{name}: the optimizer has no parameter that is trained")
        if any(isinstance(parameter, DTensor) for parameter in self.parameters):
            raise ValueError(f"{name}: parameters are sharded (DTensor); each rank must hold the whole model")
        self._count = len(self._optimizer_parameters())
        known: dict[torch.Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        self._names = {
            parameter: known.get(parameter, f"optimizer[{place}]") for place, parameter in enumerate(self.parameters)
        }
        self._coded: CodedCollectives | None = None
        self._rates = RateFollower(optimizer, self._names)
        self.buffers: list[torch.Tensor] = [
            parameter for parameter in self.model.buffers() if parameter.is_floating_point()
        ]

    def _optimizer_parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def what(self) -> str:
        return f"{self.name}, rank {self.rank} of {self.workers}, step {self.step}"

    # ---- codecs are these

    @property
    def compression(self) -> Compression | None:
        """The memory of residuals by parameter: of the method's codec, or of the process group's."""
        return self._coded.compression if self._coded is not None else self._of_group

    @property
    def _of_group(self) -> Compression | None:
        return cast("Compression | None", getattr(self.group, "compression", None))

    def use_codec(self, spec: CodecSpec) -> None:
        """From now on sums of gradients and differences go through this codec. Raises ValueError for too many ranks."""
        self._coded = CodedCollectives(spec, self.group)

    def check_group(self, exactly: str) -> None:
        """Raises ValueError if the process group's sums are lossy and must be exact. exactly: why."""
        compression = self._of_group
        why = exactly or ("its codec is another" if self._coded is not None else "")
        if compression is not None and compression.spec.lossy and why:
            raise ValueError(f"{self.name}: the process group's sums are coded ({compression}), and {why}")

    def follow_rates(self) -> None:
        """Let residuals of gradients follow the learning rates. `transport.torch.compress` does so for DDP's group."""
        if self._coded is not None or self.ddp is None:
            self._rates.follow(self.compression)

    # ---- collectives start here

    def observe(self, started: Callable[[int, Any], None], reduced: Callable[[Reduction], None]) -> None:
        """See `AttachedMethod`."""
        self._started = started
        if self._coded is not None:
            self._coded.reduced = reduced

    def check(self) -> None:
        """Raises ValueError if the optimizer has other parameters than at first, or a gradient is sparse."""
        if len(self._optimizer_parameters()) != self._count:
            raise ValueError(f"{self.what}: parameters were added to the optimizer after attach")
        if any(parameter.grad is not None and parameter.grad.layout != torch.strided for parameter in self.parameters):
            raise ValueError(f"{self.what}: sparse gradients can't be exchanged; make them dense (sparse=False)")

    def agree(self, words: str) -> None:
        """Raises ValueError on all ranks, naming two, unless they have the same method and parameters."""
        description = f"{words} for {sum(parameter.numel() for parameter in self.parameters)} parameters"
        everyone: list[Any] = [None] * self.workers
        dist.all_gather_object(everyone, description, group=self.group)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                raise ValueError(f"{self.what}: rank 0 attaches {everyone[0]}, rank {rank} attaches {other}")

    def share(self) -> None:
        """Give all ranks rank 0's parameters and buffers; DDP has done so."""
        if self.ddp is None:
            tensors = [*dict.fromkeys([*self.model.parameters(), *self.parameters]), *self.model.buffers()]
            flat = FlatTensors(tensors).read(tensors)
            with named(self.what):
                for piece in flat.pieces():
                    dist.broadcast(piece, group=self.group, group_src=0)
            flat.write(tensors)

    def set_synchronous(self, synchronous: bool) -> None:
        """Whether DDP, if there is one, sums the gradients of the next backward pass: as its no_sync does."""
        if self.ddp is not None:
            self.ddp.require_backward_grad_sync = synchronous

    def start_sum(self, flat: FlatTensors, exact: bool = False) -> PendingCollectives:
        """Sum over all ranks, in place; through a codec where there is one. exact: the method's codec is left out."""
        if self._coded is not None and not exact:
            return self._start(flat, self._coded.start)
        if self._of_group is not None:
            return self._start(flat, self.group.allreduce_tensors)
        return self.start(flat, self._all_reduce)

    def _all_reduce(self, piece: torch.Tensor) -> Any:
        return dist.all_reduce(piece, group=self.group, async_op=True)

    def start(self, flat: FlatTensors, begin: Callable[[torch.Tensor], Any]) -> PendingCollectives:
        """A collective on each piece."""
        return self._start(flat, lambda piece, parts: begin(piece))

    def _start(self, flat: FlatTensors, begin: Callable[[torch.Tensor, Tensors], Any]) -> PendingCollectives:
        with named(self.what):
            works = []
            for piece, parts in flat.cut():
                tensors = [
                    tensor_of(self._names.get(tensor, ""), tensor).part(low, high) for tensor, low, high in parts
                ]
                works.append(begin(piece, tensors))
                self._started(getattr(works[-1], "size_bytes", piece.nbytes), works[-1])
        return PendingCollectives(flat, works, self)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their means over all ranks, without a codec; the means have the same bits everywhere."""
        if tensors:
            lossy = self._of_group is not None and self._of_group.spec.lossy
            flat = FlatTensors(tensors, exact=lossy).read(tensors)
            self.start(flat, self._all_reduce).mean().write(tensors)

    def average_gradients(self) -> None:
        """Average gradients as DDP does; a gradient that a rank lacks counts as zeros."""
        flat = FlatTensors(self.parameters).read([parameter.grad for parameter in self.parameters])
        for parameter, mean in zip(self.parameters, self.start_sum(flat, exact=True).mean().views, strict=True):
            parameter.grad = mean.to(parameter.dtype)


@contextmanager
def named(what: str) -> Iterator[None]:
    """Errors of collectives begin with this."""
    try:
        yield
    except Exception as error:
        raise dist.DistBackendError(f"{what}: {error}") from error
