"""A switch inside one process, for tests of what stands above a session: exact sums, one thread as a network has."""

import threading
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from switchagg.errors import AggregationFailed, JobError
from transport.worker.options import JoinOptions


class FakeSwitch:
    """Pairs the calls of a job's sessions by their order; refuses, delays and fails calls on a test's request."""

    def __init__(self) -> None:
        self.refusals: dict[int, str] = {}  # rank -> reason
        self.joined: list[dict[str, Any]] = []
        self.hold = threading.Event()  # clear: results are kept back
        self.hold.set()
        self.mismatches: list[str] = []
        self.network_thread_ran: list[str] = []
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, int], dict[int, tuple[np.ndarray, str, Future[Any]]]] = {}
        self._work: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def join(self, switch: str, job: str, rank: int, workers: int, options: JoinOptions | None = None) -> "FakeSession":
        with self._lock:
            self.joined.append(
                {"switch": switch, "job": job, "rank": rank, "workers": workers, **vars(options or JoinOptions())}
            )
        if rank in self.refusals:
            raise JobError(self.refusals[rank], lacks_room="slots" in self.refusals[rank])
        return FakeSession(self, job, rank, workers)

    def take(self, session: "FakeSession", number: int, array: np.ndarray, op: str, future: "Future[Any]") -> None:
        with self._lock:
            call = self._calls.setdefault((session.job, number), {})
            call[session.rank] = (array, op, future)
            if len(call) == session.workers:
                self._work.put(partial(self._sum, (session.job, number)))

    def run(self, task: Any) -> None:
        """Have the network's thread do something."""
        self._work.put(task)

    def stop(self) -> None:
        self.hold.set()
        self._work.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            self.hold.wait(30)
            task()

    def _sum(self, key: tuple[str, int]) -> None:
        with self._lock:
            call = self._calls.pop(key)
        arrays = [call[rank][0] for rank in sorted(call)]
        if (
            len({(array.size, array.dtype, call[rank][1]) for rank, array in zip(sorted(call), arrays, strict=True)})
            > 1
        ):
            self.mismatches.append(f"{key}: {[(a.size, a.dtype) for a in arrays]}")
            for _, _, future in call.values():
                future.set_exception(AggregationFailed("the ranks made different calls", job=key[0]))
            return
        combine = np.maximum if call[0][1] == "max" else np.add
        result = arrays[0].copy()
        for array in arrays[1:]:
            result = combine(result, array)
        for array in arrays:
            array[:] = result
        for rank in sorted(call):
            if not call[rank][2].done():
                call[rank][2].set_result(call[rank][0])


class FakeSession:
    """One rank's session, with the contract of `transport.worker.session.SwitchSession`."""

    def __init__(self, switch: FakeSwitch, job: str, rank: int, workers: int) -> None:
        self.switch, self.job, self.rank, self.workers = switch, job, rank, workers
        self.core = "fake"
        self.closed = False
        self.error: Exception | None = None
        self._calls = 0
        self._pending: list[Future[Any]] = []
        self._lock = threading.Lock()

    def allreduce(self, array: np.ndarray, op: str = "sum", stream: int | None = None, asked: int = 0) -> "Future[Any]":
        assert array.ndim == 1
        assert array.flags.c_contiguous
        assert array.dtype in (np.float32, np.float64, np.int32, np.int64)
        assert op == "sum" or array.dtype == np.int32
        future: Future[Any] = Future()
        with self._lock:
            if self.error is not None:
                future.set_exception(self.error)
                return future
            number, self._calls = self._calls, self._calls + 1
            self._pending.append(future)
        self.switch.take(self, number, array, op, future)
        return future

    def fail(self, detail: str, missing: tuple[int, ...] = ()) -> None:
        """Every pending and later call fails, from the network's thread, as when a worker has died."""
        with self._lock:
            self.error = AggregationFailed(detail, job=self.job, missing=missing)
            pending, self._pending = self._pending, []
        for future in pending:
            if not future.done():
                self.switch.run(partial(future.set_exception, self.error))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.fail("the session was closed")
