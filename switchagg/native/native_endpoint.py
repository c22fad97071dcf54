"""NativeEndpoint: the worker's end of a job in C, with the verbs of `switchagg.endpoint.Endpoint`.

For the same inputs it gives the same frames, events, deadlines and counters; tests hold it to that, step by step. Loops
in C take its `handle` and go on without Python.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import form_of
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.mask import NO_KEY
from switchagg.codecs import Codec
from switchagg.description import WORDS, difference
from switchagg.endpoint import NO_BETTER, TOO_EARLY, CallCompleted, Event, StreamFailed, WrongSum
from switchagg.job import MAX_CHILDREN, JobConfig
from switchagg.native import headers
from switchagg.native.headers import (
    SA_CALL_COMPLETED,
    SA_CALLS_DIFFER,
    SA_EACH_RANK,
    SA_ENDPOINT_ALL_COUNTERS,
    SA_ENDPOINT_CHUNKS_OF,
    SA_KEY_BYTES,
    SA_MASK_KEY_BYTES,
    SA_NO_EVENT,
    SA_WRONG_SUM,
    SA_WRONG_SUM_TOO_EARLY,
)
from switchagg.native.library import job_struct, load
from switchagg.native.native_codec import DTYPES, number_of
from switchagg.partial_endpoint import CHUNKS_OF
from switchagg.wire import Bundle, frame_bytes

NativeEvent = headers.struct("sa_event")
ENDPOINT_COUNTERS = (
    *headers.names("sa_endpoint_counter", "SA_ENDPOINT_"),
    *(f"{CHUNKS_OF}{ranks}" for ranks in range(SA_ENDPOINT_ALL_COUNTERS - SA_ENDPOINT_CHUNKS_OF)),
)

ALWAYS_SHOWN = 5
"""An Endpoint shows so many counters from the start, the first ones; the others appear once they have counted."""


_WRONG = {SA_WRONG_SUM: NO_BETTER, SA_WRONG_SUM_TOO_EARLY: TOO_EARLY}


def failure(event: Any, local_rank: int) -> StreamFailed:
    """The failure that a `NativeEvent` reports; a completed call has none."""
    if event.kind in _WRONG:
        return WrongSum(event.stream, event.slot, event.version, event.chunk, event.timeouts, _WRONG[event.kind])
    reason, rank = "no result", None
    if event.kind == SA_CALLS_DIFFER:
        rank = event.rank
        reason = difference(rank, tuple(event.remote_words), local_rank, tuple(event.local_words))
    return StreamFailed(event.stream, event.slot, event.version, event.chunk, event.timeouts, reason, rank)


_NO_WORDS = (0,) * WORDS
_SUBMISSION = headers.packed("sa_submission")


def submission(call: ArrayCall, number: int, stream: int) -> bytes:
    """A call as `struct sa_submission`; number comes back in its event. Raises ValueError for types that C lacks."""
    array = call.array
    place = array.__array_interface__["data"][0]
    lost = call.residual.__array_interface__["data"][0] if call.residual is not None else 0
    codec, dtype = _numbers(call.codec, array.dtype)
    route, owner, unit, routed, rows, run = call.shares
    first, end = rows or (0, 0)
    values = (place, lost, array.size, first, end - first)
    whose = (route, SA_EACH_RANK if owner is None else owner, unit, routed, run, call.mean)
    words = call.description or _NO_WORDS
    return _SUBMISSION.pack(number, call.key, *values, stream, codec, dtype, call.op, *whose, *words)


@lru_cache(maxsize=64)
def _numbers(codec: Codec, dtype: "np.dtype[Any]") -> tuple[int, int]:
    return number_of(codec), DTYPES.index(dtype)


class NativeEndpoint:
    """The worker `rank` of `job`. Every time is a monotonic `now_ns`, not negative, never decreasing.

    wire_rank: its index among what sends to its switch, which packets carry; None: as `rank` (H1). key: as of
    `Endpoint`. Arrays of calls stay referenced until their event is handed out, or until the endpoint is freed. Raises
    library.CoreMissing without the compiled core, MemoryError without memory.
    """

    _handle: int | None = None  # what __del__ finds if __init__ has failed

    def __init__(self, job: JobConfig, rank: int, wire_rank: int | None = None, key: bytes = NO_KEY) -> None:
        assert 0 <= rank < job.workers
        assert len(key) >= SA_KEY_BYTES + SA_MASK_KEY_BYTES * (job.secret == "on")
        self._library = load()
        self.job = job
        self.rank = rank
        self.wire_rank = rank if wire_rank is None else wire_rank
        assert 0 <= self.wire_rank < MAX_CHILDREN
        self._calls: dict[int, ArrayCall] = {}
        self._submitted = 0
        self._frame_bytes = frame_bytes(job.elements)
        self._size, self._event = ctypes.c_uint32(), NativeEvent()  # what C writes into
        self._size_place, self._event_place = ctypes.byref(self._size), ctypes.byref(self._event)
        self._handle = self._library.sa_endpoint_new(ctypes.byref(job_struct(job)), rank, self.wire_rank, key)
        if self._handle is None:
            raise MemoryError("no memory for an endpoint")
        self._counters = self._library.sa_endpoint_counters(self._handle)
        self._size_bytes = ctypes.c_uint32()

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.sa_endpoint_free(self._handle)

    @property
    def handle(self) -> int:
        """Address of the `struct sa_endpoint`, for C functions; lives as long as this object."""
        assert self._handle is not None
        return self._handle

    # commands

    def submit(self, stream: int, call: ArrayCall) -> None:
        """Queue a call on a stream; every worker submits the same calls to a stream in the same order (W3)."""
        array = call.array
        assert 0 <= stream < len(self.job.streams)
        assert array.ndim == 1
        assert array.flags.c_contiguous
        assert array.flags.writeable
        number = self._submitted
        if self._library.sa_endpoint_submit(self._handle, submission(call, number, stream)):
            raise MemoryError("no memory for a call")
        self._calls[number] = call
        self._submitted += 1

    # inputs

    def receive(self, bundle: Bundle, now_ns: int, congested: bool = False) -> None:
        """Take datagrams from the switch; whatever is no awaited result is counted and changes nothing (W5).

        congested: they came marked CE (G8).
        """
        rows, size = bundle.shape
        assert bundle.flags.c_contiguous
        self._library.sa_endpoint_receive(self._handle, bundle.ctypes.data, rows, size, now_ns, congested)

    def handle_timer(self, now_ns: int) -> None:
        """Act on deadlines that have passed; harmless when none has (W7, W9)."""
        self._library.sa_endpoint_handle_timer(self._handle, now_ns)

    # outputs

    def frames_to_send(self, now_ns: int, limit: int = 64) -> Bundle:
        """The next frames for the switch, (k, size) with k <= limit, all of one size; until there are none (W6)."""
        frames, size = np.empty(limit * self._frame_bytes, np.uint8), self._size
        count = self._library.sa_endpoint_frames_to_send(
            self._handle, now_ns, limit, frames.ctypes.data, self._size_place
        )
        return frames[: count * size.value].reshape(count, size.value)

    def write_frames(self, now_ns: int, out: Bundle) -> int:
        """As `frames_to_send`, of a link without routes, into the rows of `out` (limit, frame_bytes); returns how
        many."""
        assert out.flags.c_contiguous
        assert out.shape[1] == self._frame_bytes
        room = len(out), out.ctypes.data, self._size_place
        count: int = self._library.sa_endpoint_frames_to_send(self._handle, now_ns, *room)
        return count

    def next_event(self) -> Event | None:
        """The oldest event not yet handed out, or None."""
        event, kind = self._event, self._library.sa_endpoint_next_event(self._handle, self._event_place)
        if kind == SA_NO_EVENT:
            return None
        if kind == SA_CALL_COMPLETED:
            return CallCompleted(event.stream, self._calls.pop(event.call))
        return failure(event, self.rank)

    # getters

    def held(self, call: ArrayCall) -> NDArray[np.bool_]:
        """As of `Endpoint`."""
        number = next(number for number, submitted in self._calls.items() if submitted is call)
        return self.held_by(number, call)

    def held_by(self, number: int, call: ArrayCall) -> NDArray[np.bool_]:
        """The same of a call that was submitted to the handle with this number."""
        held = np.empty(form_of(call, self.job).layout.chunks, bool)
        if self._library.sa_endpoint_held(self._handle, number, held.ctypes.data, len(held)):
            raise KeyError("no such call is running")
        return held

    @property
    def lacks(self) -> int:
        """How many results the call that lacks fewest lacks; more than any, if there is no call."""
        missing: int = self._library.sa_endpoint_lacks(self._handle, ctypes.byref(self._size_bytes))
        return missing

    def next_deadline_ns(self) -> int | None:
        """When `handle_timer` has work if no result comes first; None if nothing is in flight."""
        deadline_ns: int = self._library.sa_endpoint_next_deadline_ns(self._handle)
        return None if deadline_ns < 0 else deadline_ns

    @property
    def counters(self) -> dict[str, int]:
        """As they are now."""
        values = self._counters[:SA_ENDPOINT_ALL_COUNTERS]
        numbered = enumerate(zip(ENDPOINT_COUNTERS, values, strict=True))
        return {name: value for index, (name, value) in numbered if value or index < ALWAYS_SHOWN}

    def has_early(self, stream: int, chunks: int) -> bool:
        """As of `Endpoint`; any thread may call it."""
        early: int = self._library.sa_endpoint_early_chunks(self._handle, stream)
        return early >= chunks

    @property
    def memory_bytes(self) -> int:
        """Bytes that the core holds beyond the arrays of the calls."""
        size: int = self._library.sa_endpoint_memory_bytes(self._handle)
        return size

    def start_at(self, stream: int, chunk: int) -> None:
        """Go on as if all chunks of the stream below `chunk` had been answered; nothing may be submitted yet."""
        self._library.sa_endpoint_start_at(self._handle, stream, chunk)
