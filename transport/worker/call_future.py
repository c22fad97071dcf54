"""CallFuture: the future of a call, whose waiter carries the call's packets itself where its loop allows that; and the
future of several."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Awaited(Protocol):
    """The loop that runs a call, as its future uses it."""

    def run_for(self, future: "CallFuture", timeout_s: float | None) -> float | None:
        """Run until the future is done, the time is over, or another thread does better; the seconds that are left."""


class CallFuture(Future[Any]):
    """The end of a call. key: the call's, in its loop. It can't be cancelled: the other ranks count on this one.

    Callbacks run in the thread that finds the result: the loop's, or one that waits for this future. If an exception
    interrupts such a thread there, the loop's goes on, and runs the callback that was interrupted again.
    """

    key = -1
    _done_callbacks: "list[Callable[[Future[Any]], object]]"

    def __init__(self, loop: Awaited) -> None:
        super().__init__()
        self._loop = loop
        self._state = RUNNING

    def result(self, timeout: float | None = None) -> Any:
        """See `Future.result`."""
        left_s = timeout if self._state == FINISHED else self._loop.run_for(self, timeout)
        return self._result if self._state == FINISHED and self._exception is None else super().result(left_s)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        return super().exception(timeout if self._state == FINISHED else self._loop.run_for(self, timeout))

    def resolve(self, result: object) -> None:
        """Set the result, unless it has failed, and run the callbacks; again: what of this was interrupted."""
        with self._condition:
            if self._state != FINISHED:
                self._result = result
                self._state = FINISHED
                for waiter in self._waiters:
                    waiter.add_result(self)
            self._condition.notify_all()
        if self._done_callbacks:
            self._invoke_callbacks()

    def fail(self, failure: BaseException) -> None:
        """Set the exception, unless it is done."""
        with suppress(InvalidStateError):
            self.set_exception(failure)

    def _invoke_callbacks(self) -> None:
        while self._done_callbacks:
            try:
                self._done_callbacks[0](self)
            except Exception:
                logger.exception("exception calling callback for %r", self)
            self._done_callbacks.pop(0)


def all_of(futures: "Sequence[Future[Any]]", result: object) -> "Future[Any]":
    """Resolves to `result` when all have, or to the exception of the first that fails."""
    joined: Future[Any] = Future()
    joined.set_running_or_notify_cancel()
    lock, left = threading.Lock(), len(futures)

    def one_done(done: "Future[Any]") -> None:
        nonlocal left
        failure = done.exception()
        with lock:
            last = left > 0 and (left == 1 or failure is not None)
            left = 0 if failure is not None else left - 1
        if last and failure is not None:
            joined.set_exception(failure)
        elif last:
            joined.set_result(result)

    for future in futures:
        future.add_done_callback(one_done)
    return joined
