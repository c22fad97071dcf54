"""NativeWorkerLoop: the worker's event loop in C (transport/native/network/worker.h), with the GIL released.

A thread that waits for a small call runs the loop meanwhile: the call then needs no other thread, from `submit`, which
sends it, to its result. The background thread runs it while calls are pending and nobody waits. It comes back to Python
only for what concerns Python: finished calls, a failed stream, `fail` and `close`.
"""

import atexit
import ctypes
import os
import time
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import ArrayCall
from switchagg.errors import JobError
from switchagg.native import library
from switchagg.native.headers import SA_CALL_COMPLETED, SA_FINISHED, SA_SMALL_VALUES
from switchagg.native.native_endpoint import NativeEndpoint, NativeEvent, failure, submission
from switchagg.priority import marks
from switchagg.wire import frame_bytes
from transport.links.framing import DATAGRAM_BYTES_MAX
from transport.links.hop_tags import TAG_BYTES
from transport.links.native_udp import NativeUdp, native_address, native_hop
from transport.links.udp_link import UdpLink
from transport.worker.call_future import CallFuture
from transport.worker.worker_loop import CallLoop, allow_marks

EVENTS_PER_RUN = 64

LOOK_NS = 50_000_000
"""How long a thread that waits stays in C at most: handlers of signals run between."""


class NativeWorkerLoop(CallLoop):
    """Runs the endpoint of one rank in C, over a UdpLink. It raises JobError for another link, or without the library.

    Arrays of pending calls stay referenced until the C side has released them, after a failure too. A loop that is
    still open when the interpreter ends is closed then.
    """

    _link: UdpLink

    def _prepare(self) -> None:
        if not isinstance(self._link, UdpLink):
            raise JobError(f"the native worker loop needs a UDP link, not {type(self._link).__name__}")
        try:
            self._library, self._holding_gil = library.load(), library.load_holding_gil()
        except library.CoreMissing as missing:
            raise JobError(f"no native worker loop: {missing}") from None
        self._pid = os.getpid()
        self._worker: int | None = None
        self._number = 0
        self._interrupted: deque[int] = deque()  # keys of calls that a thread that waited has left half done
        self._last_counters: dict[str, int] = {}
        self._events = (NativeEvent * EVENTS_PER_RUN)()
        self._endpoint: NativeEndpoint | None = NativeEndpoint(
            self._job, self._rank, self._wire_rank, self._key_of_sums
        )
        size = frame_bytes(self._job.elements)
        self._udp = NativeUdp(self._link, size + TAG_BYTES)
        rows = min(self._link.segments_max, DATAGRAM_BYTES_MAX // size)
        switch = ctypes.byref(native_address(self._switch))
        self._worker = self._library.sa_worker_new(
            self._endpoint.handle, self._udp.handle, self._link.wake_descriptor, switch, rows
        )
        if not self._worker:
            self._udp.close()
            raise MemoryError("no memory for the worker loop")
        # Only when no thread can be in its functions any more, as one that waits may be after the loop's end.
        weakref.finalize(self, self._library.sa_worker_free, self._worker).atexit = False
        self._worker_counters = self._library.sa_worker_counters(self._worker)
        if self._hop_keys is not None:
            self._library.sa_worker_authenticate(self._worker, native_hop(self._job.elements, [self._hop_keys], [0]))
        allow_marks(self._link, self._job)
        if tos := marks([stream.priority for stream in self._job.streams], self._link.tos):
            self._library.sa_worker_mark(self._worker, (ctypes.c_int32 * len(tos))(*tos), len(tos))
        atexit.register(self._close_at_exit)

    @property
    def counters(self) -> dict[str, int]:
        """The endpoint's counters, drop_unknown_sender, ecn_marked, credit_used, and the link's prefixed link_."""
        with self._lock:
            return self._count() if self._worker else dict(self._last_counters)

    def _count(self) -> dict[str, int]:
        assert self._endpoint is not None
        self._udp.update_link()
        return {
            **self._endpoint.counters,
            "drop_unknown_sender": self._worker_counters[0],
            "ecn_marked": self._worker_counters[1],
            "credit_used": self._worker_counters[2],
            **({} if self._hop_keys is None else {"drop_unauthenticated": self._worker_counters[3]}),
            **{f"link_{name}": value for name, value in self._link.counters.items()},
        }

    def has_early(self, stream: int, chunks: int) -> bool:
        with self._lock:
            return self._endpoint is not None and self._endpoint.has_early(stream, chunks)

    def _key(self, call: ArrayCall) -> int:
        self._number += 1
        return self._number

    def _enqueue(self, stream: int, call: ArrayCall, key: int) -> None:
        # The GIL is kept: this takes a few microseconds, less than giving it away and waiting to get it back.
        if self._holding_gil.sa_worker_submit(self._worker, submission(call, key, stream)):
            raise MemoryError("no memory for one more call")

    def run_for(self, future: CallFuture, timeout_s: float | None) -> float | None:
        worker, key = self._worker, future.key
        pending = self._pending.get(key)
        if worker is None or pending is None or os.getpid() != self._pid:
            return timeout_s
        if pending.call.array.size > SA_SMALL_VALUES:
            return timeout_s
        end_ns = None if timeout_s is None else time.monotonic_ns() + round(timeout_s * 1e9)
        limit_ns = LOOK_NS
        finished = ctypes.c_int(0)  # written in C: the handler of a signal may raise before we have what C returns
        try:
            while not future.done() and self._failure is None:
                if end_ns is not None:
                    limit_ns = min(LOOK_NS, end_ns - time.monotonic_ns())
                    if limit_ns <= 0:
                        break
                state = self._library.sa_worker_wait(worker, key, limit_ns, ctypes.byref(finished))
                if state == SA_FINISHED:
                    self._completed(key)
                    return timeout_s
                if state < 0:
                    self._ended_by(OSError(-state, os.strerror(-state)))
                if state:
                    break
        except BaseException:
            if finished.value:
                with self._lock:
                    self._interrupted.append(key)
                    over = self._worker is None
                    self._interrupt()
                if over:
                    self._completed(key)
            raise
        return None if end_ns is None else max(0, end_ns - time.monotonic_ns()) / 1e9

    def _interrupt(self) -> None:
        if self._worker:
            self._holding_gil.sa_worker_call(self._worker)

    def _run_once(self) -> None:
        until_ns = self._next_check_ns(time.monotonic_ns())
        self._complete_interrupted()
        events = self._library.sa_worker_run(self._worker, until_ns, self._events, EVENTS_PER_RUN)
        if events < 0:
            raise OSError(-events, os.strerror(-events))
        for event in self._events[: max(events, 0)]:
            if event.kind == SA_CALL_COMPLETED:
                self._completed(event.call)
            else:
                self._stream_failed(failure(event, self._rank))

    def _complete_interrupted(self) -> None:
        while self._interrupted:
            self._completed(self._interrupted.popleft())

    def _finish_last(self) -> None:
        worker = self._worker
        self._library.sa_worker_close(worker)
        while events := self._library.sa_worker_finish(worker, self._events, EVENTS_PER_RUN):
            if events < 0:
                raise OSError(-events, os.strerror(-events))
            for event in self._events[:events]:
                if event.kind == SA_CALL_COMPLETED:
                    self._completed(event.call)

    def _held_rows(self, key: int, call: ArrayCall) -> NDArray[np.bool_] | None:
        assert self._endpoint is not None
        try:
            return self._endpoint.held_by(key, call)
        except KeyError:  # `run_for` has its event
            return None

    def _forget(self) -> None:
        with self._lock:
            self._last_counters = self._count()
            worker, self._worker = self._worker, None
        self._complete_interrupted()
        # The lock is free here: a waiting thread, which may be in C, may want it.
        self._library.sa_worker_close(worker)
        with self._lock:
            self._endpoint = None
            self._udp.close()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """The thread must not write into arrays while the interpreter frees them."""
        if os.getpid() == self._pid:
            self.close()
