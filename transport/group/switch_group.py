"""SwitchGroup: every collective through the switch, on a SwitchSession.

All are sums of int32 words, or the session's own sums of floats: for a broadcast all but the root send zeros, for an
all-gather each sends zeros outside its own shard. Words of raw bytes of which only one rank's differ from zero add up
without a carry, so any type arrives bit by bit, NaN patterns included.

The switch adds whatever comes: it can't see that ranks call different things. So before each call goes a small one in
which every rank has four words of its own, to say what it calls; it costs one packet, and is all of a barrier.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed, JobError
from transport.collectives.collective import KINDS, Kind
from transport.group.host_group import CALL_TIMEOUT_S, Array, check_call, own_shard
from transport.worker.session import SwitchSession

_OPS = ("sum", "max")
_DESCRIPTION_WORDS = 4
_SIGN = np.uint32(0x80000000)

Restore = Callable[[], None]


class SwitchGroup:
    """One rank's place; see `transport.group.host_group.Group`. Made by `join`, or on a session, which it owns then.

    Sums: all types; 8 and 16 bit integers travel as int32 and wrap as NumPy's, float16 as float32 (rounded once),
    float32 and float64 have the error bound of `switchagg.fixedpoint`. Maxima: integers of up to 32 bits, float16,
    float32; any NaN makes a NaN. priority: the nearest class that the session's streams have.
    """

    method = "switch"
    ordered = True

    def __init__(self, session: SwitchSession, link: str = "udp") -> None:
        self.rank, self.workers, self.link = session.rank, session.workers, link
        self._session = session
        self._lock = threading.Lock()  # around both calls of one: on a stream, they must follow each other everywhere
        self._failure: AggregationFailed | None = None
        self._made: dict[int, int] = {}  # class -> calls so far
        self._streams: dict[int, list[int]] = {}
        for number, stream in enumerate(session.job.streams):
            self._streams.setdefault(getattr(stream, "priority", 0), []).append(number)

    @classmethod
    def join(
        cls,
        switch: str,
        job: str,
        rank: int,
        workers: int,
        *,
        timeout_s: float = 30.0,
        call_timeout_s: float = CALL_TIMEOUT_S,
        link: str = "udp",
        **options: Any,
    ) -> "SwitchGroup":
        """Join a job on the switch whose control address is given; options: of SwitchSession.join. Raises JobError."""
        if link != "udp":
            options["link"] = link
        try:
            session = SwitchSession.join(
                switch, job, rank, workers, timeout_s=timeout_s, call_timeout_s=call_timeout_s, **options
            )
        except TypeError as error:
            raise JobError(f"method switch: {error}") from error
        return cls(session, link)

    def allreduce(self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`. ValueError for a maximum of 64 bit numbers."""
        check_call(array, op, 0, self.workers)
        wire, wire_op, restore = _staged(array, op)
        return self._call("allreduce", array, op, priority, 0, wire, wire_op, restore, array)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """See `Group`. A switch tells every rank all results."""
        check_call(array, op, 0, self.workers)
        wire, wire_op, restore = _staged(array, op)
        mine = own_shard(array, self.rank, self.workers)
        return self._call("reduce_scatter", array, op, priority, 0, wire, wire_op, restore, mine)

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        check_call(array, "sum", 0, self.workers)
        own = own_shard(array, self.rank, self.workers)
        low = (own.ctypes.data - array.ctypes.data) // array.itemsize if len(own) else 0
        array[:low] = 0
        array[low + len(own) :] = 0
        wire, restore = _words(array)
        return self._call("all_gather", array, "sum", priority, 0, wire, "sum", restore, array)

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        check_call(array, "sum", root, self.workers)
        if self.rank != root:
            array[:] = 0
        wire, restore = _words(array)
        return self._call("broadcast", array, "sum", priority, root, wire, "sum", restore, array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        nothing = np.empty(0, np.uint8)
        return self._call("barrier", nothing, "sum", priority, 0, nothing, "sum", None, None)

    @property
    def classes(self) -> tuple[int, ...]:
        """Priorities that streams have, the most urgent first."""
        return tuple(sorted(self._streams))

    @property
    def counters(self) -> Mapping[str, int]:
        """The session's."""
        return self._session.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._failure or self._session.failure

    def close(self) -> None:
        """See `Group`."""
        self._session.close()

    def __enter__(self) -> "SwitchGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Private

    def _call(
        self,
        kind: Kind,
        array: Array,
        op: str,
        priority: int,
        root: int,
        wire: Array,
        wire_op: str,
        restore: Restore | None,
        result: object,
    ) -> "Future[Any]":
        turn = _Turn(self, kind, restore, result)
        chosen = min(self._streams, key=lambda one: (abs(one - priority), one))
        with self._lock:
            if self._failure is not None:
                turn.future.set_exception(self._failure)
                return turn.future
            number = self._made.get(chosen, 0)
            self._made[chosen] = number + 1
            stream = self._streams[chosen][number % len(self._streams[chosen])]
            said = np.zeros(_DESCRIPTION_WORDS * self.workers, np.int32)
            begin = _DESCRIPTION_WORDS * self.rank
            said[begin : begin + _DESCRIPTION_WORDS] = _described(kind, array, op, root, number)
            turn.said = said
            parts = [self._session.allreduce(said, "sum", stream=stream)]
            if len(wire):
                parts.append(self._session.allreduce(wire, wire_op, stream=stream))
        turn.watch(parts)
        return turn.future

    def check(self, said: NDArray[np.int32]) -> AggregationFailed | None:
        """What is wrong with what all ranks say they call, naming both sides. Ends the session then."""
        theirs = said.reshape(self.workers, _DESCRIPTION_WORDS)
        mine = theirs[self.rank]
        other = next((rank for rank in range(self.workers) if not np.array_equal(theirs[rank], mine)), None)
        if other is None:
            return None
        failure = AggregationFailed(
            f"rank {other} calls {_text(theirs[other])}, rank {self.rank} calls {_text(mine)}",
            job=self._session.name,
            missing=tuple(sorted({other, self.rank})),
        )
        with self._lock:
            self._failure = self._failure or failure
        threading.Thread(target=self._session.close, daemon=True).start()  # not in the session's own thread
        return failure


class _Turn:
    """One call: what was said, and the values; both come in the session's thread."""

    def __init__(self, group: SwitchGroup, kind: Kind, restore: Restore | None, result: object) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self.said: NDArray[np.int32] = np.zeros(0, np.int32)
        self._group, self._kind, self._restore, self._result = group, kind, restore, result
        self._left = 0
        self._lock = threading.Lock()

    def watch(self, parts: list["Future[Any]"]) -> None:
        self._left = len(parts)
        for number, part in enumerate(parts):
            part.add_done_callback(self._checked if number == 0 else self._came)

    def _checked(self, part: "Future[Any]") -> None:
        if part.exception() is None and (failure := self._group.check(self.said)) is not None:
            self._end(failure)
            return
        self._came(part)

    def _came(self, part: "Future[Any]") -> None:
        failure = part.exception()
        if failure is not None:
            self._end(self._group.failure or failure)
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if self._restore is not None:
            self._restore()
        self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        with self._lock:
            if self.future.done():
                return
            if failure is None:
                self.future.set_result(self._result)
            else:
                self.future.set_exception(failure)


# Types


def _staged(array: Array, op: str) -> tuple[Array, Literal["sum", "max"], Restore | None]:
    """What the session reduces for an array, how, and what writes the result back, if it isn't the array itself."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    wire: Array
    if op == "sum":
        if kind == "c":
            wire = array.view(np.float32 if size == 8 else np.float64)
            return wire, "sum", None
        if kind in "iu" and size >= 4:
            return array.view(np.int32 if size == 4 else np.int64), "sum", None
        if kind == "f" and size in (4, 8):
            return array, "sum", None
        if kind == "b":
            wire = array.astype(np.int32)
            return wire, "max", lambda: np.copyto(array, wire, casting="unsafe")
        if kind in "iu" or array.dtype == np.float16:
            wire = array.astype(np.float32 if kind == "f" else np.int32)
            return wire, "sum", lambda: np.copyto(array, wire, casting="unsafe")
    elif kind == "f" and size <= 4:
        wire = _ordered(array.astype(np.float32))
        return wire, "max", lambda: np.copyto(array, _unordered(wire), casting="unsafe")
    elif kind in "biu" and size <= 4:
        if array.dtype == np.int32:
            return array, "max", None
        if array.dtype == np.uint32:
            wire = (array ^ _SIGN).view(np.int32)
            return wire, "max", lambda: np.copyto(array, wire.view(np.uint32) ^ _SIGN)
        wire = array.astype(np.int32)
        return wire, "max", lambda: np.copyto(array, wire, casting="unsafe")
    raise ValueError(f"the switch can't do {op} of {array.dtype}")


def _ordered(values: Array) -> Array:
    """float32 as int32 in the same order, with every NaN above all else."""
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _unordered(bits: Array) -> Array:
    values: Array = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    return values


def _words(array: Array) -> tuple[Array, Restore | None]:
    """The bytes of an array as int32, in place where they fill whole words, and what writes them back if not."""
    raw: Array = array.view(np.uint8)
    if raw.nbytes % 4 == 0:
        words = raw.view(np.int32)
        if words.flags.aligned:
            return words, None
    padded = np.zeros(-(-raw.nbytes // 4), np.int32)
    padded.view(np.uint8)[: raw.nbytes] = raw
    return padded, lambda: np.copyto(raw, padded.view(np.uint8)[: raw.nbytes])


# What ranks say they call


def _described(kind: Kind, array: Array, op: str, root: int, number: int) -> Array:
    first = KINDS.index(kind) | _OPS.index(op) << 4 | ord(array.dtype.char) << 8 | root << 16
    words = [first, len(array) & 0xFFFFFFFF, len(array) >> 32, number & 0xFFFFFFFF]
    return np.array(words, np.uint32).view(np.int32)


def _text(words: Array) -> str:
    first, low, high, number = (int(word) for word in words.view(np.uint32))
    kind = KINDS[min(first & 15, len(KINDS) - 1)]
    details = [_OPS[first >> 4 & 1]] if kind in ("allreduce", "reduce_scatter") else []
    details += [f"root {first >> 16}"] if kind == "broadcast" else []
    try:
        dtype = np.dtype(chr(first >> 8 & 255)).name
    except TypeError:
        dtype = "values of an unknown type"
    words_of_details = f" ({', '.join(details)})" if details else ""
    return f"{kind} {number} of {high << 32 | low} {dtype}{words_of_details}"
