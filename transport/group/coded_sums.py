"""Sums of floats through a codec, on any group whose calls are matched by key, as plain collectives: of a codec that
sees rows, codes by a maximum, then words by a sum.

The words are integers, so the bits of a result depend neither on the method nor on the order in which it adds: with
`fixed_point` they are those of a switch with as many elements per packet (F7).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from switchagg.call import plain_rounds, rounds_of
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.compression import Compression
from switchagg.codecs.float_environment import use_ieee_arithmetic
from switchagg.codecs.rounding import call_key
from switchagg.description import COMBINING, Kind
from switchagg.errors import as_line
from switchagg.layout import shares_of
from switchagg.native.native_codec import begin_in_c
from transport.contracts.group_contract import Array, CallRequest, tensors_of
from transport.group.staging import SWITCH, Staged, stage

KEYS = 1 << 55
"""A coded call's key lies below: its rounds take keys above all those that other calls have."""

_ROUNDS = 64
"""A call has at most so many rounds."""

_NUMBERED, _KEYED = 3 << 61, 1 << 62
_PLACES = 1021  # The number is prime.


class RoundKeys:
    """Keys of one rank's coded calls. seed: of random rounding. Only one thread may use them."""

    def __init__(self, rank: int, seed: int) -> None:
        self._rank, self._seed = rank, seed
        self.keyless_calls = 0
        """Coded calls without a key, so far."""
        self._calls_of = [0] * _PLACES  # by the remainder of a key: how many calls had it so far

    def of(self, key: int | None) -> tuple[int, int]:
        """The key of a call's first round, those of the others follow it, and that of random rounding (F10).

        key: of the call, below KEYS; None: its running number, then it rounds as on the first stream of a switch. Calls
        with keys may come in any order, but those of one key, and none is rounded as another.
        """
        if key is None:
            number, self.keyless_calls = self.keyless_calls, self.keyless_calls + 1
            return _NUMBERED + number * _ROUNDS, call_key(self._seed, self._rank, 0, number)
        place = key % _PLACES
        self._calls_of[place] += 1
        return _KEYED + key * _ROUNDS, call_key(self._seed, self._rank, _KEYED + key, self._calls_of[place])


Begin = Callable[[CallRequest, Array], "Future[Any]"]


class CodedSums:
    """The rounds of a group's coded calls. Thread-safe, but for `sum`: the caller holds a lock.

    begin: starts a plain collective of the group. fail: ends the group on all ranks, for the reason given. compression:
    this rank's. elements: E of the switch that would give the same bits. seed: of random numbers. Encoding and decoding
    run in a thread of their own: neither the caller's nor the network's waits for them.
    """

    def __init__(
        self, begin: Begin, fail: Callable[[str], None], compression: Compression, elements: int, keys: RoundKeys
    ) -> None:
        self._begin, self._fail, self._keys = begin, fail, keys
        self._compression, self._spec = compression, compression.spec
        self._elements, self._workers = elements, compression.workers
        self._thread = ThreadPoolExecutor(1, f"codec {self._spec.name}", use_ieee_arithmetic)

    def staged(self, request: CallRequest, array: Array) -> Staged | None:
        """The values that are coded in place of an array: floats as a switch takes them; None if the call isn't coded.

        Raises ValueError for a mean, and a key that is too large.
        """
        if array.dtype.kind not in "fc" or request.kind not in COMBINING or request.op == "max":
            return None
        if request.op != "sum":
            raise ValueError(f"op {request.op}: codec {self._spec.name} only sums")
        if request.key is not None and not 0 <= request.key < KEYS:
            raise ValueError(f"key {request.key}: 0 to {KEYS - 1} with a codec")
        staged = stage(array, request.op, SWITCH, f"codec {self._spec.name}")
        return staged if self._by_rows(request, staged.wire) or self._remembered(request, staged.wire) else None

    def _by_rows(self, request: CallRequest, wire: Array) -> bool:
        """Whether it is summed by the rounds of a row codec alone."""
        return not self._remembered(request, wire) and self._spec.codes_rows(wire.dtype, len(wire))

    def _remembered(self, request: CallRequest, wire: Array) -> bool:
        codec = self._compression
        if request.kind != "allreduce" or not (codec.remembers or codec.stepwise):
            return False
        return codec.takes(wire.dtype, len(wire), request.tensors is not None)

    def sum(self, request: CallRequest, staged: Staged, result: object) -> "Future[Any]":
        """Sum what was staged; the future resolves to `result`, in the codec's thread. Raises ValueError for tensors
        that can't be summed."""
        wire, codec = staged.wire, self._spec.row_codec
        if self._remembered(request, wire):
            tensors = tensors_of(wire, request, self._compression)
            steps = self._compression.rounds(wire, tensors, self._keys.keyless_calls)
            key, random = self._keys.of(request.key)
            rounds = plain_rounds(steps, self._elements, self._workers, random, begin_in_c)
        else:
            assert codec is not None
            key, random = self._keys.of(request.key)
            shares = shares_of(cast(Kind, request.kind), request.root, staged.unit)
            words = rounds_of(wire, self._elements, self._workers, codec, shares, random, begin=begin_in_c)
            rounds = (Reduction(*step) for step in words)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def finish() -> None:
            if staged.restore is not None:
                staged.restore()
            future.set_result(result)

        self._later(partial(self._step, rounds, request._replace(key=key, tensors=None), finish, future))
        return future

    def close(self) -> None:
        """Begin nothing any more; calls in progress end with the group's own."""
        self._thread.shutdown(wait=False)

    def _step(
        self, rounds: Iterator[Reduction], request: CallRequest, finish: Callable[[], None], future: "Future[Any]"
    ) -> None:
        """Run one round, and the next when it has ended. It runs in the codec's thread."""
        try:
            reduction = next(rounds, None)
            if reduction is None:
                finish()
                return
            part = self._begin(request._replace(kind=reduction.kind, op=reduction.op), reduction.array)
        except BaseException as error:  # the other ranks would wait for this rank's rounds
            self._fail(f"codec {self._spec.name}: {as_line(error)}")
            future.set_exception(error)
            return
        assert request.key is not None
        following = partial(self._step, rounds, request._replace(key=request.key + 1), finish, future)
        part.add_done_callback(partial(self._on_round_end, following, future))

    def _on_round_end(self, following: Callable[[], None], future: "Future[Any]", part: "Future[Any]") -> None:
        if (failure := part.exception()) is not None:
            future.set_exception(failure)
        else:
            self._later(following)

    def _later(self, step: Callable[[], None]) -> None:
        try:
            self._thread.submit(step)
        except RuntimeError:  # closed meanwhile: the group refuses the round, and the call ends
            step()
