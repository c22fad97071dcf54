"""Sums of floats through a codec, on any group whose calls are matched by key: codes by a maximum, words by a sum.

The words are integers, so the bits of a result depend neither on the method nor on the order in which it adds: with
`fixed_point` they are those of a switch with as many elements per packet (F7).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from switchagg.call import rounds_of
from switchagg.codecs import Codec
from switchagg.codecs.float_environment import use_ieee_arithmetic
from switchagg.codecs.rounding import call_key
from switchagg.description import COMBINING, Kind
from switchagg.layout import shares_of
from transport.group.contract import Array, Ask
from transport.group.staging import SWITCH, Staged, stage

KEYS = 1 << 59
"""A coded call's key lies below: its rounds take keys above all those that other calls have."""

_ROUNDS = 4
_NUMBERED, _KEYED = 3 << 61, 1 << 62
_PLACES = 1021  # a prime


class RoundKeys:
    """Keys of one rank's coded calls. seed: of random rounding. Not thread-safe."""

    def __init__(self, rank: int, seed: int) -> None:
        self._rank, self._seed = rank, seed
        self._made = 0
        self._again = [0] * _PLACES  # calls so far, by the remainder of their key

    def of(self, key: int | None) -> tuple[int, int]:
        """The key of a call's first round, those of the others follow it, and that of random rounding (F10).

        key: of the call, below KEYS; None: its running number, then it rounds as on the first stream of a switch. Calls
        with keys may come in any order, but those of one key, and none is rounded as another.
        """
        if key is None:
            number, self._made = self._made, self._made + 1
            return _NUMBERED + number * _ROUNDS, call_key(self._seed, self._rank, 0, number)
        place = key % _PLACES
        self._again[place] += 1
        return _KEYED + key * _ROUNDS, call_key(self._seed, self._rank, _KEYED + key, self._again[place])


Begin = Callable[[Ask, Staged, object], "Future[Any]"]


class CodedSums:
    """The rounds of a group's coded calls. Thread-safe, but for `begin`'s numbers: the caller holds a lock.

    begin: starts a plain allreduce of the group. elements: E of the switch that would give the same bits. keys: this
    rank's. Encoding and decoding run in a thread of their own: neither the caller's nor the network's waits for them.
    """

    def __init__(self, begin: Begin, workers: int, codec: Codec, elements: int, keys: RoundKeys) -> None:
        self._begin, self._workers, self._codec, self._elements = begin, workers, codec, elements
        self._keys = keys
        self._thread = ThreadPoolExecutor(1, f"codec {codec.name}", use_ieee_arithmetic)

    def staged(self, ask: Ask, array: Array) -> Staged | None:
        """What is coded in place of an array: floats as a switch takes them; None if the call isn't coded at all.

        Raises ValueError for a mean, and a key that is too large.
        """
        if array.dtype.kind not in "fc" or ask.kind not in COMBINING or ask.op == "max":
            return None
        if ask.op != "sum":
            raise ValueError(f"op {ask.op}: codec {self._codec.name} only sums")
        if ask.key is not None and not 0 <= ask.key < KEYS:
            raise ValueError(f"key {ask.key}: 0 to 2**59 - 1 with a codec")
        staged = stage(array, ask.op, SWITCH, f"codec {self._codec.name}")
        return staged if staged.wire.dtype in self._codec.dtypes else None

    def sum(self, ask: Ask, staged: Staged, result: object) -> "Future[Any]":
        """Sum what was staged; the future resolves to `result`, in the codec's thread."""
        key, random = self._keys.of(ask.key)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        shares = shares_of(cast(Kind, ask.kind), ask.root, staged.unit)
        rounds = rounds_of(staged.wire, self._elements, self._workers, self._codec, shares, random)

        def finish() -> None:
            if staged.restore is not None:
                staged.restore()
            future.set_result(result)

        self._later(partial(self._step, rounds, ask._replace(kind="allreduce", key=key), finish, future))
        return future

    def close(self) -> None:
        """Begin nothing any more; calls in progress end with the group's own."""
        self._thread.shutdown(wait=False)

    def _step(
        self, rounds: Iterator[tuple[Array, str]], ask: Ask, finish: Callable[[], None], future: "Future[Any]"
    ) -> None:
        """One round, and the next when it has ended. In the codec's thread."""
        try:
            words, op = next(rounds, (None, ""))
            if words is None:
                finish()
                return
            part = self._begin(ask._replace(op=op), Staged(words, op, None), words)
        except BaseException as error:
            future.set_exception(error)
            return
        assert ask.key is not None
        following = partial(self._step, rounds, ask._replace(key=ask.key + 1), finish, future)
        part.add_done_callback(partial(self._came, following, future))

    def _came(self, following: Callable[[], None], future: "Future[Any]", part: "Future[Any]") -> None:
        if (failure := part.exception()) is not None:
            future.set_exception(failure)
        else:
            self._later(following)

    def _later(self, step: Callable[[], None]) -> None:
        try:
            self._thread.submit(step)
        except RuntimeError:  # closed meanwhile: the group refuses the round, and the call ends
            step()
