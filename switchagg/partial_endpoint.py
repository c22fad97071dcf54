"""A worker's endpoint for partial sums: it takes results before its own values are there, and abstains (rule Q7)."""

import heapq
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import Call
from switchagg.calls.mask import NO_KEY
from switchagg.calls.partial_call import PartialCall
from switchagg.endpoint import TOO_EARLY, Endpoint
from switchagg.job import MODULUS, JobConfig
from switchagg.priority import class_of
from switchagg.window import Window
from switchagg.wire import (
    CLOSE,
    FLAG_VERSION,
    HEADER_BYTES,
    MAX_BIT,
    RANK_AT,
    RESULTS,
    ROUTE_BITS,
    Bundle,
    Values,
    frame_bytes,
    kind_of,
    pack_header,
    payload,
)

RETAINED_BYTES = 256 << 20
"""Most bytes of early results: above it a worker takes none, and the others wait for it."""

HALF = MODULUS // 2

CHUNKS_OF = "chunks_of_"


def ranks_in(counters: Mapping[str, int]) -> dict[str, float]:
    """Ranks in the chunks of a rank's partial sums, mean and least, and how many chunks there are; {} without any."""
    chunks = {
        int(name.removeprefix(CHUNKS_OF)): count for name, count in counters.items() if name.startswith(CHUNKS_OF)
    }
    total = sum(chunks.values())
    if not total:
        return {}
    mean = sum(ranks * count for ranks, count in chunks.items()) / total
    return {"ranks_mean": mean, "ranks_least": min(chunks), "chunks": total}


def endpoint_of(job: JobConfig, rank: int, wire_rank: int | None = None, key: bytes = NO_KEY) -> Endpoint:
    """The endpoint that a job needs. Arguments: as of `Endpoint`."""
    return (PartialEndpoint if job.partial else Endpoint)(job, rank, wire_rank, key)


class PartialEndpoint(Endpoint):
    """counters: also `early` results, which came before their chunks were sent, `early_refused`, `abstained`,
    `finalise_requests`, and `chunks_of_m`: data chunks of partial sums that hold the values of m ranks."""

    def __init__(self, job: JobConfig, rank: int, wire_rank: int | None = None, key: bytes = NO_KEY) -> None:
        super().__init__(job, rank, wire_rank, key)
        self._header_only: deque[tuple[Window, int, int]] = deque()
        """Abstentions and requests to finalise: (window, chunk, CLOSE or 0)."""
        self._early: list[list[tuple[int, Values]]] = [[] for _ in job.streams]  # heaps of chunks no call has taken
        self._early_bytes = 0
        self._closing: deque[tuple[int, Window, int]] = deque()  # (when to ask, window, chunk)
        self._close_requests: set[tuple[int, int]] = set()  # (stream, chunk): to be finalised
        self._now_ns = 0
        self._presence = job.room - job.presence + self.wire_rank // 32, self.wire_rank % 32

    def _submit_chunks(self, window: Window, call: Call) -> None:
        if isinstance(call, PartialCall):
            call.count = self._count_ranks
        super()._submit_chunks(window, call)
        self._take_early(window)

    def receive(self, bundle: Bundle, now_ns: int, congested: bool = False) -> None:
        super().receive(bundle, now_ns, congested)
        for window in self._windows:
            if self._early[window.stream]:
                self._take_early(window)

    def handle_timer(self, now_ns: int) -> None:
        super().handle_timer(now_ns)
        while self._closing and self._closing[0][0] <= now_ns:
            _, window, chunk = self._closing.popleft()
            if _flies(window, chunk):
                self._header_only.append((window, chunk, CLOSE))
                self._close_requests.add((window.stream, chunk))
        self._close_requests = {
            (stream, chunk) for stream, chunk in self._close_requests if _flies(self._windows[stream], chunk)
        }

    def frames_to_send(self, now_ns: int, limit: int = 64, kind: int | None = None) -> Bundle:
        self._now_ns = now_ns
        if self._header_only:
            frames = self._passes(limit, kind)
            if len(frames):
                return frames
        return super().frames_to_send(now_ns, limit, kind)

    def next_deadline_ns(self) -> int | None:
        deadline_ns = super().next_deadline_ns()
        while self._closing and not _flies(*self._closing[0][1:]):
            self._closing.popleft()
        if not self._closing:
            return deadline_ns
        return self._closing[0][0] if deadline_ns is None else min(deadline_ns, self._closing[0][0])

    def has_early(self, stream: int, chunks: int) -> bool:
        window = self._windows[stream]
        return not window.running and window.first_free - window.end >= chunks

    # private

    def _window_of(self, fields: tuple[int, ...], datagram: NDArray[np.uint8]) -> Window | None:
        """As of `Endpoint`; what is no awaited result may be one that came before its chunk was sent, or again."""
        position = self._place(fields, len(datagram))
        if position is None:
            return super()._window_of(fields, datagram)
        window, chunk = position
        values, (place, bit) = payload(datagram[np.newaxis])[0], self._presence
        if _flies(window, chunk):
            if fields[0] & MAX_BIT or not int(values[place]) >> bit & 1:
                self._header_only.append((window, chunk, 0))  # its contribution may never have come to the switch
            return super()._window_of(fields, datagram)
        if chunk == window.chunk[chunk % window.window]:
            self._keep(window, chunk, values)
        else:
            self.counters["duplicates"] += 1
            self._header_only.append((window, chunk, 0))
        return None

    def _place(self, fields: tuple[int, ...], size: int) -> tuple[Window, int] | None:
        """(window, chunk) of a result with values and route ALL, for a chunk up to the one in flight or next in its
        slot."""
        kind, job_id, slot, generation, stream, _, elements, chunk = fields
        job = self.job
        if kind not in RESULTS or kind & ROUTE_BITS or (job_id, generation) != (job.job_id, job.generation):
            return None
        if elements != job.elements or size != frame_bytes(elements) or stream >= len(self._windows):
            return None
        window = self._windows[stream]
        offset = slot - window.first_slot
        if not 0 <= offset < window.window or (window.in_flight[offset] and window.kind[offset] & ROUTE_BITS):
            return None
        ago = (window.chunk[offset] - chunk) % MODULUS
        if ago >= HALF or ago % window.window or ago > window.chunk[offset]:
            return None
        chunk = window.chunk[offset] - ago
        return (window, chunk) if window.version_flag(chunk) == kind & FLAG_VERSION else None

    def _refuse(self, window: Window, offset: int) -> None:
        abstention = (window, window.chunk[offset], 0)
        if self._header_only and self._header_only[-1] == abstention:  # it abstains only from what isn't wrong (V9)
            self._header_only.pop()
        super()._refuse(window, offset)

    def _count_ranks(self, ranks: int, chunks: int) -> None:
        self._count(f"{CHUNKS_OF}{ranks}", chunks)

    def _keep(self, window: Window, chunk: int, values: Values) -> None:
        if self._early_bytes + 4 * len(values) > RETAINED_BYTES:
            self._count("early_refused", 1)
            return
        window.skip(chunk)
        heapq.heappush(self._early[window.stream], (chunk, values.astype(np.int32)))
        self._early_bytes += 4 * len(values)
        self._count("early", 1)
        self._header_only.append((window, chunk, 0))

    def _take_early(self, window: Window) -> None:
        """Give calls what came before they had sent it."""
        early = self._early[window.stream]
        while early and early[0][0] < window.limit:
            running = window.call_of(early[0][0])
            results = []
            while early and early[0][0] < min(window.limit, running.end):
                results.append(heapq.heappop(early))
            values = np.stack([row for _, row in results])
            self._early_bytes -= values.nbytes
            positions = [chunk - running.base for chunk, _ in results]
            if self._sums is not None:
                right = self._sums.right(running.call, window.stream, running.base, positions, values)
                if not all(right):
                    self._count("wrong_sums", right.count(False))
                    self._report_wrong(window, (results[right.index(False)][0], TOO_EARLY))
                    positions, values = (
                        [p for p, is_right in zip(positions, right, strict=True) if is_right],
                        values[right],
                    )
            running.call.write(positions, values)
            running.missing -= len(positions)
            self.counters["results"] += len(positions)
            window.raise_limit()
        self._complete(window)

    def _passes(self, limit: int, kind: int | None) -> Bundle:
        """Header-only frames that are due, of one class."""
        due = [entry for entry in self._header_only if kind is None or class_of(entry[0].priority) == kind][:limit]
        frames = np.empty((len(due), HEADER_BYTES), np.uint8)
        if not due:
            return frames
        if len(due) == len(self._header_only):
            self._header_only.clear()
        else:
            for entry in due:
                self._header_only.remove(entry)
        buffer, job = frames.data.cast("B"), self.job
        for row, (window, chunk, close) in enumerate(due):
            self._count("finalise_requests" if close else "abstained", 1)
            slot = window.first_slot + chunk % window.window
            rank, flags = self.wire_rank | close, kind_of(0, window.version_flag(chunk))
            header = (flags, job.job_id, slot, job.generation, window.stream, rank, 0, chunk % MODULUS)
            pack_header(buffer, row * HEADER_BYTES, header)
        return frames

    def _pack(self, buffer: memoryview, place: int, elements: int, window: Window, chunk: int, again: bool) -> None:
        super()._pack(buffer, place, elements, window, chunk, again)
        if not self.job.close_after_ns or window.kind[chunk % window.window] & ROUTE_BITS:
            return
        if not again:
            self._closing.append((self._now_ns + self.job.close_after_ns, window, chunk))
        elif (window.stream, chunk) in self._close_requests:
            buffer[place + RANK_AT] |= CLOSE


def _flies(window: Window, chunk: int) -> bool:
    """Whether a chunk is in flight."""
    offset = chunk % window.window
    return window.in_flight[offset] and window.chunk[offset] == chunk
