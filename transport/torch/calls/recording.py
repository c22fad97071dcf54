"""The profiler's record of a collective: an operator of PyTorch's dispatcher, as c10d's are, so that its shapes show.

It spans the start of the call, on the thread that made it; the result comes later.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from transport.torch.calls.work import SwitchWork

_started = threading.local()  # .begin: what the operator shall start, .work: what that gave


def recorded(begin: Callable[[], SwitchWork], kind: str, tensors: list[torch.Tensor]) -> SwitchWork:
    """Start a call inside `switchagg::all_reduce` or the like, an event with the shape of its first tensor."""
    _started.begin = begin
    _operator("all_reduce" if kind == "allreduce" else kind)(tensors[0], tensors[1:])
    work: SwitchWork = _started.work
    del _started.begin, _started.work
    return work


@lru_cache
def _operator(name: str) -> Any:
    library = torch.library.Library("switchagg", "FRAGMENT")
    library.define(f"{name}(Tensor tensor, Tensor[] more) -> ()")
    library.impl(name, _start, "CompositeExplicitAutograd")
    _kept.append(library)
    return getattr(torch.ops.switchagg, name)


_kept: list[Any] = []  # an operator goes with its library


def _start(tensor: torch.Tensor, more: list[torch.Tensor]) -> None:
    _started.work = _started.begin()
