"""A DDP communication hook: gradients through the switch, everything else as the script has it.

    switch_group = dist.new_group(backend="switchagg")        # once, on all ranks; import transport.torch before
    ddp.register_comm_hook(switch_group, switchagg_hook)

works on top of any default group, NCCL for one. If the default group itself is "switchagg", DDP needs no hook.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp

from transport.torch.backend import SwitchProcessGroup


def switchagg_hook(
    state: ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # the very class DDP looks for
) -> torch.futures.Future[torch.Tensor]:
    """Mean of the bucket's gradients over all ranks, as a Future of the bucket's buffer.

    state: a process group of backend "switchagg", or None for the default group. Divides by the number of workers
    itself, after summing. Raises TypeError for another group; failures of the transport come out of backward().
    """
    group = dist.group.WORLD if state is None else state
    if not isinstance(group, SwitchProcessGroup):
        raise TypeError(
            f'switchagg_hook needs a process group of backend "switchagg", not {dist.get_backend(group)!r}: '
            f'register_comm_hook(dist.new_group(backend="switchagg"), switchagg_hook)'
        )
    buffer: torch.Tensor = bucket.buffer()
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp.AVG  # type: ignore[assignment]  # stub: ReduceOp, but its values are RedOpType
    work = group.allreduce([torch.view_as_real(buffer) if buffer.is_complex() else buffer], options)
    # A child of the Work's Future: DDP would cast an exception that was set on a Future itself to a tensor.
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

    def reduced(done: Any) -> torch.Tensor:
        done.value()  # raises if the call failed
        return buffer

    child: torch.futures.Future[torch.Tensor] = future.then(reduced)
    return child
