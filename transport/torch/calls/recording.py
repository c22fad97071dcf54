"""The profiler's record of a collective: an asynchronous event, as those of PyTorch's own back ends are.

It begins on the thread that makes the call, and ends on another, when the results are there.
"""

from collections.abc import Callable
from typing import Any

import torch

from transport.torch.calls.work import SwitchWork


def recorded(begin: Callable[..., SwitchWork], kind: str, tensors: list[torch.Tensor]) -> SwitchWork:
    """Start a call inside an event `switchagg:all_reduce` or the like, with the shapes of what this rank gives.

    begin: called with `ended`, a Future that must be done when the call is.
    """
    name = f"switchagg:{'all_reduce' if kind == 'allreduce' else kind}"
    event = torch._C._autograd._record_function_with_args_enter(name, *tensors)
    ended: torch.futures.Future[Any] = torch.futures.Future()
    # Record as record_function does, of a call that returns a Future; that context manager takes no tensors.
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, ended)
    return begin(ended=ended)
