"""Deadlines of calls: one thread, for all groups of the process, that ends what takes too long."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

Expire = Callable[[], None]


class Deadlines:
    """Thread-safe. The thread starts with the first deadline; it is a daemon, as it must not keep the process alive."""

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
