"""The switch on whole bundles: bookkeeping in plain Python, values in one NumPy operation per kind.

Same rules, same bytes and same counters as the reference (the conformance tests hold it to that). What is different is
the order of work: rows are decided first, their values combined afterwards in groups. A slot version that a bundle
touches a second time ends the group, so that the order per slot never changes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from switchagg.aggregator import Parent, SlotView, check_admission, first_held
from switchagg.dataplane.contract import Output
from switchagg.job import MODULUS, JobConfig
from switchagg.wire import (
    CLOSE,
    FLAG_RESULT,
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    FLAGS_AT,
    HEADER_BYTES,
    MARKED,
    MAX_BIT,
    OWNER_BITS,
    RANK_AT,
    RANK_BITS,
    ROUTE_BITS,
    Bundle,
    fault,
    frame_bytes,
    givers,
    headers,
    owner_of,
    payload,
)

HALF = MODULUS // 2

ROUTED = ROUTE_BITS | OWNER_BITS

REPLY, REPLY_HEADER_ONLY, UP, UP_AGAIN, RESEND = -1, -2, -3, -4, -5
"""Instead of a kind's ROUTED bits: the result goes to the sender alone, with values or header-only; or sums to the
parent; or, RESEND - rank, the result of the chunk held to this rank."""


class _Share:
    """One job's registers. Index of a slot version: (slot - first) * 2 + version."""

    def __init__(self, job: JobConfig, ports: Sequence[int], parent: Parent | None) -> None:
        self.job = job
        self.partial = job.partial
        self.rank_bits = RANK_BITS if job.partial else ~MARKED
        self.decide = _decide_partly if job.partial else _decide
        self.ports = tuple(ports)
        self.parent = parent
        self.first, end = job.slots
        count = 2 * (end - self.first)
        self.ranges = [(s.first_slot, s.first_slot + s.window_slots) for s in job.streams]
        self.held = [0] * count
        self.ahead = [0] * count  # of the chunk held the next one: two windows
        self.seen = [0] * count
        self.marked = [0] * count  # or MARKED
        self.asked = [0] * count
        self.have = [0] * count
        self.sums = np.zeros((count, job.elements), np.int32)
        self.full = (1 << len(self.ports)) - 1
        self.frame_bytes = frame_bytes(job.elements)
        for stream in job.streams:
            for offset in range(stream.window_slots):
                index = 2 * (stream.first_slot - self.first + offset)
                for version in (0, 1):
                    self.held[index + version] = first_held(offset, version, stream.window_slots)
                    self.ahead[index + version] = 2 * stream.window_slots

    def receivers(self, to: int, port: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ports of a result with values, and of its header-only one; to: a kind's ROUTED bits, or REPLY … (S6, H3);
        port: the sender's."""
        if not to:
            return self.ports, ()
        if to <= RESEND:
            return (self.ports[RESEND - to],), ()
        if to < 0:
            above = self.parent.port if self.parent else 0
            return {REPLY: ((port,), ()), REPLY_HEADER_ONLY: ((), (port,))}.get(to, ((above,), ()))
        header_only = givers(to, self.full)
        ranks = range(len(self.ports))
        return (
            tuple(self.ports[rank] for rank in ranks if not header_only >> rank & 1),
            tuple(self.ports[rank] for rank in ranks if header_only >> rank & 1),
        )


def _places(numbers: list[int]) -> slice | list[int]:
    """For NumPy, which copies nothing for a slice."""
    return slice(numbers[0], numbers[0] + 1) if len(numbers) == 1 else numbers


class _Group:
    """Rows of one bundle, one job, whose values are still to be combined, and results still to be copied out.

    header_only: they have no values.
    """

    def __init__(self, share: _Share, header_only: bool) -> None:
        self.share = share
        self.header_only = header_only
        self.touched: set[int] = set()
        self.clear: list[int] = []
        self.write: tuple[list[int], list[int]] = ([], [])
        self.add: tuple[list[int], list[int]] = ([], [])
        self.maximum: tuple[list[int], list[int]] = ([], [])
        self.sends: list[tuple[int, int, int]] = []  # row, index, a kind's ROUTED bits or one of the next two

    def apply(self, bundle: Bundle, values: NDArray[np.int32], port: int, outputs: list[Output]) -> None:
        """Combine the values (S4), then copy results out, runs of equal destination in one bundle each (S5, S6)."""
        self._combine(values)
        sums = self.share.sums
        start = 0
        sends = self.sends
        for end in range(1, len(sends) + 1):
            if end < len(sends) and sends[end][2] == sends[start][2]:
                continue
            run, to = sends[start:end], sends[start][2]
            valued, header_only = self.share.receivers(to, port)
            rows = [row for row, _, _ in run]
            marks = [self.share.marked[index] for _, index, _ in run]
            turned = self.share.partial or any(marks)  # else the headers' bytes of ranks are right as they are
            if valued:
                frames = _results(bundle, rows, self.share.frame_bytes)
                headers(frames)["elements"] = self.share.job.elements
                payload(frames)[:] = sums[_places([index for _, index, _ in run])]
                if to in (UP, UP_AGAIN):
                    self._turn_up(frames, again=to == UP_AGAIN)
                elif to <= RESEND:
                    headers(frames)["chunk"] = [self.share.held[index] for _, index, _ in run]
                    headers(frames)["kind"] &= ~ROUTED & 0xFFFFFFFF
                if turned:
                    self._turn_ranks(frames, marks)
                outputs.append(Output(frames, valued))
            if header_only:
                frames = _results(bundle, rows, HEADER_BYTES)
                headers(frames)["elements"] = 0
                if turned:
                    self._turn_ranks(frames, marks)
                outputs.append(Output(frames, header_only))
            start = end

    def _combine(self, values: NDArray[np.int32]) -> None:
        sums = self.share.sums
        if self.clear:
            sums[self.clear] = 0
        if self.write[0]:
            rows, slots = map(_places, self.write)
            sums[slots] = values[rows]
        if self.add[0]:
            rows, slots = map(_places, self.add)
            sums[slots] += values[rows]
        if self.maximum[0]:
            rows, slots = map(_places, self.maximum)
            sums[slots] = np.maximum(sums[slots], values[rows])

    def _turn_ranks(self, frames: Bundle, marks: list[int]) -> None:
        """Bytes of ranks with these marks alone (G3, Q1); of a parent's result the rest stays as it is."""
        kept = RANK_BITS if self.share.partial else ~MARKED & 0xFF
        frames[:, RANK_AT] = frames[:, RANK_AT] & kept | np.array(marks, np.uint8)

    def _turn_up(self, frames: Bundle, *, again: bool) -> None:
        """Make results what this switch gives as a rank of its parent (H3, H4)."""
        assert self.share.parent is not None
        headers(frames)["rank"] = self.share.parent.rank
        frames[:, FLAGS_AT] &= 0xFF ^ FLAG_RESULT
        if again:
            frames[:, FLAGS_AT] |= FLAG_RETRANSMISSION


def _results(bundle: Bundle, rows: list[int], size: int) -> Bundle:
    """Frames of `size` bytes with the headers of these rows as results (S6)."""
    frames = np.empty((len(rows), size), np.uint8)
    frames[:, :HEADER_BYTES] = bundle[rows, :HEADER_BYTES]
    flags = frames[:, FLAGS_AT]
    flags |= FLAG_RESULT
    flags &= 0xFF ^ FLAG_RETRANSMISSION
    return frames


class BatchedPlane:
    """A switch of `slots` slots and up to `elements` int32 each; registers exist per admitted job."""

    name = "batched"

    def __init__(self, slots: int, elements: int) -> None:
        self._slots = slots
        self._elements = elements
        self._shares: dict[int, _Share] = {}
        self.counters: dict[str, int] = {}

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        check_admission(job, ports, [s.job for s in self._shares.values()], self._slots, self._elements, parent)
        self._shares[job.job_id] = _Share(job, ports, parent)

    def evict(self, job_id: int) -> None:
        self._shares.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        for share in self._shares.values():
            if any(first <= slot < end for first, end in share.ranges):
                index = 2 * (slot - share.first) + version
                bitmap = share.seen[index]
                return SlotView(share.held[index], tuple(r for r in range(bitmap.bit_length()) if bitmap >> r & 1))
        raise KeyError(slot)

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs: list[Output] = []
        count, size = bundle.shape
        if size < HEADER_BYTES:
            self._count("drop_short", count)
            return outputs
        values: NDArray[np.int32] | None = None
        group: _Group | None = None
        counts: dict[str, int] = {}
        for row, (kind, job, slot, generation, stream, rank, elements, chunk) in enumerate(headers(bundle).tolist()):
            share = self._shares.get(job)
            reason = fault(kind, elements, size, share is not None and share.partial) or _unknown_sender(
                share, kind, generation, stream, slot, rank, elements, port
            )
            if reason or share is None:
                name = f"drop_{reason}"
                counts[name] = counts.get(name, 0) + 1
                continue
            index = 2 * (slot - share.first) + (1 if kind & FLAG_VERSION else 0)
            if group is None or group.share is not share or index in group.touched:
                if group is not None and values is not None:
                    group.apply(bundle, values, port, outputs)
                group = _Group(share, size == HEADER_BYTES)
            if values is None:
                values = payload(bundle).astype(np.int32)
            decide = _take_down if kind & FLAG_RESULT else share.decide
            name = decide(group, row, index, rank, kind, chunk)
            counts[name] = counts.get(name, 0) + 1
        if group is not None and values is not None:
            group.apply(bundle, values, port, outputs)
        for name, packets in counts.items():
            self._count(name, packets)
        return outputs

    def _count(self, name: str, packets: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + packets


def _unknown_sender(
    share: _Share | None, kind: int, generation: int, stream: int, slot: int, rank: int, elements: int, port: int
) -> str:
    """Why a well-formed packet is not an admitted job's, or "" (S1)."""
    down = kind & FLAG_RESULT
    if down and (share is None or share.parent is None or share.parent.port != port):
        return "result"
    if share is None:
        return "job"
    job = share.job
    if generation != job.generation:
        return "generation"
    if stream >= len(share.ranges):
        return "stream"
    first, end = share.ranges[stream]
    if not first <= slot < end:
        return "slot"
    rank &= share.rank_bits
    if not down and rank >= len(share.ports):
        return "rank"
    if not down and share.ports[rank] != port:
        return "port"
    wanted = job.elements
    if kind & ROUTE_BITS:
        if share.parent:
            return "route"
        if not owner_of(kind) < len(share.ports) > 1:
            return "owner"
        wanted *= givers(kind, share.full) >> rank & 1
    if elements == wanted or (share.partial and not (elements or kind & ROUTE_BITS)):
        return ""
    return "elements"


def _out_of_turn(distance: int) -> str:
    """The counter of a chunk that is neither the one held nor the next (S2)."""
    return "drop_older" if distance >= HALF else "drop_early"


def _decide(group: _Group, row: int, index: int, rank: int, kind: int, chunk: int) -> str:
    """held, seen, marked and verdict of one packet (S2, S3, G3, S5); its values are left to the group. Returns the
    counter. rank: the byte."""
    share = group.share
    distance = (chunk - share.held[index]) % MODULUS
    if distance and distance != share.ahead[index]:
        return _out_of_turn(distance)
    group.touched.add(index)
    before = 0 if distance else share.seen[index]
    share.marked[index] = rank & MARKED | (0 if distance else share.marked[index])
    bit = 1 << (rank & ~MARKED)
    now = before | bit
    share.held[index] = chunk
    share.seen[index] = now
    gave = givers(kind, share.full) if kind & ROUTE_BITS else share.full
    if gave & bit and not before & bit:
        target = group.write if not before & gave else group.maximum if kind & MAX_BIT else group.add
        target[0].append(row)
        target[1].append(index)
    elif not before:
        group.clear.append(index)
    if now & share.full != share.full:
        return "drop_duplicate" if before & bit else "absorbed"
    if share.parent and now == share.full:
        return _send_up(group, row, index, bit, again=bool(before & bit))
    if not before & bit:
        group.sends.append((row, index, kind & ROUTED))
        return "broadcast"
    group.sends.append((row, index, REPLY_HEADER_ONLY if kind & ROUTE_BITS and gave & bit else REPLY))
    return "reply"


def _decide_partly(group: _Group, row: int, index: int, rank: int, kind: int, chunk: int) -> str:
    """The same for a job with partial sums (Q1 to Q5)."""
    share, bit = group.share, 1 << (rank & RANK_BITS)
    distance, seen = (chunk - share.held[index]) % MODULUS, share.seen[index]
    if distance and distance != share.ahead[index]:
        return _out_of_turn(distance)
    if group.header_only and not kind & ROUTE_BITS:
        return "drop_early" if distance else _decide_header_only(group, row, index, rank)
    if distance and seen and (waiting := share.full & ~(_having(share, index) | bit)):
        if seen <= share.full:
            return "drop_early"
        group.touched.add(index)
        group.sends.append((row, index, RESEND - (waiting & -waiting).bit_length() + 1))
        return "resend"
    group.touched.add(index)
    if distance:
        share.held[index], share.have[index], share.marked[index] = chunk, 0, 0
    share.marked[index] |= rank & MARKED
    before = 0 if distance else seen
    again, now = bool(before & bit), before | bit
    share.seen[index] = now
    gave = givers(kind, share.full)
    if before > share.full:
        if not again and not kind & FLAG_RETRANSMISSION:
            return "drop_late"
        group.sends.append((row, index, REPLY_HEADER_ONLY if kind & ROUTE_BITS and gave & bit else REPLY))
        return "reply"
    if gave & bit and not again:
        target = group.write if not before & gave else group.maximum if kind & MAX_BIT else group.add
        target[0].append(row)
        target[1].append(index)
    elif not before:
        group.clear.append(index)
    routed = kind & ROUTE_BITS
    least = len(share.ports) - (0 if routed else share.job.backups)
    if now.bit_count() < least and (routed or not rank & CLOSE):
        return "drop_duplicate" if again else "absorbed"
    share.seen[index] = now | share.full + 1
    group.sends.append((row, index, kind & ROUTED))
    return "broadcast"


def _having(share: _Share, index: int) -> int:
    """Bitmap of the ranks that are known to have the result of the chunk held (Q4)."""
    other = index ^ 1
    following = share.held[other] == (share.held[index] + share.ahead[index] // 2) % MODULUS
    return share.have[index] | (share.seen[other] if following else 0)


def _decide_header_only(group: _Group, row: int, index: int, rank: int) -> str:
    """An abstention, or a request to finalise, of the chunk held (Q3, Q5)."""
    share, bit = group.share, 1 << (rank & RANK_BITS)
    seen = share.seen[index]
    if rank & CLOSE and 0 < seen <= share.full:
        group.touched.add(index)
        share.seen[index] |= share.full + 1
        group.sends.append((row, index, 0))
        return "broadcast"
    if rank & CLOSE or seen <= share.full:
        return "drop_late" if rank & CLOSE and seen else "drop_early"
    share.seen[index] |= bit
    share.have[index] |= bit
    return "abstained"


def _send_up(group: _Group, row: int, index: int, bit: int, *, again: bool) -> str:
    """What a packet of a chunk causes that all children gave, and the parent hasn't answered (H3, H4)."""
    asked = group.share.asked
    if again and asked[index] and not asked[index] & bit:
        asked[index] |= bit
        return "drop_asked"
    asked[index] = bit if again else 0
    group.sends.append((row, index, UP_AGAIN if again else UP))
    return "up_again" if again else "up"


def _take_down(group: _Group, row: int, index: int, rank: int, kind: int, chunk: int) -> str:
    """Give the parent's result to all children, if they wait for it (H5)."""
    share, seen = group.share, group.share.seen[index]
    if chunk != share.held[index]:
        return "drop_parent_chunk"
    if seen != share.full:
        return "drop_parent_duplicate" if seen > share.full else "drop_parent_early"
    group.touched.add(index)
    share.seen[index] = seen | 1 << len(share.ports)
    share.marked[index] = rank & MARKED
    group.write[0].append(row)
    group.write[1].append(index)
    group.sends.append((row, index, 0))
    return "broadcast"
