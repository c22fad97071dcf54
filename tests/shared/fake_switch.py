"""A switch inside one process, for tests of what stands above a session: exact sums, one thread as a network has."""

import threading
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from switchagg.calls.call_request import CallRequest, own_shard
from switchagg.description import COMBINING
from switchagg.errors import AggregationFailed, JobError
from transport.worker.join_options import JoinOptions


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
        self._calls: dict[tuple[str, int], dict[int, Any]] = {}
        self._work: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def join(
        self,
        switch: str,
        job: str,
        rank: int,
        workers: int,
        options: JoinOptions | None = None,
        cancelled: threading.Event | None = None,
    ) -> "FakeSession":
        with self._lock:
            self.joined.append(
                {"switch": switch, "job": job, "rank": rank, "workers": workers, **vars(options or JoinOptions())}
            )
        if rank in self.refusals:
            raise JobError(self.refusals[rank], lacks_room="slots" in self.refusals[rank])
        return FakeSession(self, job, rank, workers)

    def take(self, session: "FakeSession", number: int, call: Any) -> None:
        with self._lock:
            calls = self._calls.setdefault((session.job, number), {})
            calls[session.rank] = call
            if len(calls) == session.workers:
                self._work.put(partial(self._end, (session.job, number)))

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

    def _end(self, key: tuple[str, int]) -> None:
        with self._lock:
            found = self._calls.pop(key)
        calls = [found[rank] for rank in sorted(found)]
        if len({(kind, op, array.size, array.dtype, signature) for kind, op, signature, array, _ in calls}) > 1:
            self.mismatches.append(f"{key}: {[(kind, op, signature) for kind, op, signature, _, _ in calls]}")
            for *_, future in calls:
                future.set_exception(AggregationFailed("the ranks made different calls", job=key[0]))
            return
        kind, op, signature, *_ = calls[0]
        arrays = [array for *_, array, _ in calls]
        if kind == "all_gather":
            result = np.concatenate([own_shard(array, rank, len(arrays)) for rank, array in enumerate(arrays)])
        elif kind == "broadcast":
            result = arrays[signature.root].copy()
        else:
            result = arrays[0].copy()
            for array in arrays[1:]:
                result = np.maximum(result, array) if op == "max" else result + array
        for rank, array in enumerate(arrays):
            where = own_shard(array, rank, len(arrays)) if kind == "reduce_scatter" else array
            array.view(np.uint8)[:] = 0xAA  # what isn't a result is undefined
            where[:] = own_shard(result, rank, len(arrays)) if kind == "reduce_scatter" else result
        for *_, array, future in calls:
            if not future.done():
                future.set_result(array)


class FakeSession:
    """One rank's place, a `transport.contracts.group_contract.Group`. row: values that share an exponent."""

    method, row = "switch", 8
    means: tuple[Any, ...] = ()

    compression = None

    def __init__(self, switch: FakeSwitch, job: str, rank: int, workers: int) -> None:
        self.switch, self.job, self.rank, self.workers = switch, job, rank, workers
        self.core = "fake"
        self.closed = False
        self.error: Exception | None = None
        self._calls = 0
        self._pending: list[Future[Any]] = []
        self._lock = threading.Lock()

    def submit(self, request: CallRequest, array: Any) -> "Future[Any]":
        kind, op, signature = request.kind, request.op, request.signature
        assert array.ndim == 1
        assert array.flags.c_contiguous
        future: Future[Any] = Future()
        with self._lock:
            if self.error is not None:
                future.set_exception(self.error)
                return future
            number, self._calls = self._calls, self._calls + 1
            self._pending = [*(one for one in self._pending if not one.done()), future]
        self.switch.take(self, number, (kind, op if kind in COMBINING else "", signature, array, future))
        return future

    def fail(self, detail: str, missing: tuple[int, ...] = ()) -> None:
        """Every pending and later call fails, from the network's thread, as when a worker has died."""
        with self._lock:
            self.error = AggregationFailed(detail, job=self.job, missing=missing)
            pending, self._pending = self._pending, []
        for future in pending:
            if not future.done():
                self.switch.run(partial(future.set_exception, self.error))

    def give_up(self, reason: str) -> None:
        """Silent, as one whose switch doesn't answer."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.fail("the session was closed")
