"""One stream's window at a worker: which chunks may be sent, which are lost, when to retransmit (W2, W3, W6 to W9, G7).

`Endpoint` owns one per stream and handles packets; here there are only chunk numbers, unwrapped, and the time.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import ArrayCall, Call
from switchagg.job import MODULUS, UNCONTROLLED, JobConfig
from switchagg.pacing import LEAST_ALPHA, CongestionWindow, RetransmissionTimeout
from switchagg.wire import FLAG_VERSION

PROBES = 4
"""Chunks resent by a timeout: enough to learn whether the path works, few enough to do no harm when it does and the
switch merely waits for a slow rank."""

OVERTAKEN = 4
"""Later chunks with results that make a chunk lost: results keep the order of sending but for losses."""

RIGHT, WRONG, ASKED_AGAIN = range(3)
"""Of a chunk in flight: no wrong sum came; one came, and the chunk is to be sent again; it was sent again (V7)."""

BACKOFF_MAX = 20
"""Doublings of a timeout at most."""


@dataclass(slots=True, eq=False)
class CallInFlight:
    """A submitted call: its chunks are base … end - 1 of the stream, `missing` of them without a result.

    describes: the call that follows it, of which it is the description or the head (W12, W16).
    """

    call: Call
    base: int
    end: int
    missing: int
    describes: Call | None


class Window:
    """Lists are indexed by the offset of the slot in the stream's range; a chunk's offset is chunk mod window.

    timeout: what all streams of this priority share (W7).
    """

    def __init__(self, job: JobConfig, stream: int, timeout: RetransmissionTimeout) -> None:
        config = job.streams[stream]
        window = config.window_slots
        self.stream = stream
        self.first_slot = config.first_slot
        self.window = window
        self.priority = config.priority
        self.running: deque[CallInFlight] = deque()
        self.failed = False
        self.unusable = (
            False  # another worker makes other calls (W12), or what was kept is wrong: no later one is complete
        )
        self.wrong: tuple[int, str] | None = None  # (chunk, reason): a wrong sum that can't be asked for again (V7)
        self.timeouts = 0  # in a row, without any result
        self._doublings = 0  # of the timeout, while no first transmission could tell a longer round trip
        self._unsampled = 0  # timeouts that resent all in flight, and may have come too early for all we know
        self.chunk = list(range(window))  # in flight, or next for that slot
        self.kind = [0] * window  # of the chunk in flight (`Call.kind`)
        self.in_flight = [False] * window
        self._sent_ns = [0] * window
        self._transmission = [0] * window  # of the chunk's latest frame
        self._first = [0] * window  # of the chunk's first frame
        self._transmissions = 0
        self.end = 0  # chunks submitted so far
        self.limit = 0  # chunks below may be sent: all before the first whose call isn't ready for it
        self._free = list(range(window))  # heap of the next chunk of each free slot
        self._resend: deque[int] = deque()
        self._refused = [RIGHT] * window  # what came of the chunk in flight so far
        self._marked = [False] * window  # the chunk in flight stands in `_resend`
        self._order: deque[tuple[int, int]] = deque()  # (transmission, chunk); outdated ones are skipped when met
        # Heap of the latest answered first transmissions: what was sent before the least of them is lost (W8)
        self._newest = [-1] * OVERTAKEN
        self._rtt_ns: int | None = None  # a sample not yet taken into account
        self._timeout = timeout
        self._timer_start_ns = 0  # the last result or timeout
        self._recovering = False  # from a timeout until a first transmission that came before it is answered
        self._before_timeout = 0  # transmissions below were sent before the last timeout
        self._certain = False  # chunks are lost: the timeout before the last one wasn't too early
        self._lowest: deque[int] = deque()  # chunks in flight at the last timeout, not yet resent for it, in order
        self._resend_due = 0  # chunks to resend because of results of retransmissions in this bundle
        self.to_mark = 0  # results that met congestion on the way down: so many new chunks will say so (G8)
        self.congestion: CongestionWindow | None = None
        if job.congestion != UNCONTROLLED:
            self.congestion = CongestionWindow(window, LEAST_ALPHA[job.congestion])
        self._unmarked = 0  # results that `congestion` doesn't know of yet
        self._reserve = 0  # slots that stay free because of congestion (G7)

    def submit(self, call: Call, *, describes: Call | None = None) -> None:
        """Append a call, with at least one chunk unless it is described (W3, W12)."""
        self.running.append(CallInFlight(call, self.end, self.end + call.chunks, call.chunks, describes))
        self.end += call.chunks
        self.raise_limit()

    def lengthen(self, call: Call) -> None:
        """A running call was undecided and has more chunks now; none of a later call has been sent (W16)."""
        running = next(running for running in self.running if running.call is call)
        more = running.base + call.chunks - running.end
        running.missing += more
        running.end += more
        for later in itertools.islice(self.running, self.running.index(running) + 1, None):
            later.base += more
            later.end += more
        self.end += more

    def peek(self) -> tuple[int, bool] | None:
        """(chunk, whether it was sent before) of the next frame; None if nothing may be sent."""
        lost = self._to_resend()
        if lost is not None:
            return lost, True
        if len(self._free) <= self._reserve and not self._lowest_is_free():
            return None
        return (self._free[0], False) if self._free[0] < self.limit else None

    @property
    def first_free(self) -> int:
        """The first chunk without a result, where none is in flight."""
        return self._free[0]

    def _lowest_is_free(self) -> bool:
        """Whether a slot is free for a chunk below all in flight: without credit, too (G7)."""
        flying = (chunk for chunk, in_flight in zip(self.chunk, self.in_flight, strict=True) if in_flight)
        return bool(self._free) and not any(chunk < self._free[0] for chunk in flying)

    def kind_of(self, chunk: int, again: bool) -> int:
        """The kind of this next frame (`Call.kind`)."""
        if not again:
            running = self.call_of(chunk)
            self.kind[chunk % self.window] = running.call.kind(chunk - running.base)
        return self.kind[chunk % self.window]

    def on_sent(self, chunk: int, again: bool, now_ns: int) -> None:
        """The next frame, as of `peek`, counts as sent now."""
        offset = chunk % self.window
        if again:
            self._resend.popleft()
            self._marked[offset] = False
            if self._refused[offset]:
                self._refused[offset] = ASKED_AGAIN
        else:
            heapq.heappop(self._free)
            self.chunk[offset] = chunk
            self.in_flight[offset] = True
            self._first[offset] = self._transmissions
        self._sent_ns[offset] = now_ns
        self._transmission[offset] = self._transmissions
        self._order.append((self._transmissions, chunk))
        self._transmissions += 1

    def skip(self, chunk: int) -> None:
        """The next chunk of a free slot has its result without being sent (Q7): the one after it is the next."""
        self._free.remove(chunk)
        heapq.heapify(self._free)
        heapq.heappush(self._free, chunk + self.window)
        self.chunk[chunk % self.window] = chunk + self.window

    def call_of(self, chunk: int) -> CallInFlight:
        """The running call of a chunk in flight."""
        for running in self.running:
            if chunk < running.end:
                return running
        raise AssertionError("a chunk in flight belongs to a call")

    def held(self, call: ArrayCall) -> NDArray[np.bool_] | None:
        """As of `Call.held`; None: no such call is running."""
        for running in self.running:
            if running.call.submitted is call:
                chunks = np.arange(running.base, running.end)
                answered = np.array(self.chunk)[chunks % self.window] > chunks
                return running.call.held(answered & (chunks < self.limit))  # beyond it are results that came early (Q7)
        return None

    def version_flag(self, chunk: int) -> int:
        """The version of a chunk's slot, as in the flags (W2)."""
        return FLAG_VERSION if chunk // self.window & 1 else 0

    def answered(self, offset: int, now_ns: int, marked: bool = False) -> int:
        """The chunk in flight at this offset has its result: its slot is free for the chunk one window later."""
        chunk = self.chunk[offset]
        if marked:
            self._follow_marks()
            if self.congestion is not None:
                self.congestion.marked()
        else:
            self._unmarked += 1
        self.in_flight[offset] = self._marked[offset] = False
        self._refused[offset] = RIGHT
        self.timeouts = 0
        self._timer_start_ns = now_ns
        # Karn: a retransmitted chunk's result may answer either copy.
        if self._transmission[offset] == self._first[offset]:
            heapq.heappushpop(self._newest, self._transmission[offset])
            self._rtt_ns = now_ns - self._sent_ns[offset]
            self._doublings = self._unsampled = 0
            if self._transmission[offset] < self._before_timeout:  # results were late, not lost
                self._recovering = self._certain = False
        elif self._recovering:
            self._resend_due += 2
        self.chunk[offset] = chunk + self.window
        heapq.heappush(self._free, chunk + self.window)
        return chunk

    def refuse(self, offset: int) -> bool:
        """The result of the chunk in flight at this offset is a wrong sum; whether it was asked for again (V7)."""
        if not self._refused[offset]:
            self._refused[offset] = WRONG
            if not self._marked[offset]:
                self._mark(self.chunk[offset])
        return self._refused[offset] == ASKED_AGAIN

    def undescribed(self, chunk: int) -> bool:
        """Whether a call up to that of this chunk is described by what has no result yet (W12, W16)."""
        return any(running.describes is not None and running.end <= chunk for running in self.running)

    def answered_again(self, offset: int, chunk: int) -> None:
        """An unawaited result came: if of the slot's last chunk, it answers a copy that no loss called for."""
        if self._unsampled and (self.chunk[offset] - self.window - chunk) % MODULUS == 0:
            self._unsampled -= 1
            self._doublings = min(self._doublings + 1, BACKOFF_MAX)

    def after_results(self) -> None:
        """Update the RTO, the limit and what counts as lost after a bundle of results."""
        if self._rtt_ns is not None:
            self._timeout.sample(self._rtt_ns)
            self._rtt_ns = None
        if self._certain:
            self._resend_lowest(self._resend_due)
        elif self._recovering:
            self._resend_newest(self._resend_due)
        self._resend_due = 0
        self._follow_marks()
        self.raise_limit()
        while (oldest := self.oldest()) is not None and oldest[0] < self._newest[0]:
            self._mark(oldest[1])

    def _follow_marks(self) -> None:
        if self.congestion is not None:
            self.congestion.unmarked(self._unmarked)
            self._reserve = self.window - self.congestion.chunks
        self._unmarked = 0

    def next_complete(self) -> CallInFlight | None:
        """Take off the first call that is complete; None if there is none.

        None beyond a description that is still missing results: until it is judged, no later sum counts (W12).
        """
        for running in self.running:
            if not running.missing:
                self.running.remove(running)
                return running
            if running.describes is not None:
                break
        return None

    def raise_limit(self) -> None:
        """Allow the chunks up to the first whose call isn't ready for it, or has no number yet (W4, W16)."""
        for running in self.running:
            self.limit = max(self.limit, running.base + running.call.ready_chunks)
            if running.call.undecided or running.call.ready_chunks < running.call.chunks:
                return

    def deadline_ns(self) -> int | None:
        """When the window times out; None if nothing is in flight (W7)."""
        oldest = self.oldest()
        # A chunk that waits to be resent counts, too: a link that stays full must not stop the timer (W9).
        if self.failed or (oldest is None and self._to_resend() is None):
            return None
        sent_ns = self._timer_start_ns if oldest is None else self._sent_ns[oldest[1] % self.window]
        timeout, doublings = self._timeout, min(max(self.timeouts, self._doublings), BACKOFF_MAX)
        return max(sent_ns, self._timer_start_ns) + min(timeout.rto_ns << doublings, timeout.max_ns)

    def time_out(self, now_ns: int) -> None:
        """Resend a few chunks in flight, the lowest, which all ranks choose alike (W7)."""
        self._timer_start_ns = now_ns
        self._unsampled += len(self._free) + PROBES >= self.window  # none of their results is a sample (Karn)
        in_flight = [offset for offset in range(self.window) if self.in_flight[offset]]
        # Retransmissions have been answered since the last timeout, and after them nothing came of what was left.
        left = any(self._first[offset] < self._before_timeout for offset in in_flight)
        self._certain = left and (self._certain or (self._recovering and self.timeouts == 1))
        self._recovering = True
        # A chunk first sent later is no reason for doubt: resent before its result can come, it would be answered as a
        # retransmission, let two more follow, and one timeout too early would have every later chunk sent three times.
        self._before_timeout = self._transmissions
        self._lowest = deque(sorted(self.chunk[offset] for offset in in_flight))
        self._resend_lowest(PROBES)

    def oldest(self) -> tuple[int, int] | None:
        """(transmission, chunk): the oldest one unanswered and not yet marked for resending."""
        order = self._order
        while order:
            if self._waits(*order[0]):
                return order[0]
            order.popleft()
        return None

    def _waits(self, transmission: int, chunk: int) -> bool:
        """Whether this was the chunk's latest transmission, unanswered and not yet marked for resending."""
        offset = chunk % self.window
        in_flight = self.in_flight[offset] and not self._marked[offset] and self.chunk[offset] == chunk
        return in_flight and self._transmission[offset] == transmission

    def first_unanswered(self) -> int:
        """The lowest chunk in flight; there is one while a deadline is."""
        return min(chunk for chunk, in_flight in zip(self.chunk, self.in_flight, strict=True) if in_flight)

    def _to_resend(self) -> int | None:
        """The next chunk to be resent, at the head of `_resend`; those answered meanwhile are taken off."""
        while self._resend:
            chunk = self._resend[0]
            offset = chunk % self.window
            if self.in_flight[offset] and self.chunk[offset] == chunk:
                return chunk
            self._resend.popleft()
        return None

    def _mark(self, chunk: int) -> None:
        """A chunk in flight is to be resent."""
        self._marked[chunk % self.window] = True
        self._resend.append(chunk)

    def _resend_lowest(self, chunks: int) -> None:
        """Mark so many, of those sent before the last timeout, in order: what one rank resends may wait for others to
        resend it, too."""
        while chunks and self._lowest:
            chunk = self._lowest.popleft()
            transmission = self._transmission[chunk % self.window]
            if transmission < self._before_timeout and self._waits(transmission, chunk):
                self._mark(chunk)
                chunks -= 1

    def _resend_newest(self, chunks: int) -> None:
        """Mark so many, of those sent before the last timeout, the latest first.

        Results come in the order of sending: if the timeout was too early, the next one is of a chunk that was not
        resent, and says so. Resending the lowest would stay ahead of the results and send the whole window again.
        """
        chosen = (entry for entry in reversed(self._order) if entry[0] < self._before_timeout and self._waits(*entry))
        for _, chunk in list(itertools.islice(chosen, chunks)):
            self._mark(chunk)
