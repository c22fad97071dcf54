"""NativeWorkerLoop: the worker's event loop in C (switchagg/native/worker/worker.h), with the GIL released.

The thread comes back to Python only for what concerns Python: a finished call, a failed stream, `fail` and `close`. A
new call reaches the loop without it: `submit` queues it in C and wakes the loop if it sleeps.
"""

import atexit
import ctypes
import os
import time
from functools import lru_cache
from typing import Any

from switchagg.errors import JobError
from switchagg.native import library
from switchagg.native.endpoint import CALL_COMPLETED, NativeEndpoint, NativeEvent, NativeSubmission, Submitted
from switchagg.priority import marks
from switchagg.wire import frame_bytes
from transport.links.framing import DATAGRAM_BYTES_MAX
from transport.links.native_udp import NativeAddress, NativeUdp, native_address
from transport.links.udp import UdpLink
from transport.worker.loop import CallLoop

EVENTS_PER_RUN = 64


class NativeWorkerLoop(CallLoop[Submitted]):
    """Runs the endpoint of one rank in C, over a UdpLink. Raises JobError for another link, or without the library.

    Arrays of pending calls stay referenced until the C side has released them, after a failure too. A loop that is
    still open when the interpreter ends is closed then.
    """

    _link: UdpLink

    def _prepare(self) -> None:
        if not isinstance(self._link, UdpLink):
            raise JobError(f"the native worker loop needs a UDP link, not {type(self._link).__name__}")
        try:
            self._library, self._holding_gil = worker_library()
        except library.Missing as missing:
            raise JobError(f"no native worker loop: {missing}") from None
        self._pid = os.getpid()
        self._worker: int | None = None
        self._last_counters: dict[str, int] = {}
        self._events = (NativeEvent * EVENTS_PER_RUN)()
        self._endpoint: NativeEndpoint | None = NativeEndpoint(self._job, self._rank)
        size = frame_bytes(self._job.elements)
        self._udp = NativeUdp(self._link, size)
        rows = min(self._link.segments_max, DATAGRAM_BYTES_MAX // size)
        switch = ctypes.byref(native_address(self._switch))
        self._worker = self._library.sa_worker_new(
            self._endpoint.handle, self._udp.handle, self._link.wake_descriptor, switch, rows
        )
        if not self._worker:
            self._udp.close()
            raise MemoryError("no memory for the worker loop")
        self._worker_counters = self._library.sa_worker_counters(self._worker)
        if tos := marks([stream.priority for stream in self._job.streams], self._link.tos):
            self._library.sa_worker_mark(self._worker, (ctypes.c_int32 * len(tos))(*tos), len(tos))
        atexit.register(self._close_at_exit)

    @property
    def counters(self) -> dict[str, int]:
        """The endpoint's counters, drop_stranger, ecn_marked, credit_used, and the link's with the prefix link_."""
        with self._lock:
            return self._count() if self._worker else dict(self._last_counters)

    def _count(self) -> dict[str, int]:
        assert self._endpoint is not None
        self._udp.update_link()
        return {
            **self._endpoint.counters,
            "drop_stranger": self._worker_counters[0],
            "ecn_marked": self._worker_counters[1],
            "credit_used": self._worker_counters[2],
            **{f"link_{name}": value for name, value in self._link.counters.items()},
        }

    def _enqueue(self, stream: int, call: Submitted) -> None:
        # The GIL is kept: this takes a microsecond, less than giving it away and waiting to get it back.
        if self._holding_gil.sa_worker_submit(self._worker, NativeSubmission.of(call, id(call), stream)):
            raise MemoryError("no memory for one more call")

    def _interrupt(self) -> None:
        if self._worker:
            self._holding_gil.sa_worker_call(self._worker)

    def _run_once(self) -> None:
        until_ns = self._next_check_ns(time.monotonic_ns())
        found = self._library.sa_worker_run(self._worker, until_ns, self._events, EVENTS_PER_RUN)
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        for event in self._events[:found]:
            if event.kind == CALL_COMPLETED:
                self._completed(event.call)
            else:
                self._stream_failed(event.failure(self._rank))

    def _forget(self) -> None:
        with self._lock:
            self._last_counters = self._count()
            self._library.sa_worker_free(self._worker)
            self._worker = self._endpoint = None
            self._udp.close()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """The thread must not write into arrays while the interpreter frees them."""
        if os.getpid() == self._pid:
            self.close()


@lru_cache(maxsize=1)
def worker_library() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    """The library with the functions of worker.h declared, and once more with those that keep the GIL.

    Raises `library.Missing`.
    """
    loaded = library.load()
    holding = ctypes.PyDLL(None, handle=loaded._handle)
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    declared: tuple[tuple[Any, Any, tuple[Any, ...]], ...] = (
        (loaded.sa_worker_new, pointer, (pointer, pointer, ctypes.c_int, ctypes.POINTER(NativeAddress), u32)),
        (loaded.sa_worker_free, None, (pointer,)),
        (loaded.sa_worker_mark, None, (pointer, ctypes.POINTER(ctypes.c_int32), u32)),
        (loaded.sa_worker_counters, ctypes.POINTER(u64), (pointer,)),
        (loaded.sa_worker_run, ctypes.c_int, (pointer, ctypes.c_int64, ctypes.POINTER(NativeEvent), u32)),
        (holding.sa_worker_submit, ctypes.c_int, (pointer, ctypes.POINTER(NativeSubmission))),
        (holding.sa_worker_call, None, (pointer,)),
    )
    for function, result, arguments in declared:
        function.restype, function.argtypes = result, arguments
    return loaded, holding
