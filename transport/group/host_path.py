"""HostPath: a rank's place among the hosts: what the ranks tell each other there (L4), and the calls of a job by a host
method, as rounds of plain collectives: the words that a switch would add, under the same codes, so that the bits are
the switch's (L3)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np

from switchagg.calls.call_request import CallRequest, own_shard
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace
from switchagg.calls.round_calls import Ended, RoundCalls
from switchagg.codecs.array_codec import Reduction
from switchagg.description import CallSignature
from switchagg.errors import JobError
from switchagg.failover.part_rows import PartRows
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig
from switchagg.native.native_codec import begin_in_c
from transport.contracts.group_contract import Group
from transport.meshes.mesh_opening import BoundPlace
from transport.worker.codec_thread import CodecThread, ended_future, pass_on

_NUMBERS, _ROUNDS = 44, 4
"""Bits of a call's number on its stream, and of a round's number in a call; the stream is above."""

_EXCHANGE = 1 << 60
"""Keys of the exchanges between ranks lie above those of calls."""


class Meet(Protocol):
    """Opens the host method's group. The arguments are those of a `Meeting`."""

    def __call__(self, timeout_s: float, sleeper_s: float, cancelled: threading.Event) -> Group: ...


def round_key(place: CallPlace, number: int) -> int:
    """The key by which ranks match a round of a call."""
    stream, of_stream = place
    return (stream << _NUMBERS | of_stream) << _ROUNDS | number


class _HostCall:
    """A call on its way: what its rounds have in common."""

    def __init__(self, place: CallPlace, priority: int, signature: CallSignature | None = None) -> None:
        self.place, self.priority, self.signature = place, priority, signature


class HostPath:
    """One rank's; `close` it. meet: opens a group without a codec. place: the port that this will take, if any.
    cancelled: once it is set, no rank is waited for. group: None until the ranks have met. Calls are matched by their
    places. Steps of codecs run in a thread of the path's own."""

    def __init__(
        self, meet: Meet, place: BoundPlace | None, rank: int, workers: int, cancelled: threading.Event
    ) -> None:
        self._meet, self._place, self._cancelled = meet, place, cancelled
        self._rank, self._workers = rank, workers
        self.group: Group | None = None
        self._closed = False
        self._exchanges = 0
        self._thread = CodecThread("of hosts")
        self._rounds: RoundCalls[_HostCall] = RoundCalls(self._begin, self.give_up, self._thread.later)

    def open(self, timeout_s: float, sleeper_s: float) -> None:
        """Meet the other ranks, unless that has happened; as of `Meeting`. Raises JobError."""
        if self.group is None:
            self.group = self._meet(timeout_s, sleeper_s, self._cancelled)
            if self._closed:  # its caller waited no longer
                self.group.close()

    def exchange(self, words: Sequence[int], limit_s: float | None) -> list[list[int]]:
        """The words of all ranks, as many of each, in order of rank. Raises JobError after limit_s, AggregationFailed.
        All ranks must call it, as often."""
        assert self.group is not None
        table = np.zeros(len(words) * self._workers, np.int64)
        own_shard(table, self._rank, self._workers)[:] = words
        self._exchanges += 1
        try:
            self.group.all_gather(table, key=_EXCHANGE + self._exchanges).result(limit_s)
        except TimeoutError:
            raise JobError(f"a rank did not come within {limit_s:g} s") from None
        rows: list[list[int]] = table.reshape(self._workers, -1).tolist()
        return rows

    def carry(
        self, place: CallPlace, call: ArrayCall, job: JobConfig, request: CallRequest, finish: Callable[[], None]
    ) -> "Future[Any]":
        """Begin a call that no switch has begun. finish: called before its future resolves to the array."""
        rounds = host_rounds(call, self._rank, job, begin_in_c)
        future, ended = ended_future(call.array, finish)
        host_call = _HostCall(place, request.priority, request.signature)
        self._thread.later(partial(self._rounds.step, host_call, 0, rounds, ended))
        return future

    def recover(self, place: CallPlace, part: PartRows, ended: Ended, priority: int) -> None:
        """Complete a disputed call, after those of its stream that came before."""
        self._thread.later(partial(self._take_turn, _HostCall(place, priority), recovery_rounds(part), ended))

    def give_up(self, reason: str) -> None:
        """Fail what is under way, on all ranks."""
        if self.group is not None:
            self.group.give_up(reason)

    def close(self) -> None:
        """Leave: nothing begins any more, and the others wait for this rank no longer. Again is allowed."""
        self._closed = True
        self._thread.close()
        if self.group is not None:
            self.group.close()
        if self._place is not None:
            self._place.close()

    def _take_turn(self, call: _HostCall, rounds: Iterator[Reduction], ended: Ended) -> None:
        self._rounds.take_turn(call.place[0], call, rounds, ended)

    def _begin(self, call: _HostCall, number: int, reduction: Reduction | None, ended: Ended) -> None:
        assert reduction is not None
        request = CallRequest(
            reduction.kind,
            reduction.op,
            round_key(call.place, number),
            call.priority,
            reduction.root,
            signature=None if number else call.signature,
        )
        assert self.group is not None
        self.group.submit(request, reduction.array).add_done_callback(partial(pass_on, ended))
