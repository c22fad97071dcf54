"""Packets between two members: numbered by their sender, acknowledged in any order, lost without being sent again.

As in QUIC every packet has a number of its own, also one that repeats something: which of them arrived is never in
doubt. An acknowledgement names the newest packet that came and, one bit each, those before it (LTP's out-of-order
ACKs). A packet that REORDER later ones have overtaken, no more urgent than itself, is lost: the sender hears of it, and
decides. More urgent ones overtake it in queues. A timeout declares nothing lost: it sends a ping, no more urgent than
what is in flight, whose acknowledgement shows what is; so a round trip that grows repeats nothing.
A window bounds the packets in flight. Acknowledgements count the packets that came marked (ECN), and the window
follows them by rule G6, `friendly`. Losses change nothing: the methods exist to bear them.

     0 u16 magic "BL" | 2 u8 kind | 3 u8 flags | 4 u32 job | 8 u64 packet number (ACK: the newest that came)
    16 u64 key | 24 u32 use | 28 u8 stage | 29 u8 style | 30 u16 terms: a CRC of what ranks agree on
    32 u32 blocks of the transfer | 36 u32 of them, how many are reliable | 40 u32 this block | 44 u32 timeout in us
    48 payload (DATA: values; MISSING: u32 first block, a bit for each from there on; ACK: at 16 u64 packets that came
       marked, then a bit for each before)
"""

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from switchagg.job import FRIENDLY
from switchagg.pacing import LEAST_ALPHA, CongestionWindow, RetransmissionTimeout
from switchagg.priority import CLASSES, MOST_URGENT

DATA, ACK, STOP, PROBE, MISSING, PING = range(1, 7)
RELIABLE, MARK, ASK = 1, 2, 4
"""Flags: it is sent until it arrives; the last percentile of its transfer; acknowledge at once."""

ROTATED, PROBES = 1, 2
"""Styles of a transfer: its values are rotated; its sender goes on until it is told to stop."""

AHEAD = -1
"""Instead of a class: a packet that goes ahead of all that waits, and so says nothing of it."""

MAGIC = 0x424C
REORDER = 3
SEEN_BITS = 512
"""How far back an acknowledgement reaches: so many of them may be lost before a packet that came looks lost."""

_NUMBERED = struct.Struct(">HBBIQ")
_PLACE = struct.Struct(">QIBBHIIII")
HEADER_BYTES = _NUMBERED.size + _PLACE.size
assert HEADER_BYTES == 48


class BoundedHeader(NamedTuple):
    """The transfer of a packet. key, use: the call, and how often its key was used before. stage: 0, to the owner of a
    shard; 1, from it. style: ROTATED, PROBES. block, timeout_us: of DATA."""

    key: int
    use: int
    stage: int
    style: int = 0
    terms: int = 0
    blocks: int = 0
    reliable: int = 0
    block: int = 0
    timeout_us: int = 0


class BoundedPacket(NamedTuple):
    """A packet that came."""

    kind: int
    flags: int
    job: int
    number: int
    place: BoundedHeader | None
    payload: bytes


def packed(kind: int, flags: int, job: int, number: int, place: BoundedHeader, payload: bytes = b"") -> bytes:
    return _NUMBERED.pack(MAGIC, kind, flags, job, number) + _PLACE.pack(*place) + payload


def unpacked(frame: bytes) -> BoundedPacket | None:
    """Decode a packet; None: the packet belongs to another protocol."""
    if len(frame) < _NUMBERED.size:
        return None
    magic, kind, flags, job, number = _NUMBERED.unpack_from(frame)
    if magic != MAGIC or not DATA <= kind <= PING:
        return None
    if kind == ACK:
        return BoundedPacket(kind, flags, job, number, None, frame[_NUMBERED.size :])
    if len(frame) < HEADER_BYTES:
        return None
    place = BoundedHeader(*_PLACE.unpack_from(frame, _NUMBERED.size))
    return BoundedPacket(kind, flags, job, number, place, frame[HEADER_BYTES:])


@dataclass(frozen=True)
class PathConfig:
    """block_bytes: of a packet's values, a multiple of 4. window_bytes: most of what may be in flight to one member,
    as long as nothing is marked.
    ack_every: packets. Times in ns. retry_limit: timeouts in a row, with something reliable in flight."""

    block_bytes: int = 1_424  # MTU 1500 less IP, UDP and the header
    window_bytes: int = 1 << 18
    ack_every: int = 16
    rto_initial_ns: int = 200_000_000
    rto_min_ns: int = 20_000_000
    rto_max_ns: int = 1_000_000_000
    retry_limit: int = 30

    def __post_init__(self) -> None:
        if self.block_bytes < 4 or self.block_bytes % 4:
            raise ValueError(f"block_bytes {self.block_bytes}: a multiple of 4")
        if self.window_bytes < self.block_bytes:
            raise ValueError(f"window_bytes {self.window_bytes}: one block of {self.block_bytes} at least")


class InFlight(NamedTuple):
    """A packet on its way. priority: its class, or AHEAD. thing: the sender's own name for what is in it."""

    sent_ns: int
    size_bytes: int
    priority: int
    thing: object


class PathSender:
    """Packets to one member. Lost things are given back by `acknowledged`; after `handle_timer` a ping may be due."""

    def __init__(self, config: PathConfig) -> None:
        self.config = config
        self.rtt_min_ns = 0  # 0: none was measured
        self.timeouts = 0  # in a row
        self._flight: OrderedDict[int, InFlight] = OrderedDict()
        self._flight_bytes = 0
        self._number = 0
        self._since_ask = 0
        self._pings: set[int] = set()
        self._newest = dict.fromkeys(range(AHEAD, CLASSES), -1)  # by class: what came, or what a ping stands for
        self._rto = RetransmissionTimeout(config.rto_initial_ns, config.rto_min_ns, config.rto_max_ns)
        self._progress_ns = 0
        self._packet_bytes = config.block_bytes + HEADER_BYTES
        self._congestion = CongestionWindow(-(-config.window_bytes // self._packet_bytes), LEAST_ALPHA[FRIENDLY])
        self._marks = 0  # as the receiver counts them

    @property
    def has_room(self) -> bool:
        most_bytes = min(self.config.window_bytes, self._congestion.chunks * self._packet_bytes)
        return self._flight_bytes + self.config.block_bytes <= most_bytes

    @property
    def in_flight(self) -> int:
        """How many packets have left and neither arrived nor are lost, as far as is known."""
        return len(self._flight)

    def ping(self, now_ns: int) -> tuple[int, int]:
        """(number, class) of a ping that leaves now: behind all that is in flight."""
        self._pings.add(self._number)
        priority = max((packet.priority for packet in self._flight.values()), default=MOST_URGENT)
        return self.track(None, 0, False, now_ns, priority)[0], max(MOST_URGENT, priority)

    def track(self, thing: object, size_bytes: int, more: bool, now_ns: int, priority: int) -> tuple[int, bool]:
        """(number, whether to ask for an acknowledgement) of a packet that leaves now. more: others will follow.
        priority: its class, or AHEAD."""
        if not self._flight:
            self._progress_ns = now_ns
        number, self._number = self._number, self._number + 1
        self._flight[number] = InFlight(now_ns, size_bytes, priority, thing)
        self._flight_bytes += size_bytes
        self._since_ask += 1
        asks = not more or not self.has_room or self._since_ask >= self.config.ack_every
        if asks:
            self._since_ask = 0
        return number, asks

    def acknowledged(self, newest: int, payload: bytes, now_ns: int) -> tuple[list[object], list[object]]:
        """(things that have arrived, things that are lost): an acknowledgement came."""
        marks, bits = int.from_bytes(payload[:8], "big"), int.from_bytes(payload[8:], "little")  # i: newest - 1 - i
        if newest >= self._number or marks > self._number:  # of packets that never left
            return [], []
        arrived: list[object] = []
        lost: list[object] = []
        missing, received = [], 0
        for number in list(self._flight):
            if number > newest:
                break
            packet = self._flight[number]
            if number == newest or bits >> (newest - 1 - number) & 1:
                if number == newest:
                    self._sample(now_ns - packet.sent_ns)
                received += 1
                self._landed(number, arrived)
            else:
                missing.append(number)
        for number in missing:
            no_more_urgent = range(self._flight[number].priority, CLASSES)
            if max(self._newest[level] for level in no_more_urgent) - number >= REORDER:
                self._forget(number, lost)
        if received:
            self.timeouts = 0
            self._progress_ns = now_ns
            self._follow(marks, received)
        return arrived, lost

    def _follow(self, marks: int, received: int) -> None:
        """Adjust the window to the marked packets among those that the receiver counted."""
        marked = min(received, max(0, marks - self._marks))
        self._marks = max(self._marks, marks)
        for _ in range(marked):
            self._congestion.marked()
        self._congestion.unmarked(received - marked)

    def _landed(self, number: int, arrived: list[object]) -> None:
        # A ping follows a pause: nothing is on its way beside it.
        reaches = number + REORDER - 1 if number in self._pings else number
        priority = self._flight[number].priority
        self._newest[priority] = max(self._newest[priority], reaches)
        self._forget(number, arrived)

    def _forget(self, number: int, things: list[object]) -> None:
        """A packet is no longer in flight."""
        packet = self._flight.pop(number)
        self._pings.discard(number)
        self._flight_bytes -= packet.size_bytes
        if packet.thing is not None:
            things.append(packet.thing)

    def next_deadline_ns(self) -> int | None:
        return self._progress_ns + self._rto.rto_ns if self._flight else None

    def handle_timer(self, now_ns: int) -> bool:
        """Whether a ping is due: a timeout has passed without an acknowledgement."""
        if not self._flight or now_ns < self._progress_ns + self._rto.rto_ns:
            return False
        self._progress_ns = now_ns
        self.timeouts += 1
        self._rto.back_off()
        return True

    def _sample(self, rtt_ns: int) -> None:
        self._rto.sample(rtt_ns)
        self.rtt_min_ns = min(self.rtt_min_ns or rtt_ns, rtt_ns)


class PathReceiver:
    """Packets from one member: which came."""

    def __init__(self) -> None:
        self._newest = -1
        self._bits = 0  # bit i: newest - 1 - i
        self._marked = 0
        self._far = -1  # the latest that was too far ahead

    def take(self, number: int, marked: bool = False) -> bool:
        """Whether a packet must be acknowledged at once: it isn't the one after the last. marked: it met a queue.

        A packet that is SEEN_BITS ahead is acknowledged only with the next, as in RFC 3550, appendix A.1: a forged one
        alone would make all that follow look old.
        """
        ahead = number - self._newest
        if ahead > SEEN_BITS and number != self._far + 1:
            self._far = number
            return True
        self._marked += marked
        if ahead > 0:
            before = (self._bits << 1 | 1) if self._newest >= 0 else 0
            self._bits = before << (ahead - 1) & (1 << SEEN_BITS) - 1 if ahead <= SEEN_BITS else 0
            self._newest = number
        elif ahead < 0 and -ahead <= SEEN_BITS:
            self._bits |= 1 << -ahead - 1
        return ahead != 1

    def ack(self, job: int) -> bytes:
        """An acknowledgement of all that came; of a packet that never left, if nothing did."""
        bits = self._bits.to_bytes((self._bits.bit_length() + 7) // 8, "little")
        return _NUMBERED.pack(MAGIC, ACK, 0, job, self._newest % (1 << 64)) + self._marked.to_bytes(8, "big") + bits
