"""One worker's window over the streams of a job: a pure state machine (rules W1 to W9 of PROTOCOL.md).

Four families of methods, called in this order by whatever turns the handle (a loop over sockets, the simulator, a
test); none blocks, none knows the time but what it is told:

- inputs: `receive` for every bundle from the switch, `handle_timer` once `next_deadline_ns` has passed
- commands: `submit` a call to a stream
- outputs: `frames_to_send` until it returns fewer rows than its limit, `next_event` until it returns None
- getters: `next_deadline_ns` says when to come back if no frame arrives before

Results clock the sends: a chunk's result frees its slot for the chunk one window later.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from switchagg.call import Call
from switchagg.job import MODULUS, JobConfig
from switchagg.wire import (
    FLAG_RESULT,
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    HEADER_BYTES,
    Bundle,
    Op,
    fault,
    frame_bytes,
    headers,
    pack_header,
    payload,
)

FIRST_PROBES = 4
"""Chunks resent by a first timeout: enough to learn whether the path works, few enough to do no harm when it does and
the switch merely waits for a slow rank."""


@dataclass(frozen=True, slots=True, eq=False)
class CallCompleted:
    """Every chunk's result has been written into the call's array."""

    stream: int
    call: Call


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream has given up and stays silent (W9). timeouts: how many in a row; `chunk` is the oldest unanswered."""

    stream: int
    slot: int
    version: int
    chunk: int
    timeouts: int
    reason: str


Event = CallCompleted | StreamFailed


@dataclass(slots=True, eq=False)
class _Running:
    """A submitted call: its first chunk number and how many results are still to come."""

    call: Call
    base: int
    end: int
    missing: int


@dataclass(slots=True, eq=False)
class _Stream:
    """Window state; lists are indexed by the slot's offset in the stream's range."""

    index: int
    first_slot: int
    window: int
    rto_ns: int
    chunk: list[int]
    flying: list[bool]
    sent_ns: list[int]
    tries: list[int]
    running: deque[_Running] = field(default_factory=deque)
    end: int = 0
    """Chunks submitted so far: the next call's base."""
    limit: int = 0
    """Chunks below this may be sent: all before the first whose call isn't ready for it."""
    free: list[int] = field(default_factory=list)
    """Heap of the next chunk number of each free slot."""
    resend: deque[int] = field(default_factory=deque)
    """Chunks to send again."""
    order: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(sent_ns, chunk, tries) in order of sending; entries of answered or resent chunks are skipped when met."""
    srtt_ns: int = 0
    rttvar_ns: int = 0
    newest_ns: int = 0
    """Latest sending time among first transmissions that were answered (W8)."""
    silence_ns: int = 0
    """Since when the timer runs: the last result or timeout."""
    timeouts: int = 0
    probes: int = FIRST_PROBES
    failed: bool = False

    def current(self, entry: tuple[int, int, int]) -> bool:
        """True if this entry of `order` is its chunk's latest transmission and unanswered."""
        _, chunk, tries = entry
        offset = chunk % self.window
        return self.flying[offset] and self.chunk[offset] == chunk and self.tries[offset] == tries

    def oldest(self) -> tuple[int, int, int] | None:
        """The oldest unanswered transmission not yet marked for resending."""
        while self.order and not self.current(self.order[0]):
            self.order.popleft()
        return self.order[0] if self.order else None


class Endpoint:
    """The worker `rank` of `job`. Every time is a monotonic `now_ns` from any origin, never decreasing."""

    def __init__(self, job: JobConfig, rank: int) -> None:
        assert 0 <= rank < job.workers
        self.job = job
        self.rank = rank
        self.counters: dict[str, int] = {
            "sent": 0,
            "retransmitted": 0,
            "timeouts": 0,
            "results": 0,
            "duplicates": 0,
        }
        self._frame_bytes = frame_bytes(job.elements)
        self._events: deque[Event] = deque()
        self._streams = [
            _Stream(
                index=index,
                first_slot=config.first_slot,
                window=config.window_slots,
                rto_ns=job.rto_initial_ns,
                chunk=list(range(config.window_slots)),
                flying=[False] * config.window_slots,
                sent_ns=[0] * config.window_slots,
                tries=[0] * config.window_slots,
                free=list(range(config.window_slots)),
            )
            for index, config in enumerate(job.streams)
        ]
        self._by_priority = sorted(self._streams, key=self._priority)

    # commands

    def submit(self, stream: int, call: Call) -> None:
        """Queue a call on a stream; every worker submits the same calls to a stream in the same order (W3)."""
        state = self._streams[stream]
        if call.chunks == 0:
            self._events.append(CallCompleted(stream, call))
            return
        state.running.append(_Running(call, state.end, state.end + call.chunks, call.chunks))
        state.end += call.chunks
        self._raise_limit(state)

    # inputs

    def receive(self, bundle: Bundle, now_ns: int) -> None:
        """Take datagrams from the switch; whatever is no awaited result is counted and changes nothing (W5)."""
        count, size = bundle.shape
        if size < HEADER_BYTES:
            self._count("drop_short", count)
            return
        job = self.job
        accepted: dict[int, tuple[_Running, list[int], list[int]]] = {}
        touched: dict[int, _Stream] = {}
        for row, fields in enumerate(headers(bundle).tolist()):
            magic, version_op, flags, job_id, slot, generation, stream, _, elements, chunk = fields
            reason = fault(magic, version_op, flags, elements, size)
            if not reason and job_id != job.job_id:
                reason = "job"
            elif not reason and generation != job.generation:
                reason = "generation"
            elif not reason and (elements != job.elements or not flags & FLAG_RESULT or stream >= len(self._streams)):
                reason = "foreign"
            if reason:
                self._count(f"drop_{reason}", 1)
                continue
            state = self._streams[stream]
            offset = slot - state.first_slot
            if not (
                0 <= offset < state.window
                and state.flying[offset]
                and (state.chunk[offset] - chunk) % MODULUS == 0
                and self._version(state, state.chunk[offset]) == flags & FLAG_VERSION
            ):
                self._count("duplicates", 1)
                continue
            running = self._answered(state, offset, now_ns)
            touched[stream] = state
            entry = accepted.get(id(running))
            if entry is None:
                entry = accepted[id(running)] = (running, [], [])
            entry[1].append(row)
            entry[2].append(state.chunk[offset] - state.window - running.base)
        if not touched:
            return
        values = payload(bundle)
        for running, rows, positions in accepted.values():
            chosen = values if len(rows) == count else values[rows]
            running.call.write(positions, chosen.astype(np.int32))
            running.missing -= len(rows)
        for state in touched.values():
            self._finish(state)
            self._raise_limit(state)
            self._detect_losses(state)

    def handle_timer(self, now_ns: int) -> None:
        """Act on deadlines that have passed; harmless when none has (W7, W9)."""
        for state in self._streams:
            deadline_ns = self._deadline_ns(state)
            if deadline_ns is None or deadline_ns > now_ns:
                continue
            oldest = state.oldest()
            assert oldest is not None
            state.timeouts += 1
            self._count("timeouts", 1)
            if state.timeouts > self.job.retry_limit:
                self._give_up(state, oldest[1], "no result")
                continue
            state.silence_ns = now_ns
            waiting = [e for e in state.order if state.current(e)]
            chosen = {e[1] for e in waiting[: state.probes]}
            state.order = deque(e for e in waiting if e[1] not in chosen)
            state.resend.extend(sorted(chosen))
            state.probes = min(2 * state.probes, state.window)

    # outputs

    def frames_to_send(self, now_ns: int, limit: int = 64) -> Bundle:
        """The next frames for the switch, (k, frame_bytes) with k <= limit; call again while k == limit (W6)."""
        picks: list[tuple[_Stream, int, int]] = []
        for state in self._by_priority:
            while len(picks) < limit and not state.failed:
                if state.resend:
                    chunk = state.resend.popleft()
                    offset = chunk % state.window
                    if not state.flying[offset] or state.chunk[offset] != chunk:
                        continue
                    flags = FLAG_RETRANSMISSION
                elif state.free and state.free[0] < state.limit:
                    chunk = heapq.heappop(state.free)
                    offset = chunk % state.window
                    state.chunk[offset] = chunk
                    state.flying[offset] = True
                    state.tries[offset] = 0
                    flags = 0
                else:
                    break
                state.tries[offset] += 1
                state.sent_ns[offset] = now_ns
                state.order.append((now_ns, chunk, state.tries[offset]))
                picks.append((state, chunk, flags))
        if picks and len(self._by_priority) > 1:  # streams of equal priority take turns
            sent = {state.index for state, _, _ in picks}
            self._by_priority.sort(key=lambda s: (self._priority(s), s.index in sent))
        return self._build(picks)

    def next_event(self) -> Event | None:
        """The oldest event not yet handed out, or None."""
        return self._events.popleft() if self._events else None

    def next_deadline_ns(self) -> int | None:
        """When `handle_timer` has work if no result comes first; None if nothing is in flight."""
        deadlines = [d for d in map(self._deadline_ns, self._streams) if d is not None]
        return min(deadlines) if deadlines else None

    # private

    def _count(self, name: str, packets: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + packets

    def _priority(self, state: _Stream) -> int:
        return self.job.streams[state.index].priority

    @staticmethod
    def _version(state: _Stream, chunk: int) -> int:
        """The version flag of a chunk as it stands in the flags byte (W2)."""
        return FLAG_VERSION if chunk // state.window & 1 else 0

    def _answered(self, state: _Stream, offset: int, now_ns: int) -> _Running:
        """Book a chunk's result: free its slot, take the round-trip sample, restart the timer. Returns its call."""
        chunk = state.chunk[offset]
        state.flying[offset] = False
        state.silence_ns = now_ns
        state.timeouts = 0
        self.counters["results"] += 1
        if state.tries[offset] == 1:  # Karn: a retransmitted chunk's result may answer either copy
            state.newest_ns = max(state.newest_ns, state.sent_ns[offset])
            state.probes = FIRST_PROBES
            self._sample(state, now_ns - state.sent_ns[offset])
        state.chunk[offset] = chunk + state.window
        heapq.heappush(state.free, chunk + state.window)
        for running in state.running:
            if chunk < running.end:
                return running
        raise AssertionError("a chunk in flight belongs to a call")

    def _sample(self, state: _Stream, rtt_ns: int) -> None:
        """Update the retransmission timeout as RFC 6298 does, within the job's bounds (W7)."""
        if state.srtt_ns == 0:
            state.srtt_ns, state.rttvar_ns = rtt_ns, rtt_ns // 2
        else:
            state.rttvar_ns = (3 * state.rttvar_ns + abs(state.srtt_ns - rtt_ns)) // 4
            state.srtt_ns = (7 * state.srtt_ns + rtt_ns) // 8
        rto_ns = state.srtt_ns + 4 * state.rttvar_ns
        state.rto_ns = min(max(rto_ns, self.job.rto_min_ns), self.job.rto_max_ns)

    def _deadline_ns(self, state: _Stream) -> int | None:
        if state.failed:
            return None
        oldest = state.oldest()
        if oldest is None:
            return None
        backed_off_ns = min(state.rto_ns << min(state.timeouts, 20), self.job.rto_max_ns)
        return max(oldest[0], state.silence_ns) + backed_off_ns

    def _detect_losses(self, state: _Stream) -> None:
        """Resend chunks that were overtaken: sent well before one whose first transmission is answered (W8)."""
        horizon_ns = state.newest_ns - max(state.srtt_ns // 4, self.job.rto_min_ns // 8)
        while (oldest := state.oldest()) is not None and oldest[0] < horizon_ns:
            state.order.popleft()
            state.resend.append(oldest[1])

    def _finish(self, state: _Stream) -> None:
        if any(running.missing == 0 for running in state.running):
            for running in state.running:
                if running.missing == 0:
                    self._events.append(CallCompleted(state.index, running.call))
            state.running = deque(r for r in state.running if r.missing)

    def _raise_limit(self, state: _Stream) -> None:
        for running in state.running:
            state.limit = max(state.limit, running.base + running.call.ready_chunks)
            if running.call.ready_chunks < running.call.chunks:
                return

    def _give_up(self, state: _Stream, chunk: int, reason: str) -> None:
        state.failed = True
        slot, version = self.job.place(state.index, chunk)
        self._events.append(StreamFailed(state.index, slot, version, chunk, state.timeouts, reason))

    def _build(self, picks: Sequence[tuple[_Stream, int, int]]) -> Bundle:
        """Frames of these (stream, chunk, flags), values read from their calls, a run of one call at a time."""
        frames = np.empty((len(picks), self._frame_bytes), np.uint8)
        if not picks:
            return frames
        buffer = frames.data.cast("B")
        start = 0
        while start < len(picks):
            state, chunk, _ = picks[start]
            running = next(r for r in state.running if chunk < r.end)
            end = start + 1
            while end < len(picks) and self._continues(picks[end], state, running, picks[end - 1][1]):
                end += 1
            values, ops = running.call.read([c - running.base for _, c, _ in picks[start:end]])
            payload(frames[start:end])[:] = values
            for row in range(start, end):
                chunk, flags = picks[row][1:]
                self._pack(buffer, row, ops[row - start], flags, state, chunk)
                self.counters["retransmitted" if flags else "sent"] += 1
            start = end
        return frames

    @staticmethod
    def _continues(pick: tuple[_Stream, int, int], state: _Stream, running: _Running, previous: int) -> bool:
        """True if a pick belongs to the same call as the run before it, at a higher position."""
        return pick[0] is state and previous < pick[1] < running.end and pick[1] >= running.base

    def _pack(self, buffer: memoryview, row: int, op: Op, flags: int, state: _Stream, chunk: int) -> None:
        job = self.job
        pack_header(
            buffer,
            row * self._frame_bytes,
            op,
            flags | self._version(state, chunk),
            job.job_id,
            state.first_slot + chunk % state.window,
            job.generation,
            state.index,
            self.rank,
            job.elements,
            chunk % MODULUS,
        )
