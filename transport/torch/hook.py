"""A DDP communication hook: gradients through the switch, everything else as the script has it.

    switch_group = dist.new_group(backend="switchagg")        # once, on all ranks; import transport.torch before
    ddp.register_comm_hook(switch_group, switchagg_hook)

works on top of any default group, NCCL for one. If the default group itself is "switchagg", DDP needs no hook.

A codec that remembers what each parameter lost must know which parameters a bucket has:

    handle = transport.torch.compress(ddp, optimizer)         # in place of register_comm_hook

registers the hook with their names. The same line does for every method, with a codec or without.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp
from torch.nn.parallel import DistributedDataParallel

from switchagg.codecs.array_codec import Tensors
from transport.torch.backend import SwitchProcessGroup
from transport.torch.feedback import RateFollower, codec_state, load_codec_state, tensor_of

_OF_GLOO = {"gloo~bf16": bf16_compress_hook, "gloo~fp16": fp16_compress_hook}
"""PyTorch's own hooks, which are these methods."""


def switchagg_hook(
    state: "ProcessGroup | CompressedDdp | None",
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # the very class DDP looks for
) -> torch.futures.Future[torch.Tensor]:
    """Mean of the bucket's gradients over all ranks, as a Future of the bucket's buffer.

    state: a process group of backend "switchagg", or None for the default group, or what `compress` returns. Divides
    by the number of workers itself, after summing. Raises TypeError for another group; failures of the transport come
    out of backward().
    """
    group = switch_group(state.group if isinstance(state, CompressedDdp) else state)
    buffer: torch.Tensor = bucket.buffer()
    values = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    if isinstance(state, CompressedDdp):
        work = group.allreduce_tensors(values, state.tensors_of(bucket), ReduceOp.AVG)
    else:
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp.AVG  # type: ignore[assignment]  # stub: ReduceOp, but its values are RedOpType
        work = group.allreduce([values], options)
    # A child of the Work's Future: DDP would cast an exception that was set on a Future itself to a tensor.
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

    def reduced(done: Any) -> torch.Tensor:
        done.value()  # raises if the call failed
        return buffer

    child: torch.futures.Future[torch.Tensor] = future.then(reduced)
    return child


def switch_group(group: ProcessGroup | None) -> SwitchProcessGroup:
    """The process group, or for None the default one. It raises TypeError for a group of another backend."""
    process_group = dist.group.WORLD if group is None else group
    if not isinstance(process_group, SwitchProcessGroup):
        raise TypeError(
            f'switchagg_hook needs a process group of backend "switchagg", not {dist.get_backend(process_group)!r}: '
            f'register_comm_hook(dist.new_group(backend="switchagg"), switchagg_hook)'
        )
    return process_group


def compress(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer | None = None, group: ProcessGroup | None = None
) -> "CompressedDdp":
    """Let this model's gradients travel by `group`'s method and codec. A collective of all ranks, before training.

    optimizer: residuals follow its learning rate; None: they stay as they are. group: of backend "switchagg";
    default: DDP's. Raises TypeError for another group, DistBackendError where it can't be joined.
    """
    state = CompressedDdp(ddp, optimizer, switch_group(group or ddp.process_group))
    state.group.connect()
    if (builtin := _OF_GLOO.get(str(state.group.method))) is not None:
        ddp.register_comm_hook(state.group, builtin)
        return state
    ddp.register_comm_hook(state, switchagg_hook)
    return state


class CompressedDdp:
    """A model in DDP whose gradients are coded. Made by `compress`.

    Error feedback keeps what each gradient lost, by the parameter's name; it is divided by the learning rate's change,
    since it will be multiplied by the new one.
    """

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer | None, group: SwitchProcessGroup
    ) -> None:
        self.group = group
        names = {parameter: name for name, parameter in ddp.module.named_parameters()}
        self._tensors = {parameter: tensor_of(name, parameter) for parameter, name in names.items()}
        self._rates = None if optimizer is None else RateFollower(optimizer, names)

    def tensors_of(self, bucket: Any) -> Tensors:
        """The tensors of a bucket's buffer, in order."""
        if bucket.index() == 0 and self._rates is not None:
            self._rates.follow(self.group.compression)
        return [self._tensors[parameter] for parameter in bucket.parameters()]

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank's codec; each rank saves its own. It loads with `torch.load(weights_only=True)`."""
        return codec_state(self.group.compression)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of `state_dict`. Raises ValueError for one of another codec, or another rank."""
        load_codec_state(self.group.compression, state)
