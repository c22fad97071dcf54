"""SwitchGroup: every collective through the switch, on a SwitchSession.

All are sums of int32 words, or the session's own sums of floats: for a broadcast all but the root send zeros, for an
all-gather each sends zeros outside its own shard. Words of raw bytes of which only one rank's differ from zero add up
without a carry, so any type arrives bit by bit, NaN patterns included.

The switch adds whatever arrives: it can't see that ranks make different calls. So each call is preceded by a small one
in which every rank has four words of its own that describe it; it costs one packet, and is all that a barrier sends.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed
from switchagg.priority import StreamTurns
from transport.collectives.collective import KINDS
from transport.group.contract import NOTHING, Array, Ask, Matching, checked, own_shard
from transport.group.staging import SWITCH, Restore, Staged, as_words, stage
from transport.worker.options import JoinOptions
from transport.worker.session import SwitchSession

_OPS = ("sum", "max")
_DESCRIPTION_WORDS = 4


class SwitchGroup:
    """One rank's place: a `contract.Group`. Made by `join`, or on a session, which it owns then.

    What travels for each type: `staging`. float32 and float64 have the error bound of `switchagg.codecs.fixed_point`;
    any NaN makes a maximum NaN. priority: the nearest class that the session's streams have.
    """

    method = "switch"
    matching: Matching = "class"

    def __init__(self, session: SwitchSession) -> None:
        self.rank, self.workers, self.link, self.core = session.rank, session.workers, session.link, session.core
        self._session = session
        self._lock = threading.Lock()  # around both calls of one: on a stream, they must follow each other everywhere
        self._failure: AggregationFailed | None = None
        self._made: dict[int, int] = {}  # class -> calls so far
        self._turns = StreamTurns([stream.priority for stream in session.job.streams])
        self.classes = self._turns.classes

    @classmethod
    def join(cls, switch: str, job: str, rank: int, workers: int, options: JoinOptions | None = None) -> "SwitchGroup":
        """Join a job on the switch whose control address is given, as SwitchSession does. Raises JobError."""
        return cls(SwitchSession.join(switch, job, rank, workers, options))

    def allreduce(self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`. ValueError for a maximum of 64 bit numbers."""
        ask = checked(Ask("allreduce", op, key, priority), array, self.workers)
        return self._call(ask, array, stage(array, op, SWITCH, "the switch"), array)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """See `Group`. A switch sends all results to every rank."""
        ask = checked(Ask("reduce_scatter", op, key, priority), array, self.workers)
        mine = own_shard(array, self.rank, self.workers)
        return self._call(ask, array, stage(array, op, SWITCH, "the switch"), mine)

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        ask = checked(Ask("all_gather", "sum", key, priority), array, self.workers)
        own = own_shard(array, self.rank, self.workers)
        low = (own.ctypes.data - array.ctypes.data) // array.itemsize if len(own) else 0
        array[:low] = 0
        array[low + len(own) :] = 0
        return self._call(ask, array, as_words(array), array)

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        ask = checked(Ask("broadcast", "sum", key, priority, root), array, self.workers)
        if self.rank != ask.root:
            array[:] = 0
        return self._call(ask, array, as_words(array), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        ask = checked(Ask("barrier", "sum", key, priority), NOTHING, self.workers)
        return self._call(ask, NOTHING, Staged(NOTHING, "sum", None), None)

    @property
    def counters(self) -> Mapping[str, int]:
        """The session's."""
        return self._session.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._failure or self._session.failure

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`: nothing."""

    def status(self) -> Mapping[str, Any]:
        """The session's."""
        return self._session.status()

    def close(self) -> None:
        """See `Group`."""
        self._session.close()

    def __enter__(self) -> "SwitchGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Private

    def _call(self, ask: Ask, array: Array, staged: Staged, result: object) -> "Future[Any]":
        pending = _PendingCall(self, staged.restore, result)
        chosen = min(self.classes, key=lambda one: (abs(one - ask.priority), one))
        with self._lock:
            if self._failure is not None:
                pending.future.set_exception(self._failure)
                return pending.future
            number = self._made.get(chosen, 0)
            self._made[chosen] = number + 1
            stream = self._turns.take(chosen)
            descriptions = np.zeros(_DESCRIPTION_WORDS * self.workers, np.int32)
            begin = _DESCRIPTION_WORDS * self.rank
            descriptions[begin : begin + _DESCRIPTION_WORDS] = _described(ask, array, number)
            pending.descriptions = descriptions
            parts = [self._session.allreduce(descriptions, "sum", stream=stream)]
            if len(staged.wire):
                parts.append(self._session.allreduce(staged.wire, staged.op, stream=stream))
        pending.watch(parts)
        return pending.future

    def check(self, descriptions: NDArray[np.int32]) -> AggregationFailed | None:
        """What differs between the descriptions of all ranks' calls, naming both sides. Ends the session then."""
        theirs = descriptions.reshape(self.workers, _DESCRIPTION_WORDS)
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


class _PendingCall:
    """One call: its description, and the values; both arrive in the session's thread."""

    def __init__(self, group: SwitchGroup, restore: Restore | None, result: object) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self.descriptions: NDArray[np.int32] = np.zeros(0, np.int32)
        self._group, self._restore, self._result = group, restore, result
        self._left = 0
        self._lock = threading.Lock()

    def watch(self, parts: list["Future[Any]"]) -> None:
        self._left = len(parts)
        for number, part in enumerate(parts):
            part.add_done_callback(self._checked if number == 0 else self._came)

    def _checked(self, part: "Future[Any]") -> None:
        if part.exception() is None and (failure := self._group.check(self.descriptions)) is not None:
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


# Descriptions of calls


def _described(ask: Ask, array: Array, number: int) -> Array:
    first = KINDS.index(ask.kind) | _OPS.index(ask.op) << 4 | ord(array.dtype.char) << 8 | ask.root << 16
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
