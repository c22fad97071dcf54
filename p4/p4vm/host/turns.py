"""Work of other threads, carried out between packets by the thread that has the switch."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Answer = TypeVar("Answer")
WAIT_S = 60.0
PER_TURN = 8
"""Pieces of work before packets have their turn."""


class Turns:
    """`fileno` is readable while work waits; `serve` does some of it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        return self._wakeup

    def carry_out(self, work: Callable[[], Answer]) -> Answer:
        """Have `work` done, from any thread but the switch's; returns or raises what `work` does. Raises TimeoutError:
        the switch has ended or doesn't answer within WAIT_S."""
        done: Future[Answer] = Future()
        with self._lock:
            if self._closed:
                raise TimeoutError
            self._waiting.append((work, done))
            os.eventfd_write(self._wakeup, 1)
        return done.result(timeout=WAIT_S)

    def serve(self) -> None:
        """In the thread that has the switch; returns at once where nothing waits."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        for _ in range(min(PER_TURN, len(self._waiting))):
            work, done = self._waiting.popleft()
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):  # Ctrl-C
                    raise
        if self._waiting:
            os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Work that waits is given up. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wakeup)
        while self._waiting:
            self._waiting.popleft()[1].set_exception(TimeoutError())
