"""CodedSessionCalls: a session's sums through a codec that remembers parameters, or takes several collectives for a
sum.

A switch matches the calls of a class by their number, so all ranks must begin them in the same order. A codec of
several collectives would begin its second when its first has ended, on each rank at another time: so it has its class
for itself until its sum is done, and later calls of that class wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from switchagg.codecs import FIXED_POINT, Array
from switchagg.codecs.array_codec import Reduction, Tensors
from switchagg.codecs.compression import Compression
from switchagg.codecs.float_environment import use_ieee_arithmetic
from switchagg.description import CallSignature
from switchagg.errors import as_line
from switchagg.layout import EVERYONE, Shares, shares_of


class SessionCall(NamedTuple):
    """A call of a session, but for how it is coded."""

    array: Array
    op: str
    signature: CallSignature
    shares: Shares = EVERYONE
    priority: int | None = None
    stream: int | None = None


Submit = Callable[..., "Future[Any]"]
"""submit(*call, codec=, residual=): begins a call of the session; without a codec, as sums of its size are coded."""


def _future() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True)
class _Waiting:
    """A call in the queue of its class. rounds None: it is one collective, which the codec doesn't touch."""

    call: SessionCall
    rounds: Iterator[Reduction] | None
    future: "Future[Any]" = field(default_factory=_future)


class CodedSessionCalls:
    """The coded calls of one session. Any thread may use it.

    submit: of the session. lane: the class of a (priority, stream). fail: ends the job on all ranks, for the reason
    given. Steps of codecs run in a thread of their own.
    """

    def __init__(
        self,
        submit: Submit,
        compression: Compression,
        lane: Callable[[int | None, int | None], int],
        fail: Callable[[str], None],
    ) -> None:
        self._submit, self.compression, self._lane, self._fail = submit, compression, lane, fail
        self._lock = threading.RLock()  # around what must be in the same order on all ranks
        self._queues: dict[int, deque[_Waiting]] = {}  # by class; the first one is under way
        self._calls: dict[int, int] = {}
        self._thread = ThreadPoolExecutor(1, f"codec {compression.spec.name}", use_ieee_arithmetic)

    def begin(self, call: SessionCall, tensors: Tensors | None) -> "Future[Any]":
        """See `SwitchSession.call`."""
        codec = self.compression
        with self._lock:
            lane, rounds = self._lane(call.priority, call.stream), None
            array, sums = call.array, call.signature.kind == "allreduce" and call.op in ("sum", "avg")
            if sums and codec.takes(array.dtype, array.size, tensors is not None):
                number = self._calls[lane] = self._calls.get(lane, 0) + 1
                rounds = codec.rounds(array, tensors, lane << 48 | number)
            if not codec.stepwise:
                return self._submit(*call) if rounds is None else self._at_once(_Waiting(call, rounds))
            queue = self._queues.setdefault(lane, deque())
            if rounds is None and not queue:
                return self._submit(*call)
            waiting = _Waiting(call, rounds)
            queue.append(waiting)
            if len(queue) == 1:
                self._later(partial(self._step, lane, waiting))
            return waiting.future

    def close(self) -> None:
        """Begin nothing any more; calls in progress end with the session's own."""
        self._thread.shutdown(wait=False)

    def _at_once(self, waiting: _Waiting) -> "Future[Any]":
        """A sum of one collective: in order, so it needs no queue. It raises the session's errors."""
        assert waiting.rounds is not None
        try:
            part = self._reduce(waiting.call, next(waiting.rounds))
        except BaseException:
            waiting.rounds.close()  # type: ignore[attr-defined]
            raise
        part.add_done_callback(partial(self._on_round_end, partial(self._step, None, waiting), None, waiting))
        return waiting.future

    def _reduce(self, call: SessionCall, reduction: Reduction) -> "Future[Any]":
        op = call.op if reduction.op == "sum" else reduction.op
        signature = call.signature._replace(
            kind=reduction.kind, op=op, dtype=reduction.array.dtype, elements=reduction.array.size
        )
        shares = shares_of(reduction.kind)
        step = SessionCall(reduction.array, op, signature, shares, call.priority, call.stream)
        return self._submit(*step, codec=reduction.codec or FIXED_POINT, residual=reduction.residual)

    # Methods that run in the codec's thread

    def _step(self, lane: int | None, waiting: _Waiting) -> None:
        """The next collective of a sum, or its end. lane: whose queue it leads; None: none."""
        try:
            assert waiting.rounds is not None
            reduction = next(waiting.rounds, None)
            part = None if reduction is None else self._reduce(waiting.call, reduction)
        except BaseException as error:
            # The other ranks would wait for this rank's collectives.
            self._fail(f"codec {self.compression.spec.name}: {as_line(error)}")
            self._end(lane, waiting, error)
            return
        if part is None:
            self._end(lane, waiting, None)
        else:
            part.add_done_callback(partial(self._on_round_end, partial(self._step, lane, waiting), lane, waiting))

    def _on_round_end(
        self, following: Callable[[], None], lane: int | None, waiting: _Waiting, part: "Future[Any]"
    ) -> None:
        """Go on after a collective; the session's thread calls it."""
        failure = part.exception()
        self._later(following if failure is None else partial(self._end, lane, waiting, failure))

    def _end(self, lane: int | None, waiting: _Waiting, failure: BaseException | None) -> None:
        """Give a sum its end, and begin what waits in its class: up to the next sum of several collectives."""
        if lane is not None:
            self._let_in(lane)
        if failure is None:
            waiting.future.set_result(waiting.call.array)
        else:
            waiting.future.set_exception(failure)

    def _let_in(self, lane: int) -> None:
        with self._lock:
            queue = self._queues[lane]
            queue.popleft()
            while queue and queue[0].rounds is None:
                plain = queue.popleft()
                try:
                    part = self._submit(*plain.call)
                except BaseException as error:
                    plain.future.set_exception(error)
                    continue
                part.add_done_callback(partial(_pass_on, plain))
            if queue:
                self._later(partial(self._step, lane, queue[0]))

    def _later(self, step: Callable[[], None]) -> None:
        try:
            self._thread.submit(step)
        except RuntimeError:  # closed meanwhile: the session refuses the collective, and the call ends
            step()


def _pass_on(waiting: _Waiting, part: "Future[Any]") -> None:
    if (failure := part.exception()) is not None:
        waiting.future.set_exception(failure)
    else:
        waiting.future.set_result(part.result())
