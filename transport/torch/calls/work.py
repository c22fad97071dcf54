"""The handle of a collective that goes through the switch, its deadline, and the time that a communication hook has to
attach callbacks to it before they can run.

A hook starts an allreduce and attaches callbacks to its Future, in a statement or two. If the network is quicker than
that, PyTorch runs them at once on the hook's own thread, between the hooks of other buckets: a collective inside such a
callback then takes a place among the program's calls that it has on no other rank. There is no event for a hook's
return, so we check whether its Python frame is still on its thread's stack.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import CodeType, FrameType
from typing import cast

import torch
import torch.distributed as dist

from transport.torch.calls.typed_future import TEXT_BYTES, typed

logger = logging.getLogger(__name__)

Tensors = list[torch.Tensor]

PATIENCE_S = 1.0
"""After this the hook is taken to wait for the Future itself, and is never waited for again."""

POLL_S = 0.0002
AUTOGRAD = "torch.autograd.graph"
OURSELVES = "transport.torch.collectives"

_impatient: set[CodeType] = set()


class SwitchWork(dist.Work):
    """The Work of a collective: wait for it, or take its Future. It is thread-safe.

    tensors: the results' memory, kept alive until the end. what: names the call in errors. timeout_s: how long
    `wait()` waits by default. synchronize: makes the current CUDA streams wait for the results' copies. ended: a Future
    that is done when the call is.

    A failure is raised, as `torch.distributed.DistBackendError`, by `wait()` and by the Future's `wait()`, `value()`
    and consumers. DDP's C++ code would take an exception set on a Future for its value and crash, so `get_future` only
    hands out children whose callback raises; that makes an error in C++ terms.
    """

    def __init__(
        self,
        tensors: Tensors,
        what: str,
        timeout_s: float,
        devices: Sequence[torch.device] = (),
        ended: "torch.futures.Future[None] | None" = None,
    ) -> None:
        super().__init__()
        self._ended = ended
        self._tensors = tensors
        self._what = what
        self._timeout_s = timeout_s
        self._future: torch.futures.Future[Tensors] = torch.futures.Future(devices=list(devices))
        self._finished = finished = threading.Event()
        # The first callback: as with PyTorch's own back ends, the Future of a Work that was waited for is done.
        self._future.add_done_callback(lambda _: finished.set())
        self._waiting_thread: int | None = None
        self._error: BaseException | None = None
        self._synchronize: Callable[[], None] | None = None

    @classmethod
    def ended(cls, what: str, error: BaseException | None = None, tensors: Tensors | None = None) -> "SwitchWork":
        """A Work that has succeeded, with these results or none, or has failed with this error."""
        work = cls(tensors or [], what, 0.0)
        work.settle(error)
        work.deliver()
        return work

    def settle(self, error: BaseException | None, synchronize: Callable[[], None] | None = None) -> None:
        """Keep this outcome of the call, once: `deliver` ends it."""
        self._error = error
        self._synchronize = synchronize
        if self._ended is not None:
            self._ended.set_result(None)

    def deliver(self) -> None:
        """End the call: threads that wait for it continue. Run the callbacks attached so far, on this thread; later
        ones run where they are attached. After settle."""
        self._future.set_result(self._tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True once the tensors hold the results. timeout None or not positive: until the call's deadline has ended it
        (PyTorch's own convention).

        Blocks the host until the network has answered; for CUDA tensors, the copy back is waited for by the current
        stream alone. Raises DistBackendError if the call failed or the time is over (the call itself then goes on).
        """
        requested_s = timeout.total_seconds() if timeout is not None else 0.0
        wait_s = requested_s if requested_s > 0 else self._timeout_s
        self._waiting_thread = threading.get_ident()
        if not self._finished.wait(min(wait_s, threading.TIMEOUT_MAX)):
            self._waiting_thread = None
            raise dist.DistBackendError(f"{self._what}: timed out; no result after {wait_s:g} s")
        self._raise_error()
        self.synchronize()
        return True

    def get_future(self) -> torch.futures.Future[Tensors]:
        """A Future of the list of result tensors, whose callbacks may use collectives and wait for them."""
        if (
            self._tensors
            and self._tensors[0].dtype == torch.float16
            and self._tensors[0].device.type == "cpu"
            and _called_by_cpp()
        ):
            text = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
            return cast(
                torch.futures.Future[Tensors], typed(self._future.then(partial(self._tell, text)), text, self._tensors)
            )
        return self._future.then(lambda future: self._outcome())

    def is_waited_for(self, thread: int) -> bool:
        """Whether this thread was the last to call `wait()`."""
        return self._waiting_thread == thread

    def is_completed(self) -> bool:
        return self._finished.is_set()

    def is_success(self) -> bool:
        return self._finished.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Why the call failed; None while it runs and after a success."""
        return self._error

    def result(self) -> Tensors:
        """The result tensors; waits for them as `wait()` does."""
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        """Make the current CUDA streams wait for the results of a finished call; nothing to do on the CPU."""
        if self._synchronize is not None:
            self._synchronize()

    def block_current_stream(self) -> None:
        """As `wait()`: what a stream must wait for isn't known before the network has answered."""
        self.wait()

    def source_rank(self) -> int:
        raise dist.DistBackendError("source_rank: a collective has no source rank")

    def _outcome(self) -> Tensors:
        self._raise_error()
        return self._tensors

    def _tell(self, text: torch.Tensor, _: object) -> None:
        if self._error is not None:
            message = f"{self._what} failed: {self._error}".encode("ascii", "replace")[:TEXT_BYTES]
            text[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            text[len(message) :] = ord(" ")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise dist.DistBackendError(f"{self._what} failed: {self._error}") from self._error


class HookCall:
    """A running call of a communication hook, during which an allreduce was started."""

    def __init__(self, frame: FrameType, thread: int) -> None:
        self._frame = frame
        self._thread = thread

    def wait(self, work: SwitchWork) -> None:
        """Return when the hook has, or itself waits for this call, or after PATIENCE_S.

        A hook that waits does so on all ranks: what it attaches later then runs at once, on all of them."""
        deadline = time.monotonic() + PATIENCE_S
        waits = partial(work.is_waited_for, self._thread)
        while self._frame.f_code not in _impatient and self._running() and not waits():
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


class TimeoutWork(dist.Work):
    """A Work whose `wait()` has this limit where its caller gives none."""

    def __init__(self, work: dist.Work, limit: timedelta) -> None:
        super().__init__()
        self._work, self._limit = work, limit

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._work.wait(timeout if timeout is not None and timeout > timedelta(0) else self._limit)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def source_rank(self) -> int:
        return self._work.source_rank()

    _source_rank = source_rank


def _called_by_cpp() -> bool:
    """Whether get_future's caller is C++ inside a backward pass."""
    if torch._C._current_graph_task_id() == -1:
        return False
    frame = sys._getframe(1)  # the frame of get_future
    caller = frame.f_back
    return caller is None or caller.f_globals.get("__name__") == AUTOGRAD


Expire = Callable[[], None]


class Deadlines:
    """One thread, for all groups of the process, that ends calls that take too long. Thread-safe.

    The thread starts with the first deadline; it is a daemon, as it must not keep the process alive.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[object, tuple[float, Expire]] = {}
        self._wakes_s = math.inf  # when the thread looks next, of time.monotonic
        self._thread: threading.Thread | None = None

    def add(self, call: object, limit_s: float, expire: Expire) -> None:
        """Have `expire` called in the thread, which it must not block, unless `remove(call)` comes within limit_s."""
        due_s = time.monotonic() + limit_s
        with self._changed:
            self._due[call] = due_s, expire
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="switchagg-deadlines", daemon=True)
                self._thread.start()
            elif due_s < self._wakes_s:
                self._changed.notify()

    def remove(self, call: object) -> None:
        """The call has ended. A second call does nothing."""
        with self._changed:
            self._due.pop(call, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                over = [call for call, (due_s, _) in self._due.items() if due_s <= now_s]
                expires = [self._due.pop(call)[1] for call in over]
                if not expires:
                    self._wakes_s = min((due_s for due_s, _ in self._due.values()), default=math.inf)
                    self._changed.wait(min(self._wakes_s - now_s, threading.TIMEOUT_MAX))
            while expires:
                try:
                    expires.pop()()
                except Exception:
                    logger.exception("a call could not be ended")


DEADLINES = Deadlines()
os.register_at_fork(after_in_child=DEADLINES.__init__)  # type: ignore[misc]  # the child has no thread, nor its calls
