"""Calls that a codec turns into rounds: plain collectives, each begun when the one before it has ended. Pure.

A session, a group of a host method and a host in virtual time drive the same `RoundCalls`; they differ in what begins a
round and in what runs the codec's steps (a thread, or the caller).
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from switchagg.calls.array_calls import Begin, begin_in_python, plain_rounds, rounds_of
from switchagg.calls.call_request import CallRequest, tensors_of
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.compression import Compression
from switchagg.codecs.rounding import call_key
from switchagg.description import COMBINING
from switchagg.errors import as_line
from switchagg.layout import shares_of

KEYS = 1 << 55
"""A coded call's key lies below: its rounds take keys above all those that other calls have."""

ROUNDS_MAX = 64
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
            return _NUMBERED + number * ROUNDS_MAX, call_key(self._seed, self._rank, 0, number)
        place = key % _PLACES
        self._calls_of[place] += 1
        return _KEYED + key * ROUNDS_MAX, call_key(self._seed, self._rank, _KEYED + key, self._calls_of[place])


@dataclass
class RoundCoding:
    """How calls of one rank become rounds; those of row codecs give the bits of a switch (F7).

    elements: E of the switch that would give the same bits. begin: of row codecs. in_plain_rounds: whether a round's
    words are coded here; False: the method codes them (a switch), and only the steps of whole arrays are rounds.
    """

    compression: Compression
    keys: RoundKeys
    elements: int
    begin: Begin = begin_in_python
    in_plain_rounds: bool = True

    def codes(self, request: CallRequest, array: Array) -> bool:
        """Whether a call of this array has rounds."""
        if request.kind not in COMBINING or request.op not in ("sum", "avg"):
            return False
        by_rows = self.in_plain_rounds and self.compression.spec.codes_rows(array.dtype, len(array))
        return (by_rows and request.op == "sum") or self._remembered(request, array)

    def rounds(self, request: CallRequest, array: Array) -> tuple[int, Iterator[Reduction]]:
        """The key of the first round, and the rounds of a call that has them. Raises ValueError for tensors that can't
        be summed."""
        compression, keys, workers = self.compression, self.keys, self.compression.workers
        if self._remembered(request, array):
            tensors = tensors_of(array, request, compression)
            steps = compression.rounds(array, tensors, keys.keyless_calls, request.terms)
            key, random = keys.of(request.key)
            if self.in_plain_rounds:
                steps = plain_rounds(steps, self.elements, workers, random, self.begin)
            return key, steps
        codec, shares = compression.spec.row_codec, shares_of(request.kind, request.root, request.unit)
        assert codec is not None
        key, random = keys.of(request.key)
        words = rounds_of(array, self.elements, workers, codec, shares, random, begin=self.begin)
        return key, (Reduction(*round_words) for round_words in words)

    def _remembered(self, request: CallRequest, array: Array) -> bool:
        """Whether the codec sees the whole array, or remembers what it has lost."""
        codec = self.compression
        if not (codec.remembers or codec.stepwise):
            return False
        return codec.takes(array.dtype, len(array), request.tensors is not None, request.terms)


CallT = TypeVar("CallT")
Ended = Callable[[BaseException | None], None]
"""ended(failure): the call has ended; None: its array is combined."""

Step = Callable[[], None]


def at_once(step: Step) -> None:
    """Run a step in its caller."""
    step()


@dataclass(slots=True)
class _WaitingCall(Generic[CallT]):
    """A call in the queue of its lane. rounds None: it is one collective, which the codec doesn't touch."""

    call: CallT
    rounds: Iterator[Reduction] | None
    ended: Ended


class RoundCalls(Generic[CallT]):
    """The calls with rounds of one rank.

    begin(call, number, reduction, ended): begins a call's round of that number, from 0; None: the call itself, as it
    is. It may raise. later: runs a step of a codec, after those given before. fail: ends the job on all ranks for this
    reason, since they would wait for this rank's rounds. lock: is held around what all ranks must begin in one order.
    """

    def __init__(
        self,
        begin: Callable[[CallT, int, Reduction | None, Ended], None],
        fail: Callable[[str], None],
        later: Callable[[Step], None] = at_once,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._begin, self._fail, self._later = begin, fail, later
        self._lock: AbstractContextManager[Any] = lock or nullcontext()
        self._queues: dict[Hashable, deque[_WaitingCall[CallT]]] = {}  # by lane; the first call is under way

    def run(self, call: CallT, rounds: Iterator[Reduction], ended: Ended) -> None:
        """Begin the first round now; what it raises is the caller's."""
        try:
            self._begin(call, 0, next(rounds), partial(self._round_ended, call, 1, rounds, ended))
        except BaseException:
            rounds.close()  # type: ignore[attr-defined]
            raise

    def step(self, call: CallT, number: int, rounds: Iterator[Reduction], ended: Ended) -> None:
        """Begin a call's next round; without one the call has ended."""
        try:
            if (reduction := next(rounds, None)) is not None:
                self._begin(call, number, reduction, partial(self._round_ended, call, number + 1, rounds, ended))
                return
        except BaseException as error:
            self._fail(as_line(error))
            ended(error)
            return
        ended(None)

    def _round_ended(
        self, call: CallT, number: int, rounds: Iterator[Reduction], ended: Ended, failure: BaseException | None
    ) -> None:
        self._later(partial(ended, failure) if failure else partial(self.step, call, number, rounds, ended))

    # Calls that are matched by their order: one with rounds has its lane for itself, or ranks would begin its second
    # round at different places of the order

    def is_busy(self, lane: Hashable) -> bool:
        """Whether a call of this lane must wait."""
        return bool(self._queues.get(lane))

    def take_turn(self, lane: Hashable, call: CallT, rounds: Iterator[Reduction] | None, ended: Ended) -> None:
        """Begin a call when those before it in its lane allow it. The caller holds the lock."""
        queue = self._queues.setdefault(lane, deque())
        queue.append(_WaitingCall(call, rounds, ended))
        if len(queue) == 1:
            self._let_in(lane)

    def _let_in(self, lane: Hashable) -> None:
        """Begin what leads a lane, up to the first call with rounds."""
        queue = self._queues[lane]
        while queue:
            first = queue[0]
            if first.rounds is not None:
                self._later(partial(self.step, first.call, 0, first.rounds, partial(self._turn_ended, lane)))
                return
            queue.popleft()
            try:
                self._begin(first.call, 0, None, first.ended)
            except BaseException as error:
                first.ended(error)

    def _turn_ended(self, lane: Hashable, failure: BaseException | None) -> None:
        with self._lock:
            call = self._queues[lane].popleft()
            self._let_in(lane)
        call.ended(failure)
