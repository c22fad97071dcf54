"""Sums of floats through a codec, on any group whose calls are matched by key, as plain collectives: of a codec that
sees rows, codes by a maximum, then words by a sum.

The words are integers, so the bits of a result depend neither on the method nor on the order in which it adds: with
`fixed_point` they are those of a switch with as many elements per packet (F7).
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from switchagg.calls.call_request import CallRequest
from switchagg.calls.round_calls import KEYS, Ended, RoundCalls, RoundCoding
from switchagg.codecs.array_codec import Reduction
from switchagg.description import COMBINING, requested_op_index
from transport.contracts.group_contract import Array
from transport.group.staging import SWITCH, Staged, stage
from transport.worker.codec_thread import CodecThread, ended_future, pass_on

Begin = Callable[[CallRequest, Array], "Future[Any]"]


class CodedSums:
    """The rounds of a group's coded calls. Thread-safe, but for `sum`: the caller holds a lock.

    begin: starts a plain collective of the group. fail: ends the group on all ranks, for the reason given. coding: this
    rank's. Encoding and decoding run in a thread of their own.
    """

    def __init__(self, begin: Begin, fail: Callable[[str], None], coding: RoundCoding) -> None:
        self._begin, self._coding, self._codec = begin, coding, coding.compression.spec.name
        self._thread = CodecThread(self._codec)
        self._rounds: RoundCalls[CallRequest] = RoundCalls(
            self._begin_round, lambda reason: fail(f"codec {self._codec}: {reason}"), self._thread.later
        )

    def staged(self, request: CallRequest, array: Array) -> Staged | None:
        """The values that are coded in place of an array: floats as a switch takes them; None if the call isn't coded.

        Raises ValueError for a mean that the codec can't make, and a key that is too large.
        """
        if array.dtype.kind not in "fc" or request.kind not in COMBINING or request.op == "max":
            return None
        if request.op != "sum" and not self._coding.compression.spec.divides:
            raise ValueError(f"op {request.op}: codec {self._codec} only sums")
        if request.key is not None and not 0 <= request.key < KEYS:
            raise ValueError(f"key {request.key}: 0 to {KEYS - 1} with a codec")
        staged = stage(array, "sum", SWITCH, f"codec {self._codec}")
        return staged if self._coding.codes(request, staged.wire) else None

    def sum(self, request: CallRequest, staged: Staged, result: object) -> "Future[Any]":
        """Sum what was staged; the future resolves to `result`, in the codec's thread. Raises ValueError for tensors
        that can't be summed."""
        key, rounds = self._coding.rounds(request._replace(unit=staged.unit), staged.wire)
        future, ended = ended_future(result, staged.restore)
        requested_op = request.requested_op or requested_op_index(request.op, staged.wire.dtype.name, "sum")
        first_round = request._replace(key=key, tensors=None, requested_op=requested_op)
        self._thread.later(partial(self._rounds.step, first_round, 0, rounds, ended))
        return future

    def close(self) -> None:
        """Begin nothing any more; calls in progress end with the group's own."""
        self._thread.close()

    def _begin_round(self, request: CallRequest, number: int, reduction: Reduction | None, ended: Ended) -> None:
        assert reduction is not None
        assert request.key is not None
        step = request._replace(kind=reduction.kind, op=reduction.op, key=request.key + number, root=0, unit=1)
        self._begin(step, reduction.array).add_done_callback(partial(pass_on, ended))
