"""Gives a communication hook the time to attach its callbacks before they can run.

A hook starts an allreduce and attaches callbacks to its Future, in a statement or two. If the network is quicker than
that, PyTorch runs them at once on the hook's own thread, between the hooks of other buckets: a collective inside such a
callback then takes a place among the program's calls that it has on no other rank. There is no event for a hook's
return, so we check whether its Python frame is still on its thread's stack.
"""

import sys
import threading
import time
from types import CodeType, FrameType

import torch

PATIENCE_S = 1.0
"""After this the hook is taken to wait for the Future itself, and is never waited for again."""

POLL_S = 0.0002
AUTOGRAD = "torch.autograd.graph"
OURSELVES = "transport.torch.collectives"

_impatient: set[CodeType] = set()


class HookCall:
    """A running call of a communication hook, during which an allreduce was started."""

    def __init__(self, frame: FrameType, thread: int) -> None:
        self._frame = frame
        self._thread = thread

    def wait(self) -> None:
        """Return when the hook has, or after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while self._frame.f_code not in _impatient and self._running():
            if time.monotonic() > deadline:
                _impatient.add(self._frame.f_code)
            time.sleep(POLL_S)

    def _running(self) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None


def current_hook() -> HookCall | None:
    """The communication hook that this thread runs inside a backward pass; None if there is none."""
    if torch._C._current_graph_task_id() == -1:
        return None
    # The hook is the outermost Python function above autograd's C++; on a CUDA device's thread there is nothing below.
    hook: FrameType = sys._getframe()
    while hook.f_back is not None and hook.f_back.f_globals.get("__name__") != AUTOGRAD:
        hook = hook.f_back
    if hook.f_globals.get("__name__") == OURSELVES:  # DDP itself called the backend: nothing in Python will attach
        return None
    return HookCall(hook, threading.get_ident())
