"""One worker's end of a job: a pure state machine (rules W1 to W9 and G5 to G8).

Four families of methods, called in this order by whatever drives it (an event loop over sockets, the simulator, a
test); none blocks, and the time is always an argument:

- inputs: `receive` for every bundle from the switch, `handle_timer` once `next_deadline_ns` has passed
- commands: `submit` a call to a stream
- outputs: `frames_to_send` until it returns no rows, `next_event` until it returns None
- getters: `next_deadline_ns` is when to call again if no frame arrives before

Sends are paced by results: a chunk's result frees its slot for the chunk one window later.
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import chunked_call, description_call
from switchagg.calls.chunked_call import ArrayCall, Call, ChunkedCall
from switchagg.calls.mask import NO_KEY
from switchagg.calls.small_call import Predictions, SmallCall
from switchagg.calls.verified_sums import AwaitedResult, VerifiedSums
from switchagg.description import WORDS, other_call
from switchagg.job import MAX_CHILDREN, MODULUS, JobConfig
from switchagg.pacing import RetransmissionTimeout
from switchagg.priority import class_of
from switchagg.window import CallInFlight, Window
from switchagg.wire import (
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    HEADER_BYTES,
    MARKED,
    RESULTS,
    ROUTE_BITS,
    SHARE_BITS,
    Bundle,
    Values,
    fault,
    frame_bytes,
    givers,
    headers,
    pack_header,
    payload,
)


@dataclass(frozen=True, slots=True, eq=False)
class CallCompleted:
    """Every chunk's result has been written into the call's array."""

    stream: int
    call: ArrayCall
    """The very object that was submitted."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream has given up and sends nothing more. timeouts: how many in a row; `chunk` is the oldest unanswered
    (W9). rank: a worker that makes another call, as `reason` says; `chunk` is of the description then (W12)."""

    stream: int
    slot: int
    version: int
    chunk: int
    timeouts: int
    reason: str
    rank: int | None = None


NO_BETTER = "wrong sum, also when it was asked for again"
TOO_EARLY = "wrong sum, which came too early to be asked for again"


class WrongSum(StreamFailed):
    """The stream has given up as a sum is wrong, also when it was asked for again, or can't be (V7 to V9)."""


Event = CallCompleted | StreamFailed


class Endpoint:
    """The worker `rank` of `job`. Every time is a monotonic `now_ns` from any origin, never decreasing.

    wire_rank: its index among what sends to its switch, which packets carry; None: as `rank` (H1). key: of the
    generation, 16 bytes, for jobs that verify sums (V1); and 32 behind them for jobs whose sums are secret (X1).
    """

    def __init__(self, job: JobConfig, rank: int, wire_rank: int | None = None, key: bytes = NO_KEY) -> None:
        assert 0 <= rank < job.workers
        self.job = job
        self.rank = rank
        self.wire_rank = rank if wire_rank is None else wire_rank
        assert 0 <= self.wire_rank < MAX_CHILDREN
        self.counters = {"sent": 0, "retransmitted": 0, "timeouts": 0, "results": 0, "duplicates": 0}
        self._frame_bytes = frame_bytes(job.elements)
        self._events: deque[Event] = deque()
        self._predictions = Predictions()
        self._sums = VerifiedSums(job, rank, key, self._gives) if job.tag_elements else None
        timeouts = {
            config.priority: RetransmissionTimeout(job.rto_initial_ns, job.rto_min_ns, job.rto_max_ns)
            for config in job.streams
        }
        self._windows = [Window(job, stream, timeouts[config.priority]) for stream, config in enumerate(job.streams)]
        self._by_priority = sorted(self._windows, key=lambda window: window.priority)

    # commands

    def submit(self, stream: int, call: ArrayCall) -> None:
        """Queue a call on a stream; every worker submits the same calls to a stream in the same order (W3)."""
        self._submit_chunks(self._windows[stream], chunked_call(call, self.job))

    # inputs

    def receive(self, bundle: Bundle, now_ns: int, congested: bool = False) -> None:
        """Take datagrams from the switch; whatever is no awaited result is counted and changes nothing (W5).

        congested: they came marked CE (G8).
        """
        count, size = bundle.shape
        if size < HEADER_BYTES:
            self._count("drop_short", count)
            return
        awaited: dict[int, tuple[CallInFlight, list[int], list[int]]] = {}
        touched: dict[int, Window] = {}
        rows_fields = headers(bundle).tolist()
        values, wrong = self._verified(bundle if size == self._frame_bytes else bundle[:, :0], rows_fields)
        for row, fields in enumerate(rows_fields):
            window = self._window_of(fields, bundle[row])
            if window is None:
                continue
            if row in wrong:
                self._refuse(window, fields[2] - window.first_slot)
                continue
            marked = fields[5] >= MARKED
            if marked:
                self._count("marked", 1)
            window.to_mark += congested
            chunk = window.answered((fields[2] - window.first_slot), now_ns, marked)
            touched[window.stream] = window
            running = window.call_of(chunk)
            entry = awaited.get(id(running))
            if entry is None:
                entry = awaited[id(running)] = (running, [], [])
            entry[1].append(row)
            entry[2].append(chunk - running.base)
        if not touched:
            return
        for running, rows, positions in awaited.values():
            if size > HEADER_BYTES:
                running.call.write(positions, (values if len(rows) == count else values[rows]).astype(np.int32))
            running.missing -= len(rows)
            self.counters["results"] += len(rows)
        for window in touched.values():
            window.after_results()
            self._complete(window)

    def handle_timer(self, now_ns: int) -> None:
        """Act on deadlines that have passed; harmless when none has (W7, W9)."""
        for window in self._windows:
            deadline_ns = window.deadline_ns()
            if deadline_ns is None or deadline_ns > now_ns:
                continue
            window.timeouts += 1
            self.counters["timeouts"] += 1
            if window.timeouts > self.job.retry_limit:
                self._give_up(window)
            else:
                window.time_out(now_ns)

    # outputs

    def frames_to_send(self, now_ns: int, limit: int = 64, kind: int | None = None) -> Bundle:
        """The next frames for the switch, (k, size) with k <= limit, all of one size; until there are none (W6).

        kind: only those of this priority class, for a host whose link queues each class by itself.
        """
        picks: list[tuple[Window, int, bool]] = []
        size = self._frame_bytes
        cut: int | None = None  # a stream of this priority has a frame of another size: nothing less urgent may pass it
        for window in self._by_priority:
            if kind is not None and class_of(window.priority) != kind:
                continue
            if cut is not None and window.priority > cut:
                break
            while len(picks) < limit and not window.failed:
                following = window.peek()
                if following is None:
                    break
                its_size = self._frame_bytes if self._gives(window.kind_of(*following)) else HEADER_BYTES
                if picks and its_size != size:
                    cut = window.priority
                    break
                size = its_size
                window.on_sent(*following, now_ns)
                picks.append((window, *following))
        if picks and len(self._by_priority) > 1:  # streams of equal priority take turns
            streams = {window.stream for window, _, _ in picks}
            self._by_priority.sort(key=lambda window: (window.priority, window.stream in streams))
        return self._build(picks, size)

    def next_event(self) -> Event | None:
        """The oldest event not yet handed out, or None."""
        return self._events.popleft() if self._events else None

    def next_deadline_ns(self) -> int | None:
        """When `handle_timer` has work if no result comes first; None if nothing is in flight."""
        return min((d for window in self._windows if (d := window.deadline_ns()) is not None), default=None)

    def held(self, call: ArrayCall) -> NDArray[np.bool_]:
        """(rows,) whether the data rows of a running call have their results in its array; False where we get none."""
        return next(rows for window in self._windows if (rows := window.held(call)) is not None)

    def has_early(self, stream: int, chunks: int) -> bool:
        """Whether all results of the next calls of a stream, so many chunks, are there before they have begun (Q7)."""
        return False

    # private

    def _submit_chunks(self, window: Window, call: Call) -> None:
        words = call.submitted.description
        call.begin(self.rank)
        if isinstance(call, SmallCall):
            codes = call.predict(self._predictions)
            window.submit(description_call(words, self.rank, self.job, codes), describes=call)
        elif words is not None:
            window.submit(description_call(words, self.rank, self.job), describes=call)
        if call.chunks or words is not None:
            window.submit(call)
        else:
            self._events.append(CallCompleted(window.stream, call.submitted))

    def _count(self, name: str, packets: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + packets

    def _gives(self, kind: int) -> bool:
        """Whether this rank gives values for a chunk of this kind (`wire.kind_of`); else its packets are
        header-only."""
        return bool(givers(kind, -1) >> self.wire_rank & 1)

    def _is_result(self, fields: tuple[int, ...], size: int) -> bool:
        """Whether a datagram is a result of this job, of a stream that there is."""
        kind, job_id, _, generation, stream, _, elements, _ = fields
        return (
            kind in RESULTS
            and (job_id, generation) == (self.job.job_id, self.job.generation)
            and (elements == self.job.elements or (not elements and kind & ROUTE_BITS != 0))
            and size == frame_bytes(elements)
            and stream < len(self._windows)
        )

    def _awaits(self, window: Window, fields: tuple[int, ...]) -> bool:
        """Whether a result of a window is that of a chunk in flight (W5)."""
        kind, _, slot, _, _, _, elements, chunk = fields
        offset = slot - window.first_slot
        return (
            0 <= offset < window.window
            and window.in_flight[offset]
            and (window.chunk[offset] - chunk) % MODULUS == 0
            and window.version_flag(window.chunk[offset]) == kind & FLAG_VERSION
            and not (window.kind[offset] ^ kind) & SHARE_BITS
            and (not kind & ROUTE_BITS or self._gives(kind) != bool(elements))
        )

    def _verified(self, bundle: Bundle, rows_fields: Sequence[tuple[int, ...]]) -> tuple[Values, Container[int]]:
        """A bundle's values, without masks (X3), and its rows that are wrong sums of chunks in flight (V5, V6)."""
        awaited, values = [], payload(bundle)
        for row, fields in enumerate(rows_fields if self._sums and values.size else ()):
            if self._is_result(fields, bundle.shape[1]) and self._awaits(window := self._windows[fields[4]], fields):
                running = window.call_of(chunk := window.chunk[fields[2] - window.first_slot])
                awaited.append(AwaitedResult(row, running.call, window.stream, running.base, chunk))
        return self._sums.verified(awaited, values) if self._sums else (values, ())

    def _refuse(self, window: Window, offset: int) -> None:
        """Take nothing of a wrong sum of a chunk in flight, and ask for it again, or give up (V7)."""
        self._count("wrong_sums", 1)
        if window.refuse(offset):
            self._report_wrong(window, (window.chunk[offset], NO_BETTER))

    def _report_wrong(self, window: Window, wrong: tuple[int, str] | None = None) -> None:
        """The stream fails for a wrong sum, once it is known that all workers make the same calls."""
        window.wrong = window.wrong or wrong
        if window.wrong is not None and not window.failed and not window.undescribed(window.wrong[0]):
            chunk, reason = window.wrong
            slot, version = self.job.place(window.stream, chunk)
            window.failed = True
            self._events.append(WrongSum(window.stream, slot, version, chunk, 0, reason))

    def _window_of(self, fields: tuple[int, ...], datagram: NDArray[np.uint8]) -> Window | None:
        """The window in which this datagram is an awaited result; None, and counted, if it is none (W5)."""
        kind, job_id, slot, generation, stream, _, elements, chunk = fields
        job, size = self.job, len(datagram)
        if self._is_result(fields, size):
            window = self._windows[stream]
            if self._awaits(window, fields):
                return window
            offset = slot - window.first_slot
            self.counters["duplicates"] += 1
            if 0 <= offset < window.window:
                window.answered_again(offset, chunk)
            return None
        reason = fault(kind, elements, size)
        if not reason:
            reason = "job" if job_id != job.job_id else "generation" if generation != job.generation else "foreign"
        self._count(f"drop_{reason}", 1)
        return None

    def _give_up(self, window: Window) -> None:
        chunk = window.first_unanswered()
        slot, version = self.job.place(window.stream, chunk)
        window.failed = True
        self._events.append(StreamFailed(window.stream, slot, version, chunk, window.timeouts, "no result"))

    def _complete(self, window: Window) -> None:
        """Report calls, up to one that another worker has described differently: it ends the stream (W12)."""
        while not window.unusable and (running := window.next_complete()) is not None:
            if running.describes is None:
                self._events.append(CallCompleted(window.stream, running.call.submitted))
                continue
            self._verify_description(window, running)
            if isinstance(running.describes, SmallCall) and not window.unusable:
                self._decide(window, running)
        self._report_wrong(window)

    def _decide(self, window: Window, head: CallInFlight) -> None:
        """Whether the data that was sent with this head counts, or goes again (W16)."""
        assert isinstance(head.call, ChunkedCall)
        assert isinstance(head.describes, SmallCall)
        call, codes = head.describes, head.call.array[WORDS * self.job.workers :]
        if call.decide(codes, self._predictions, self._sums is not None):
            self._count("predicted", 1)
            self._take_held(window, call, head.end)
        else:
            self._count("repeated", 1)
            window.lengthen(call)
        window.raise_limit()

    def _take_held(self, window: Window, call: SmallCall, base: int) -> None:
        """Results that came before it was known that they count, and right ones alone (V8)."""
        positions, values = call.take_held()
        right = (
            self._sums.right(call, window.stream, base, positions, values) if self._sums else [True] * len(positions)
        )
        call.write([p for p, is_right in zip(positions, right, strict=True) if is_right], values[right])
        if not all(right):
            self._count("wrong_sums", right.count(False))
            window.unusable = True
            first = min(p for p, is_right in zip(positions, right, strict=True) if not is_right)
            self._report_wrong(window, (base + first, TOO_EARLY))

    def _verify_description(self, window: Window, running: CallInFlight) -> None:
        assert isinstance(running.call, ChunkedCall)
        if (other := other_call(running.call.array[: WORDS * self.job.workers], self.rank)) is None:
            return
        if not window.failed:
            slot, version = self.job.place(window.stream, running.base)
            rank, reason = other
            self._events.append(StreamFailed(window.stream, slot, version, running.base, 0, reason, rank))
        window.failed = window.unusable = True

    def _build(self, picks: Sequence[tuple[Window, int, bool]], size: int) -> Bundle:
        """Frames of these (window, chunk, again), values read from their calls, a run of one call at a time."""
        frames = np.empty((len(picks), size), np.uint8)
        if not picks:
            return frames
        buffer = frames.data.cast("B")
        start = 0
        while start < len(picks) and size > HEADER_BYTES:
            window, chunk, _ = picks[start]
            running = window.call_of(chunk)
            end = start + 1
            # positions of one read ascend; a retransmission after a new chunk, or another stream, ends the run
            while end < len(picks) and picks[end][0] is window and picks[end - 1][1] < picks[end][1] < running.end:
                end += 1
            positions = [c - running.base for _, c, _ in picks[start:end]]
            values = running.call.read(positions)
            if self._sums is not None:
                self._sums.tag(running.call, window.stream, running.base, positions, values)
            payload(frames[start:end])[:] = values
            start = end
        for row, pick in enumerate(picks):
            self._pack(buffer, row * size, 0 if size == HEADER_BYTES else self.job.elements, *pick)
        return frames

    def _pack(self, buffer: memoryview, place: int, elements: int, window: Window, chunk: int, again: bool) -> None:
        """Write a frame's header (W1, W2)."""
        self.counters["retransmitted" if again else "sent"] += 1
        job, offset = self.job, chunk % window.window
        kind = window.kind[offset] | window.version_flag(chunk) | (FLAG_RETRANSMISSION if again else 0)
        slot = window.first_slot + offset
        rank = self.wire_rank
        if window.to_mark and not again:
            window.to_mark -= 1
            rank |= MARKED
        header = (kind, job.job_id, slot, job.generation, window.stream, rank, elements, chunk % MODULUS)
        pack_header(buffer, place, header)
