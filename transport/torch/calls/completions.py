"""Threads that run completions: as many as are needed at once, so that a completion may wait for another one."""

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

logger = logging.getLogger(__name__)

Task = Callable[[], None]

IDLE_S = 5.0
"""After this a thread that has nothing to do ends."""


class CompletionPool:
    """Runs each task at once, on an idle thread or else on a new one.

    The callbacks that users attach to a call may wait for a later call (PowerSGD's do), so no fixed number of threads
    is enough and the thread that drives the network must never run them. The threads are daemons, so that a callback
    that never returns can't keep the process running, but `close` joins them: one that is inside PyTorch's C++ code
    when the interpreter ends would abort the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, task: Task) -> None:
        """Run the task soon. Never blocks; once closed, or when no thread can be made any more, runs it here."""
        with self._lock:
            here = self._closed
            if not here and self._idle:
                self._idle -= 1
                self._tasks.put(task)
            elif not here:
                # The task isn't the thread's argument: a Thread keeps its arguments, and so their tensors, to its end.
                name = f"{self._name}-completion-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                    self._tasks.put(task)
                except RuntimeError:  # the interpreter is ending
                    here = True
        if here:
            _run_logged(task)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the threads as soon as their tasks are done. A second call does nothing."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._tasks.put(None)
            self._idle = 0
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("%s is still in a callback after %.0f s; going on without it", thread.name, timeout_s)

    @property
    def idle(self) -> int:
        """How many threads have nothing to do."""
        return self._idle

    @property
    def threads(self) -> int:
        """How many threads there are: of the tasks of the last `IDLE_S`, the most that ran at one time."""
        return len(self._threads)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            _run_logged(task)
            del task  # keep no tensors alive while idle
            with self._lock:
                if self._closed:
                    return
                self._idle += 1

    def _next(self) -> Task | None:
        try:
            return self._tasks.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                if self._idle:  # else a task is on its way to this thread
                    self._idle -= 1
                    self._threads.remove(threading.current_thread())
                    return None
            return self._tasks.get()


def _run_logged(task: Task) -> None:
    try:
        task()
    except Exception:
        logger.exception("a completion failed")
