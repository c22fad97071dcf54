"""Work of gRPC's threads, carried out between packets by the thread that has the switch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from google.rpc import code_pb2

from p4vm.p4runtime.refusal import RuntimeRefusal

Answer = TypeVar("Answer")
WAIT_S = 60.0
PER_TURN = 64
"""Pieces of work before packets have their turn."""


class Turns:
    """`fileno` is readable while work waits; `serve` does some of it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._wakeup

    def carry_out(self, work: Callable[[], Answer]) -> Answer:
        """What `work` returns or raises, from any thread. Raises RuntimeRefusal where the switch has ended."""
        done: Future[Answer] = Future()
        if not self._closed:
            self._waiting.append((work, done))
            os.eventfd_write(self._wakeup, 1)
        try:
            return done.result(timeout=0 if self._closed else WAIT_S)
        except TimeoutError:
            raise RuntimeRefusal(code_pb2.UNAVAILABLE, "the switch has ended, or doesn't answer") from None

    def serve(self) -> None:
        """In the thread that has the switch."""
        os.eventfd_read(self._wakeup)
        for _ in range(min(PER_TURN, len(self._waiting))):
            work, done = self._waiting.popleft()
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
        if self._waiting:
            os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Work that waits is given up."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft()[1].set_exception(TimeoutError())
        os.close(self._wakeup)
