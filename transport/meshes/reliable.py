"""Messages in order, exactly once, over links that lose, repeat, reorder and damage frames: what TCP does for a ring.

Sans-IO: a `Sender` and the `Receiver` at its peer get frames and the time as input, and return frames and one
deadline. A message is cut into segments that fill a frame. The receiver acknowledges every second segment, and at once
at the end of a message or when something is missing, with up to three SACK ranges. Loss is found by order of sending
(RACK, RFC 8985): what was sent before a frame that has arrived is sent again, once frames that others overtook would
have arrived, too. The echoed time of sending tells which of a segment's transmissions arrived. A timeout (at first
two round trips, as TLP of RFC 8985; then that of RFC 6298, doubled each time) repeats nothing: it sends a probe, a
header alone, whose acknowledgement shows what is missing. So a round trip that grows suddenly, as queues fill, makes no
sender repeat what waits in them.

There is no congestion control: the window alone bounds what is in flight. The choice is generous to the host methods
that run on it: no slow start, no halving after a loss.

The header is as long as TCP's with timestamps (32 B), so that a frame costs what a segment of TCP costs:

     0 u16 magic "RT" | 2 u8 kind (1 DATA, 2 ACK)
     3 u8 DATA: 1 = last of its message, 2 = probe, no segment: acknowledge at once; ACK: SACK ranges that follow
     4 u32 connection | 8 u64 segment number (ACK: all below have arrived; probe: 0)
    16 u64 time of sending in ns (ACK: echoed) | 24 u64 DATA: tag of the message; ACK: 0
    32 DATA: payload; ACK: per SACK range u32 first, u32 end, relative to the number at 8
"""

import struct
from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from switchagg.errors import AggregationFailed
from switchagg.pacing import RetransmissionTimeout
from transport.links.framing import RELIABLE_BYTES

SEGMENT_BYTES = 1448  # MTU 1500 less IP and the header
SACK_RANGES_MAX = 3  # as many as TCP has room for beside timestamps
KIND_OFFSET = 2
DATA, ACK = 1, 2

_MAGIC = 0x5254
_LAST, _PROBE = 1, 2
_HEADER = struct.Struct(">HBBIQQQ")
_RANGE = struct.Struct(">II")
assert _HEADER.size == RELIABLE_BYTES


@dataclass(frozen=True)
class ReliableConfig:
    """Sizes in bytes, times in ns.

    window_bytes covers 3 ms at 10 Gb/s, about what Linux lets a TCP connection buffer by default. To be compared with
    the switch, a ring is given the timeouts of its `JobConfig`, so that no method waits longer than another for the
    same loss; the floor here lies above delayed_ack_ns (Linux's is 200 ms). An acknowledgement waits for
    ack_every_segments (2: RFC 5681), at most delayed_ack_ns. retry_limit counts timeouts in a row.
    """

    segment_bytes: int = SEGMENT_BYTES
    window_bytes: int = 4 << 20
    rto_initial_ns: int = 200_000_000
    rto_min_ns: int = 20_000_000
    rto_max_ns: int = 1_000_000_000
    ack_every_segments: int = 2
    delayed_ack_ns: int = 10_000_000
    retry_limit: int = 30

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= 65_000:
            raise ValueError(f"segment_bytes {self.segment_bytes}: 1 to 65000")
        if self.window_segments < 1:
            raise ValueError(f"window_bytes {self.window_bytes}: at least one segment of {self.segment_bytes}")
        if not 1 <= self.rto_min_ns <= self.rto_initial_ns <= self.rto_max_ns:
            raise ValueError("rto_min_ns, rto_initial_ns, rto_max_ns: 1 or more, in ascending order")
        if self.delayed_ack_ns < 0 or self.ack_every_segments < 1 or self.retry_limit < 1:
            raise ValueError("delayed_ack_ns: 0 or more; ack_every_segments, retry_limit: 1 or more")

    @property
    def window_segments(self) -> int:
        return self.window_bytes // self.segment_bytes


class Message(NamedTuple):
    """A message as it was submitted: the tag (0 … 2**64 - 1) is the application's."""

    tag: int
    data: bytes


class _Segment(NamedTuple):
    order: int  # number of this transmission; grows
    sent_ns: int
    repeated: bool
    flags: int
    tag: int
    payload: bytes


class Sender:
    """The sending end of one connection to `peer` (a rank of `job`, for errors).

    Inputs: submit, receive, handle_timer. Outputs: frames_to_send, next_deadline_ns. After any input, call
    frames_to_send until it returns fewer frames than asked for, then wait until next_deadline_ns or a frame.
    """

    def __init__(self, config: ReliableConfig, connection: int, job: str | int, peer: int) -> None:
        self.counters = {"segments": 0, "retransmitted": 0, "timeouts": 0, "acks": 0, "drop_unknown_sender": 0}
        self._config = config
        self._connection = connection
        self._job = job
        self._peer = peer
        self._messages: deque[Message] = deque()
        self._offset = 0  # in the first of _messages
        self._next = 0  # number of the next new segment
        self._first = 0  # all below have arrived
        self._in_flight: OrderedDict[int, _Segment] = OrderedDict()  # by order of sending
        self._lost: OrderedDict[int, _Segment] = OrderedDict()  # to be sent again
        self._order = 0
        self._newest = -1  # highest order that has arrived
        self._newest_ns = -1  # latest time of sending that came back
        self._probe: tuple[int, int] | None = None  # order and time of sending of the last one
        self._probe_due = False
        self._sacked: dict[int, int] = {}  # start of a SACK range -> how far it has been worked off
        self._timeout = RetransmissionTimeout(config.rto_initial_ns, config.rto_min_ns, config.rto_max_ns)
        self._rtt_last_ns = 0
        self._rtt_min_ns = 1 << 62
        self._late_ns = 0  # how much longer than what overtook them frames were under way
        self._timeouts = 0  # in a row
        self._timeout_at_ns: int | None = None
        self._loss_at_ns: int | None = None

    @property
    def idle(self) -> bool:
        """True if all that was submitted has been acknowledged."""
        return not (self._messages or self._in_flight or self._lost)

    @property
    def in_flight(self) -> int:
        """How many segments have left and not arrived, as far as is known."""
        return len(self._in_flight)

    @property
    def acknowledged(self) -> int:
        """How many segments, from the first on, have arrived; a message has one at least."""
        return self._first

    @property
    def repeats(self) -> int:
        """How many frames go before new segments: segments to be sent again, and a probe."""
        return len(self._lost) + self._probe_due

    def submit(self, tag: int, data: bytes) -> None:
        """Send a message (may be empty) after all those before."""
        self._messages.append(Message(tag, data))

    def frames_to_send(self, now_ns: int, limit: int = 64) -> list[bytes]:
        """Up to limit frames, repetitions first; fewer only if there is no more to send now."""
        frames: list[bytes] = []
        while self._lost and len(frames) < limit:
            number, segment = self._lost.popitem(last=False)
            self.counters["retransmitted"] += 1
            frames.append(self._transmit(number, True, segment.flags, segment.tag, segment.payload, now_ns))
        if self._probe_due and len(frames) < limit:
            self._probe_due = False
            self._order += 1
            self._probe = self._order, now_ns
            frames.append(_HEADER.pack(_MAGIC, DATA, _PROBE, self._connection, 0, now_ns, 0))
        room = min(limit - len(frames), self._first + self._config.window_segments - self._next)
        size = self._config.segment_bytes
        while room > 0 and self._messages:
            tag, data = self._messages[0]
            end = self._offset + size
            payload = data[self._offset : end]
            if end >= len(data):
                flags = _LAST
                self._messages.popleft()
                self._offset = 0
            else:
                flags = 0
                self._offset = end
            frames.append(self._transmit(self._next, False, flags, tag, payload, now_ns))
            self._next += 1
            room -= 1
        if frames and self._timeout_at_ns is None:
            self._timeout_at_ns = now_ns + self._patience_ns()
        return frames

    def _transmit(self, number: int, repeated: bool, flags: int, tag: int, payload: bytes, now_ns: int) -> bytes:
        self._order += 1
        self._in_flight[number] = _Segment(self._order, now_ns, repeated, flags, tag, payload)
        self.counters["segments"] += 1
        return _HEADER.pack(_MAGIC, DATA, flags, self._connection, number, now_ns, tag) + payload

    def receive(self, frame: bytes, now_ns: int) -> None:
        """Take a frame; anything but an acknowledgement of this connection is counted and ignored."""
        if len(frame) < RELIABLE_BYTES:
            self.counters["drop_unknown_sender"] += 1
            return
        magic, kind, count, connection, first, echo_ns, _ = _HEADER.unpack_from(frame)
        unknown_sender = magic != _MAGIC or kind != ACK or connection != self._connection
        if unknown_sender or len(frame) != RELIABLE_BYTES + 8 * count or first > self._next:
            self.counters["drop_unknown_sender"] += 1
            return
        self.counters["acks"] += 1
        arrived = self._arrived_below(first, echo_ns) if first > self._first else False
        if count:
            arrived = self._arrived_ranges(frame, first, count, echo_ns) or arrived
        probed = self._probe is not None and self._probe[1] <= echo_ns <= now_ns
        if self._probe is not None and probed:
            self._newest = max(self._newest, self._probe[0])
            self._probe = None
        if (arrived or probed) and echo_ns <= now_ns:  # else not our frame's time
            self._measure(echo_ns, now_ns - echo_ns)
        if arrived:
            self._timeout.sample(max(0, now_ns - echo_ns))
            self._timeouts = 0
            self._probe_due = False
            self._timeout_at_ns = now_ns + self._patience_ns() if self._in_flight or self._lost else None
        if self._in_flight:
            self._find_losses(now_ns)
        else:
            self._loss_at_ns = None

    def _patience_ns(self) -> int:
        """Until the first probe."""
        timeout = self._timeout
        return min(timeout.rto_ns, max(2 * timeout.srtt_ns, timeout.min_ns // 4)) if timeout.srtt_ns else timeout.rto_ns

    def _arrived_below(self, first: int, echo_ns: int) -> bool:
        """Every segment below `first` has arrived."""
        in_flight, newest = self._in_flight, self._newest
        for number in range(self._first, first):
            segment = in_flight.pop(number, None)
            if segment is None:
                self._lost.pop(number, None)
            elif segment.order > newest and (not segment.repeated or segment.sent_ns <= echo_ns):
                newest = segment.order
        self._newest = newest
        self._first = first
        if self._sacked:
            self._sacked = {start: end for start, end in self._sacked.items() if end > first}
        return True

    def _arrived_ranges(self, frame: bytes, base: int, count: int, echo_ns: int) -> bool:
        """The segments of the SACK ranges have arrived; work already done on a range isn't done again."""
        arrived = False
        for index in range(count):
            low, high = _RANGE.unpack_from(frame, RELIABLE_BYTES + 8 * index)
            start, end = base + low, min(base + high, self._next)
            for number in range(max(self._first, self._sacked.get(start, start)), end):
                segment = self._in_flight.pop(number, None)
                if segment is not None:
                    if not segment.repeated or segment.sent_ns <= echo_ns:
                        self._newest = max(self._newest, segment.order)
                    arrived = True
                elif self._lost.pop(number, None) is not None:
                    arrived = True
            if end > self._sacked.get(start, start):
                self._sacked[start] = end
        return arrived

    def _measure(self, echo_ns: int, rtt_ns: int) -> None:
        """The round trip of the latest frame that came back; of one it overtook: how much longer that was under way."""
        if echo_ns >= self._newest_ns:
            self._newest_ns = echo_ns
            self._rtt_last_ns = rtt_ns
            self._rtt_min_ns = min(self._rtt_min_ns, rtt_ns)
        else:
            self._late_ns = max(self._late_ns, min((rtt_ns - self._rtt_last_ns) * 5 // 4, self._timeout.rto_ns))

    def _find_losses(self, now_ns: int) -> None:
        """Mark segments lost that were sent before the newest arrival, and long enough ago."""
        self._loss_at_ns = None
        allowed_ns = self._rtt_last_ns + max(self._rtt_min_ns // 4, self._late_ns)
        in_flight = self._in_flight
        while in_flight:
            number = next(iter(in_flight))
            segment = in_flight[number]
            if segment.order > self._newest:
                return
            if segment.sent_ns + allowed_ns > now_ns:
                self._loss_at_ns = segment.sent_ns + allowed_ns
                return
            self._lost[number] = in_flight.pop(number)
            self._late_ns -= self._late_ns >> 6  # a late frame is remembered for some hundred losses

    def next_deadline_ns(self) -> int | None:
        """When handle_timer must be called, or None."""
        if self._loss_at_ns is None:
            return self._timeout_at_ns
        if self._timeout_at_ns is None:
            return self._loss_at_ns
        return min(self._loss_at_ns, self._timeout_at_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due. AggregationFailed, naming the peer, after more than retry_limit timeouts in a row."""
        if self._loss_at_ns is not None and now_ns >= self._loss_at_ns:
            self._find_losses(now_ns)
        if self._timeout_at_ns is None or now_ns < self._timeout_at_ns:
            return
        self._timeouts += 1
        self.counters["timeouts"] += 1
        if self._timeouts > self._config.retry_limit:
            raise AggregationFailed(
                f"no acknowledgement from rank {self._peer} after {self._config.retry_limit} timeouts in a row",
                job=self._job,
                missing=(self._peer,),
            )
        if self._timeouts > 1 or not self._timeout.srtt_ns:  # the first may have been the earlier one
            self._timeout.back_off()
        self._timeout_at_ns = now_ns + self._timeout.rto_ns
        self._probe_due = not self._lost


class Receiver:
    """The receiving end. Inputs: receive, handle_timer. Outputs: frames_to_send, next_message, next_deadline_ns."""

    def __init__(self, config: ReliableConfig, connection: int) -> None:
        self.counters = {"segments": 0, "duplicates": 0, "acks": 0, "drop_unknown_sender": 0, "drop_window": 0}
        self._config = config
        self._connection = connection
        self._expected = 0  # all below have arrived
        self._early: dict[int, tuple[int, int, bytes]] = {}  # flags, tag, payload beyond a gap
        self._ranges: list[list[int]] = []  # [start, end] of _early, ascending, disjoint, not adjacent
        self._parts: list[bytes] = []  # of the message that is arriving
        self._messages: deque[Message] = deque()
        self._pending = 0  # in-order segments not yet acknowledged
        self._echo_ns = 0  # time of sending of the first of them
        self._recent: list[int] = []  # segments beyond a gap, the last first: their ranges are reported
        self._ack_at_ns: int | None = None
        self._ack_now = False

    def receive(self, frame: bytes, now_ns: int) -> None:
        """Take a frame; anything but a segment of this connection within the window is counted and ignored."""
        if len(frame) < RELIABLE_BYTES:
            self.counters["drop_unknown_sender"] += 1
            return
        magic, kind, flags, connection, number, sent_ns, tag = _HEADER.unpack_from(frame)
        unknown_sender = magic != _MAGIC or kind != DATA or connection != self._connection or flags > _PROBE
        if unknown_sender or (flags == _PROBE and len(frame) > RELIABLE_BYTES):
            self.counters["drop_unknown_sender"] += 1
            return
        expected = self._expected
        if number >= expected + self._config.window_segments:
            self.counters["drop_window"] += 1
            return
        self.counters["segments"] += 1
        probe = flags == _PROBE
        duplicate = not probe and (number < expected or number in self._early)
        if not self._pending or not (duplicate or (number == expected and not self._ranges)):
            self._echo_ns = sent_ns
        self._pending += 1
        if number == expected and not probe:
            if self._ranges:
                self._ack_now = True
            self._take(flags, tag, frame[RELIABLE_BYTES:])
            self._take_early()
            if self._pending >= self._config.ack_every_segments or flags:
                self._ack_now = True
            elif self._ack_at_ns is None:
                self._ack_at_ns = now_ns + self._config.delayed_ack_ns
            return
        self._ack_now = True
        if duplicate:
            self.counters["duplicates"] += 1
        elif not probe:
            self._early[number] = (flags, tag, frame[RELIABLE_BYTES:])
            start, end = self._add_to_ranges(number)
            outside = [entry for entry in self._recent if not start <= entry < end]
            self._recent = [number, *outside][:SACK_RANGES_MAX]

    def _take(self, flags: int, tag: int, payload: bytes) -> None:
        """The next segment in order."""
        self._expected += 1
        if not flags:
            self._parts.append(payload)
        elif self._parts:
            self._parts.append(payload)
            self._messages.append(Message(tag, b"".join(self._parts)))
            self._parts = []
        else:
            self._messages.append(Message(tag, payload))

    def _take_early(self) -> None:
        if self._ranges and self._ranges[0][0] == self._expected:
            start, end = self._ranges.pop(0)
            for number in range(start, end):
                self._take(*self._early.pop(number))

    def _add_to_ranges(self, number: int) -> list[int]:
        """The range that it is in now."""
        ranges = self._ranges
        index = bisect_left(ranges, [number, number])
        if index and ranges[index - 1][1] == number:
            index -= 1
            ranges[index][1] = number + 1
        else:
            ranges.insert(index, [number, number + 1])
        if index + 1 < len(ranges) and ranges[index + 1][0] == number + 1:
            ranges[index][1] = ranges.pop(index + 1)[1]
        return ranges[index]

    def frames_to_send(self, now_ns: int) -> list[bytes]:
        """The acknowledgement that is due, or none."""
        if not self._ack_now and (self._ack_at_ns is None or now_ns < self._ack_at_ns):
            return []
        ranges = self._sack_ranges() if self._ranges else []
        header = _HEADER.pack(_MAGIC, ACK, len(ranges), self._connection, self._expected, self._echo_ns, 0)
        self.counters["acks"] += 1
        self._pending = 0
        self._ack_now = False
        self._ack_at_ns = None
        return [header + b"".join(_RANGE.pack(a - self._expected, b - self._expected) for a, b in ranges)]

    def _sack_ranges(self) -> list[list[int]]:
        """Ranges of the segments that came last, the last first (RFC 2018); each range is sent several times."""
        ranges = self._ranges
        result: list[list[int]] = []
        for number in self._recent:
            index = bisect_left(ranges, [number + 1]) - 1
            if index >= 0 and ranges[index][0] <= number < ranges[index][1] and ranges[index] not in result:
                result.append(ranges[index])
        return result

    def next_message(self) -> Message | None:
        """The next whole message in order, or None."""
        return self._messages.popleft() if self._messages else None

    def next_deadline_ns(self) -> int | None:
        """When handle_timer must be called, or None."""
        return self._ack_at_ns

    def handle_timer(self, now_ns: int) -> None:
        """A delayed acknowledgement falls due: frames_to_send hands it out."""
        if self._ack_at_ns is not None and now_ns >= self._ack_at_ns:
            self._ack_now = True
