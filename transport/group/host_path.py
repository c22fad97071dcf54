"""HostPath: the calls of a job by a host method, as rounds of plain collectives: the words that a switch would add,
under the same codes, so that the bits are the switch's (L3)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace
from switchagg.calls.round_calls import Ended, RoundCalls
from switchagg.codecs.array_codec import Reduction
from switchagg.description import CallSignature
from switchagg.failover.part_rows import PartRows
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig
from switchagg.native.native_codec import begin_in_c
from transport.contracts.group_contract import Group
from transport.worker.codec_thread import CodecThread, ended_future, pass_on

_NUMBERS, _ROUNDS = 44, 4
"""Bits of a call's number on its stream, and of a round's number in a call; the stream is above."""


class _HostCall:
    """A call on its way: what its rounds have in common."""

    def __init__(self, place: CallPlace, priority: int, signature: CallSignature | None = None) -> None:
        self.place, self.priority, self.signature = place, priority, signature


class HostPath:
    """The calls of one rank. hosts: a group without a codec, all ranks'; the caller closes it. Calls are matched by
    their places. Steps of codecs run in a thread of the path's own."""

    def __init__(self, hosts: Group, rank: int) -> None:
        self.hosts, self._rank = hosts, rank
        self._thread = CodecThread("of hosts")
        self._rounds: RoundCalls[_HostCall] = RoundCalls(self._begin, hosts.give_up, self._thread.later)

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

    def close(self) -> None:
        """Begin nothing any more."""
        self._thread.close()

    def _take_turn(self, call: _HostCall, rounds: Iterator[Reduction], ended: Ended) -> None:
        self._rounds.take_turn(call.place[0], call, rounds, ended)

    def _begin(self, call: _HostCall, number: int, reduction: Reduction | None, ended: Ended) -> None:
        assert reduction is not None
        stream, of_stream = call.place
        key = (stream << _NUMBERS | of_stream) << _ROUNDS | number
        request = CallRequest(
            reduction.kind,
            reduction.op,
            key,
            call.priority,
            reduction.root,
            signature=None if number else call.signature,
        )
        self.hosts.submit(request, reduction.array).add_done_callback(partial(pass_on, ended))
