"""DDP with backup workers: a rank that is late takes the rounds it missed without computing.

    group = SwitchGroup.join("tcp://10.0.0.9:5555", "job", rank, n, JoinOptions(backups=1, codec="lanes8+ef"))
    # or by a parameter server: open_ps_group(…, config=PsConfig(n, mode="backup", backups=1))
    rounds = BackupRounds(ddp, group)
    for inputs, targets in batches:
        if not rounds.take():  # else this round's gradients are in place
            loss(ddp(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

The group has NumPy arrays: models are on the CPU.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from switchagg.codecs.array_codec import Tensors
from transport.contracts.group_contract import AllreduceGroup
from transport.torch.feedback import tensor_of

ROUNDS_TO_SETTLE = 2
"""DDP lays its buckets out anew before the second round, in a broadcast that all ranks take part in; never again."""

Mean = Callable[[torch.Tensor, Tensors], "torch.futures.Future[torch.Tensor]"]


class BackupGroup(AllreduceGroup, Protocol):
    """A group whose means may lack some ranks: a `PsGroup` of mode "backup", a `SwitchGroup` of a job with backups."""

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """Whether other ranks have finished this rank's next calls, means of `sizes` values, and results are here."""
        ...


@dataclass(frozen=True)
class _Bucket:
    """The shape of a bucket's call, and the parameters whose gradients lie in it, in that order."""

    elements: int
    dtype: torch.dtype
    parameters: list[torch.Tensor]

    def put(self, mean: torch.Tensor) -> None:
        """Give the parameters their gradients, with the strides that DDP gives them."""
        offset = 0
        for parameter in self.parameters:
            part = mean[offset : offset + parameter.numel()]
            offset += parameter.numel()
            dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
            gradient = part.as_strided(parameter.shape, parameter.stride()) if dense else part.view(parameter.shape)
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.copy_(gradient)


class BackupRounds:
    """DDP's communication hook over a group with backup workers, on the CPU: means of the ranks that were in time.

    All ranks take the same steps of the optimiser, and so keep the same bits. group: for these calls alone. mean:
    starts a bucket's call, given its parameters, in place of the group's allreduce. rounds_taken: rounds so far that
    this rank took without computing. Raises ValueError for a model whose passes have DDP wait for all ranks: unused
    parameters, a static graph, buffers.
    """

    def __init__(self, ddp: DistributedDataParallel, group: BackupGroup, mean: Mean | None = None) -> None:
        if ddp.find_unused_parameters or ddp.static_graph or ddp.will_sync_module_buffers():
            raise ValueError(
                "backup workers: with find_unused_parameters, static_graph or broadcast_buffers (of a model that has "
                "any) DDP's own collectives wait for all ranks; allowed: none of them"
            )
        self.rounds_taken = 0
        self._group = group
        self._mean = mean or self._reduced
        self._buckets: list[_Bucket] = []
        self._computed = 0
        self._tensors = {parameter: tensor_of(name, parameter) for name, parameter in ddp.module.named_parameters()}
        ddp.register_comm_hook(None, self._reduce)

    @property
    def behind(self) -> bool:
        """Whether the other ranks have finished the next round. The first two are always computed."""
        sizes = [bucket.elements for bucket in self._buckets]
        return self._computed >= ROUNDS_TO_SETTLE and self._group.finished_without(sizes)

    def take(self) -> bool:
        """If the next round is finished, put its gradients in place of a backward pass; else only return False.

        The round's calls have zeros: the results are here, and only headers are sent. Residuals of codecs stay.
        """
        if not self.behind:
            return False
        zeros = [torch.zeros(bucket.elements, dtype=bucket.dtype) for bucket in self._buckets]
        calls = [
            (bucket, self._start(flat, bucket.parameters)) for bucket, flat in zip(self._buckets, zeros, strict=True)
        ]
        with torch.no_grad():
            for bucket, call in calls:
                bucket.put(call.wait())
        self.rounds_taken += 1
        return True

    def _reduce(
        self,
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP insists on this name and annotation
    ) -> torch.futures.Future[torch.Tensor]:
        flat = bucket.buffer()
        if bucket.index() == 0:
            self._buckets = []
            self._computed += 1
        self._buckets.append(_Bucket(flat.numel(), flat.dtype, bucket.parameters()))
        return self._start(flat, bucket.parameters())

    def _start(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
        return self._mean(flat, [self._tensors[parameter] for parameter in parameters])

    def _reduced(self, flat: torch.Tensor, tensors: Tensors) -> torch.futures.Future[torch.Tensor]:
        # A child of the call's Future: DDP would cast an exception that was set on a Future itself to a tensor.
        call = allreduce(self._group, flat, "avg", tensors)
        future: torch.futures.Future[torch.Tensor] = call.then(lambda done: done.value())
        return future


def allreduce(
    group: AllreduceGroup, flat: torch.Tensor, op: str, tensors: Tensors | None = None
) -> torch.futures.Future[torch.Tensor]:
    """A group's allreduce, in place, as a Future of torch's. flat: 1-D, on the CPU."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def ended(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(flat)
        else:
            future.set_exception(error)  # type: ignore[arg-type]  # stub

    group.allreduce(flat.numpy(), op, tensors=tensors).add_done_callback(ended)
    return future
