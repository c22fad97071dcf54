"""MemberCalls: what a member of a job does with a call before its endpoint sees it: codec, split, number, description.

A session and a host in virtual time both use it, so that they lay out, number and round the same calls alike. Pure.

Calls are numbered on each stream separately, in the order in which they are made: ranks may make calls of different
priority classes in different orders, and still mean the same call by the same number.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from switchagg.calls.array_calls import array_call, chunked_call, split
from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs import FIXED_POINT, Array
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import CodecSpec
from switchagg.description import DESCRIBED_WORKERS_MOST, Words
from switchagg.job import JobConfig
from switchagg.layout import EVERYONE, run_of, shares_of
from switchagg.priority import class_of
from switchagg.wire import Op

NO_SECRET_MAXIMA = "a switch compares only what it can read; in a secret job gather all ranks' values and compare them"


@dataclass(slots=True)
class StreamTurns:
    """The stream that the next call takes: streams of one class take turns (W11).

    priorities: of the streams. All ranks make the calls of one class in the same order; between classes each rank may
    have an order of its own, since each class counts separately.
    """

    priorities: Sequence[int]
    _streams: dict[int, list[int]] = field(default_factory=dict)
    _calls: dict[int, int] = field(default_factory=dict)
    classes: tuple[int, ...] = ()
    """The classes that have streams, the most urgent first."""

    def __post_init__(self) -> None:
        for stream, priority in enumerate(self.priorities):
            self._streams.setdefault(class_of(priority), []).append(stream)
        self.classes = tuple(sorted(self._streams))

    def streams_of(self, priority: int | None = None) -> tuple[int, ...]:
        """The streams of a class; None: of the least urgent one. Raises ValueError if no stream has it."""
        wanted = max(self._streams) if priority is None else priority
        if wanted not in self._streams:
            there = ", ".join(map(str, self.classes))
            raise ValueError(f"priority {priority}: no stream has this class; the job's classes: {there}")
        return tuple(self._streams[wanted])

    def take(self, priority: int | None = None, stream: int | None = None) -> int:
        """The stream of the next call: `stream` if given, else the class's next in turn. Raises ValueError as above."""
        if stream is not None:
            if not 0 <= stream < len(self.priorities):
                raise ValueError(f"stream {stream}: the job has {len(self.priorities)}")
            stream_class = class_of(self.priorities[stream])
            if priority not in (None, stream_class):
                raise ValueError(f"priority {priority}: stream {stream} has class {stream_class}")
            priority = stream_class
        wanted = self.classes[-1] if priority is None else priority
        streams = self._streams.get(wanted) or self.streams_of(priority)
        turn = self._calls.get(wanted, 0)
        self._calls[wanted] = turn + 1
        return streams[turn % len(streams)] if stream is None else stream


CallPlace = tuple[int, int]
"""(stream, its number on the stream, from 0)."""


class CallLedger:
    """The calls of one member; only one thread may use it. priorities: of the streams; StreamTurns picks a call's.
    first: the numbers with which the streams begin; 0 by default."""

    def __init__(self, priorities: Sequence[int], first: Sequence[int] = ()) -> None:
        self.turns = StreamTurns(priorities)
        self._calls = list(first) or [0] * len(priorities)
        self._pending: list[dict[int, None]] = [{} for _ in priorities]  # for each stream, its calls in order of number
        self._classes = priorities
        self._class_calls = dict.fromkeys(priorities, 0)  # for each class, how many calls it had

    def __bool__(self) -> bool:
        """Whether any call is in progress."""
        return any(self._pending)

    def begin(
        self, priority: int | None = None, stream: int | None = None, split: Iterable[int] = ()
    ) -> list[CallPlace]:
        """Enter the next call, or its parts, one on each of the streams `split` (W11); returns where they belong.

        Raises ValueError for a class or stream there isn't.
        """
        return [self._enter(number) for number in tuple(split) or (self.turns.take(priority, stream),)]

    def _enter(self, stream: int) -> CallPlace:
        number = self._calls[stream]
        self._calls[stream] = number + 1
        self._class_calls[self._classes[stream]] += 1
        self._pending[stream][number] = None
        return stream, number

    def note(self, place: CallPlace) -> None:
        """A call that another ledger has entered; on a stream they come in order."""
        self._calls[place[0]] = place[1] + 1
        self._pending[place[0]][place[1]] = None

    def calls_before(self, calls: Sequence[CallPlace]) -> int:
        """How many calls of their class, and parts of calls, were made before the newest, which these are."""
        return self._class_calls[self._classes[calls[0][0]]] - len(calls)

    def finish(self, call: CallPlace) -> None:
        """The call has its result. A failed one is never finished."""
        self._pending[call[0]].pop(call[1], None)

    def call_counts(self) -> list[int]:
        """How many calls there were so far, by stream."""
        return list(self._calls)

    def pending(self) -> list[list[int]]:
        """Numbers of the calls in progress, by stream, in order."""
        return [list(pending) for pending in self._pending]

    def finished(self) -> list[int]:
        """How many calls are finished, by stream: the number of the first that isn't."""
        return [next(iter(pending), calls) for pending, calls in zip(self._pending, self._calls, strict=True)]

    def waits_for(self, calls: Sequence[int], *, late: bool) -> bool:
        """Whether a call in progress waits for a member that left after it had finished so many, by stream.

        If not `late`, all streams with calls must wait for it. The results of calls that it had finished may still be
        on their way to us, and are let in first, since one that waits in vain ends them all.
        """
        waiting = []
        for stream, pending in enumerate(self._pending):
            if pending:
                reach = next(reversed(pending)) if late else next(iter(pending))
                waiting.append((calls[stream] if stream < len(calls) else 0) <= reach)
        return any(waiting) if late else bool(waiting) and all(waiting)


class LaidOutCall(NamedTuple):
    """A call that has no number yet."""

    request: CallRequest
    parts: Sequence[ArrayCall]
    """The calls that the endpoint takes: the whole call, or a part for each of `streams`."""
    streams: Sequence[int]
    """The streams of a call that is split over several (W11); else empty."""


class MemberCalls:
    """The calls of one member. `lay_out` may run in any thread, the other methods in one at a time.

    job: the generation in progress; a new one may take its place between calls. sums: how sums of floats are coded.
    codec_seed: of random rounding (F10). split_calls: whether a long call is spread over the streams of its class.
    routed: whether the switch and the link know routes (W15). windows: slots of each stream for which the job has
    asked, where it may have got fewer; what travels how never depends on how many it got (W11, W13). (): the job's.
    """

    def __init__(
        self,
        job: JobConfig,
        rank: int,
        sums: CodecSpec,
        codec_seed: int = 0,
        *,
        split_calls: bool = False,
        routed: bool = True,
        windows: Sequence[int] = (),
    ) -> None:
        """Raises ValueError for more workers than the codec sums."""
        self.job = job
        self.ledger = CallLedger([stream.priority for stream in job.streams])
        self._described = job.workers <= DESCRIBED_WORKERS_MOST and not job.partial
        spec = sums.for_workers(job.workers)
        self._rank, self._codec_seed, self._split_calls = rank, codec_seed, split_calls
        self._codec = spec.row_codec or FIXED_POINT
        self._least = spec.least if self._codec.lossy else 0
        self.routed = routed
        self._windows = windows or [stream.window_slots for stream in job.streams]
        self._early_chunks: dict[int, int] = {}  # by the size of a mean

    def lay_out(self, array: Array, request: CallRequest, coding: Reduction | None = None) -> LaidOutCall:
        """Decide how a call travels. array: what is sent. coding: the reduction of a codec that the call carries out;
        None: sums are coded as those of their size are. Raises ValueError for what no switch can do (`array_call`)."""
        job, shares = self.job, shares_of(request.kind, request.root, request.unit)
        if coding is None:
            codec, residual = self._codec if array.size >= self._least else FIXED_POINT, None
        else:
            codec, residual = coding.codec or FIXED_POINT, coding.residual
        if not array.size and not self._described:  # nothing else would say that this rank is there
            # Q8: a partial sum wouldn't wait for all
            array, shares = np.zeros(1, np.int32), shares_of("broadcast") if job.partial else EVERYONE
        call = array_call(array, request.op, job, codec, shares._replace(routed=self.routed), residual)
        if call.op is Op.MAX and job.secret == "on" and coding is None:
            raise ValueError(f"op max of {array.dtype}: {NO_SECRET_MAXIMA}")
        cut = {}
        if self._split_calls and request.stream is None:
            streams = self.ledger.turns.streams_of(request.priority)
            cut = split(call, job, {stream: self._windows[stream] for stream in streams})
        parts = [replace(call, shares=part_shares) for part_shares in cut.values()] or [call]
        return LaidOutCall(request, parts, tuple(cut))

    def enter(self, call: LaidOutCall) -> list[tuple[CallPlace, ArrayCall]]:
        """Give a call the next number of its stream, or its parts theirs: (place, what the endpoint takes), described
        (W12). Raises ValueError for a class or stream there isn't."""
        request, parts, streams = call
        places = self.ledger.begin(request.priority, request.stream, streams)
        words: Words | None = None
        if self._described and request.signature is not None:
            words = request.signature.words(self.ledger.calls_before(places))
        for place, part in zip(places, parts, strict=True):
            part.description = words
            if part.shares.owner is None:
                part.shares = part.shares._replace(run=run_of(self._windows[place[0]], self.job.workers))
            if part.codec.lossy:  # no other codec rounds at random
                part.key = call_key(self._codec_seed, self._rank, *place)
        return list(zip(places, parts, strict=True))

    def finished_without(self, has_early: Callable[[int, int], bool], sizes: Sequence[int]) -> bool:
        """Whether all results of the next calls, means of so many float32, are there; no call is in progress (Q7).

        has_early: of the endpoint, by stream and number of chunks.
        """
        ends, turns = [0] * len(self.job.streams), copy.deepcopy(self.ledger.turns)
        for size in sizes:
            ends[turns.take()] += self._mean_chunks(size)
        return all(has_early(stream, chunks) for stream, chunks in enumerate(ends))

    def _mean_chunks(self, size: int) -> int:
        if size not in self._early_chunks:
            codec = self._codec if size >= self._least else FIXED_POINT
            call = array_call(np.zeros(size, np.float32), "avg", self.job, codec)
            self._early_chunks[size] = chunked_call(call, self.job).chunks
        return self._early_chunks[size]
