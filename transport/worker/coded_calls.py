"""CodedSessionCalls: a session's sums through a codec that remembers parameters, or takes several collectives for a
sum.

A switch matches the calls of a class by their number, so all ranks must begin them in the same order. A codec of
several collectives would begin its second when its first has ended, on each rank at another time: so it has its class
for itself until its sum is done, and later calls of that class wait.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from switchagg.calls.call_request import CallRequest, tensors_of
from switchagg.calls.round_calls import Ended, RoundCalls
from switchagg.codecs import Array
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.compression import Compression
from switchagg.description import COMBINING
from transport.worker.codec_thread import CodecThread, ended_future, pass_on

SessionCall = tuple[Array, CallRequest]


class CodedSessionCalls:
    """The coded calls of one session. Any thread may use it.

    submit(array, request, coding=None): of the session. fail: ends the job on all ranks, for the reason given. Steps of
    codecs run in a thread of their own.
    """

    def __init__(
        self, submit: Callable[..., "Future[Any]"], compression: Compression, fail: Callable[[str], None]
    ) -> None:
        self._submit, self.compression = submit, compression
        self._lock = threading.RLock()  # around what must be in the same order on all ranks
        self._sums: dict[int, int] = {}  # by class
        self._thread = CodecThread(compression.spec.name)
        self._rounds: RoundCalls[SessionCall] = RoundCalls(
            self._begin, lambda reason: fail(f"codec {compression.spec.name}: {reason}"), self._thread.later, self._lock
        )

    def begin(self, array: Array, request: CallRequest) -> "Future[Any]":
        """See `SwitchSession.call`."""
        codec, lane, rounds = self.compression, request.priority, None
        tensors = tensors_of(array, request, codec)
        with self._lock:
            is_sum = request.kind in COMBINING and request.op in ("sum", "avg")
            if is_sum and codec.takes(array.dtype, array.size, tensors is not None, request.terms):
                number = self._sums[lane] = self._sums.get(lane, 0) + 1
                rounds = codec.rounds(array, tensors, lane << 48 | number, request.terms)
            if rounds is None and not self._rounds.is_busy(lane):
                return self._submit(array, request)
            future, ended = ended_future(array)
            if rounds is not None and not codec.stepwise:  # one collective, in order: it needs no turn
                self._rounds.run((array, request), rounds, ended)
            else:
                self._rounds.take_turn(lane, (array, request), rounds, ended)
            return future

    def close(self) -> None:
        """Begin nothing any more; calls in progress end with the session's own."""
        self._thread.close()

    def _begin(self, call: SessionCall, number: int, reduction: Reduction | None, ended: Ended) -> None:
        array, request = call
        if reduction is not None:
            is_mean = request.op == "avg" and not self.compression.spec.divides  # of partial sums
            array, op = reduction.array, "avg" if is_mean and reduction.op == "sum" else reduction.op
            signature = request.signature
            assert signature is not None
            if number:  # the first round has what the caller requested, so that ranks compare that
                signature = signature._replace(kind=reduction.kind, op=op, dtype=array.dtype, elements=array.size)
            request = request._replace(kind=reduction.kind, op=op, root=0, unit=1, signature=signature)
        self._submit(array, request, reduction).add_done_callback(partial(pass_on, ended))
