"""A direction of a cable: rate, delay, a drop-tail queue, and seeded faults per packet.

Serialisation is exact: the instant at which the link falls idle is kept as whole nanoseconds and a remainder in
units of 1/rate_bps ns, so n frames sent back to back take ceil(bits·10⁹/rate) ns at any rate, with no drift at
400 Gb/s, where a full frame lasts 30 ns. Frames arrive whole (store and forward), `delay_ns` after their last bit left.

Bytes are counted as Linux's shapers count them: the datagram with its Ethernet, IP and UDP headers, without preamble,
checksum and gap of the physical layer.

A tail of the delay is what a queue of other traffic ahead of ours adds, as long as it lasts. Background traffic comes
in bursts, so neighbouring packets are late together: the extra delay is drawn once for each burst, not for each packet.
It is lognormal, so its median and the ratio of its 99th percentile to that say all: sigma = ln(p99 / p50) / 2.326.
(OptiReduce measures public clouds by this ratio.) A queue is a queue: frames keep their order, and those that piled up
behind a long delay leave at the link's rate.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from emulation.sim.network.virtual_clock import Action, VirtualClock
from switchagg.priority import BEST_EFFORT, class_of
from switchagg.wire import job_of
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import IP_UDP_BYTES

IP_BYTES = 20
UDP_FRAMING_BYTES = ETHERNET_BYTES + IP_UDP_BYTES
BURST_BITS_MAX = 15  # a 16-bit ones'-complement sum finds every burst up to this length
REORDER_SPAN_FRAMES = 8  # a packet that is held back arrives up to so many full frames late
# A frame's destination `to` is one integer: bits 0 … 14 are the node's number, bit 15 the flag AHEAD, bits 16 … 18 the
# priority class as its distance from best effort, and bits 20 … 22 the flags ECT, CE and DROPPABLE. The engine in C
# uses the same bits.
NODE_MASK = (1 << 15) - 1
AHEAD = 1 << 15
"""The frame goes before all queued frames (`send_ahead`)."""
CLASS_SHIFT, CLASS_MASK = 16, 7
ECT = 1 << 20
"""The sender understands ECN."""
CE = 1 << 21
"""The frame met congestion."""
DROPPABLE = 1 << 22
"""A full queue drops the frame first."""


def addressed(node: int, priority: int) -> int:
    """A frame's destination integer, from a node's number and a priority class; best effort adds no bits."""
    return node | (BEST_EFFORT - class_of(priority)) << CLASS_SHIFT


NORMAL_P99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


@dataclass(frozen=True)
class Tail:
    """ratio: 99th percentile over median of the extra delay, 1 or more. p50_ns: its median. burst_ns: mean time until
    it is drawn anew, from an exponential distribution."""

    ratio: float
    p50_ns: int
    burst_ns: int

    @property
    def sigma(self) -> float:
        """The standard deviation of the delay's logarithm."""
        return math.log(self.ratio) / NORMAL_P99


class TailDelays:
    """The extra delays of one direction of a link, in ascending order of time; seed: the same gives the same ones."""

    def __init__(self, tail: Tail, seed: str) -> None:
        self._tail = tail
        self._random = random.Random(seed)
        self._until_ns = 0  # of this burst
        self._extra_ns = 0
        self._last_ns = 0  # arrival of the last frame in the queue

    def arrival_ns(self, usual_ns: int, frame_ns: int) -> int:
        """When a frame arrives that would at usual_ns: in order, and no closer to the one before than its frame_ns."""
        while usual_ns >= self._until_ns:
            self._until_ns += 1 + round(self._random.expovariate(1 / self._tail.burst_ns))
            self._extra_ns = round(self._tail.p50_ns * math.exp(self._tail.sigma * self._random.gauss(0, 1)))
        self._last_ns = max(usual_ns + self._extra_ns, self._last_ns + frame_ns)
        return self._last_ns


@dataclass(frozen=True)
class LinkConfig:
    """Rate in bit/s (1 … 400·10⁹ and more), one-way delay in ns, queue in bytes, faults as probabilities per packet.

    queue_bytes bounds the bytes not yet sent, the rest of the frame on the wire and the arriving one included.
    ecn_bytes: frames with ECT that find more of them before themselves are marked CE; None: none is. drop_bytes:
    frames that are DROPPABLE and find more before themselves are dropped; None: as any other. tail: of the delay; None:
    it is always delay_ns.
    ValueError for a value out of range.
    """

    rate_bps: int
    delay_ns: int = 0
    queue_bytes: int = 1_000_000
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    tail: Tail | None = None
    ecn_bytes: int | None = None
    drop_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.rate_bps < 1:
            raise ValueError(f"rate_bps must be at least 1, not {self.rate_bps}")
        if self.delay_ns < 0:
            raise ValueError(f"delay_ns must be 0 or more, not {self.delay_ns}")
        if self.queue_bytes < 1:
            raise ValueError(f"queue_bytes must be at least 1, not {self.queue_bytes}")
        if self.ecn_bytes is not None and self.ecn_bytes < 0:
            raise ValueError(f"ecn_bytes must be 0 or more, not {self.ecn_bytes}")
        if self.drop_bytes is not None and self.drop_bytes < 0:
            raise ValueError(f"drop_bytes must be 0 or more, not {self.drop_bytes}")
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be a probability from 0 to 1, not {getattr(self, name)}")

    @property
    def faulty(self) -> bool:
        return bool(self.loss or self.duplicate or self.reorder or self.corrupt)


def internet_checksum(data: bytes) -> int:
    """The 16-bit ones'-complement sum of RFC 1071 over data, odd length padded with a zero byte; 0 … 65535."""
    if len(data) % 2:
        data += b"\0"
    total = int(np.frombuffer(data, ">u2").sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


class CorruptedFrame:
    """A frame with flipped bits and the checksum its sender had computed (only now, since only now it matters)."""

    __slots__ = ("checksum", "data", "shape")

    def __init__(self, frame: Any, burst: int, first_bit: int) -> None:
        again = isinstance(frame, CorruptedFrame)
        before: bytes = frame.data if again else bytes(memoryview(frame).cast("B"))
        self.checksum: int = frame.checksum if again else internet_checksum(before)
        self.shape: tuple[int, ...] | None = getattr(frame, "shape", None)  # None: the frame is `bytes`
        flipped = int.from_bytes(before, "big") ^ (burst << first_bit)
        self.data = flipped.to_bytes(len(before), "big")

    def __len__(self) -> int:
        return len(self.data)

    def received(self) -> Any | None:
        """The frame as its receiver sees it, or None if the receiver's checksum finds the damage."""
        if internet_checksum(self.data) != self.checksum:
            return None
        return self.data if self.shape is None else np.frombuffer(self.data, np.uint8).reshape(self.shape)


@runtime_checkable
class Bodiless(Protocol):
    """A frame of which only what its headers say is simulated."""

    def damaged(self) -> Any:
        """The same, whose checksum its receiver finds wrong."""


class Origin(NamedTuple):
    """The owner of a frame. job: the job id in a packet of method `switch`; of other frames sender: an address, and
    flow: the number of the connection, or 0."""

    job: int | None
    sender: int = 0
    flow: int = 0


def origin_of(frame: Any, sender: int) -> tuple[Origin, int]:
    """The owner of a frame, and its bytes on the wire; a damaged frame counts as its receiver sees it."""
    damaged = frame.__class__ is CorruptedFrame
    if frame.shape is not None if damaged else frame.__class__ is np.ndarray:
        data = frame.data if damaged else frame[0]
        return Origin(job_of(data)), len(data) + UDP_FRAMING_BYTES
    return Origin(None, sender, getattr(frame, "flow", 0)), len(frame) + ETHERNET_BYTES + IP_BYTES


class SimulatedLink:
    """A direction between two nodes, which hands a frame to `receive(frame, sender, to)` when the last bit arrives.

    strict: whether it serves priority classes apart. seed makes the faults: the same seed and the same sends give the
    same faults on every machine. A duplicated packet's copy and a packet held back arrive late by up to
    REORDER_SPAN_FRAMES full frames; neither takes more of the link.
    """

    strict = False

    def __init__(self, network: VirtualClock, config: LinkConfig, receive: Action, seed: str = "") -> None:
        self.config = config
        self.sent_frames = 0
        self.sent_bytes = 0  # on the wire, framing included; what the queue dropped isn't
        self.delivered_frames = 0
        self.delivered_bytes = 0
        self.marked_frames = 0
        self.users = 1  # jobs and flows at the host it comes from
        self.faults = {"drop_queue": 0, "drop_first": 0, "lost": 0, "duplicated": 0, "held_back": 0, "corrupted": 0}
        self.network = network
        self.receive = receive
        self._rate = config.rate_bps
        self._delay_ns = config.delay_ns
        self._queue_cost = config.queue_bytes * 8_000_000_000
        self._ecn_cost, self._drop_cost = (
            inf if least is None else least * 8_000_000_000 for least in (config.ecn_bytes, config.drop_bytes)
        )
        self._free_ns = 0  # the link is idle from _free_ns + _remainder / rate on
        self._remainder = 0
        self._cost: dict[int, tuple[int, int]] = {}  # size -> (ns, remainder)
        # str seeds go through SHA-512 in `random`, and random() itself is specified: stable everywhere
        self._random = random.Random(seed).random if config.faulty else None
        self._tail, self._tail_ahead = (
            TailDelays(config.tail, f"{seed} tail") if config.tail else None for _ in range(2)
        )
        self._span_ns = max(1, REORDER_SPAN_FRAMES * 1514 * 8_000_000_000 // config.rate_bps)

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """Queue a frame of size_bytes (framing included) at ready_ns; False if the queue is full and it was dropped.

        ready_ns is now or later (a switch's latency) and never before the ready_ns of the send before.
        """
        free_ns = self._free_ns
        remainder = self._remainder
        rate = self._rate
        if free_ns > ready_ns or (free_ns == ready_ns and remainder):
            backlog = (free_ns - ready_ns) * rate + remainder
            if backlog + size_bytes * 8_000_000_000 > self._queue_cost:
                self.faults["drop_queue"] += 1
                return False
            if to & DROPPABLE and backlog > self._drop_cost:
                self.faults["drop_first"] += 1
                return False
            if backlog > self._ecn_cost and to & ECT:
                to |= CE
                self.marked_frames += 1
        else:
            free_ns = ready_ns
            remainder = 0
        cost = self._cost.get(size_bytes)
        if cost is None:
            cost = self._cost[size_bytes] = divmod(size_bytes * 8_000_000_000, rate)
        free_ns += cost[0]
        remainder += cost[1]
        if remainder >= rate:
            free_ns += 1
            remainder -= rate
        self._free_ns = free_ns
        self._remainder = remainder
        self.sent_frames += 1
        self.sent_bytes += size_bytes
        arrival_ns = free_ns + self._delay_ns + (1 if remainder else 0)
        if self._tail is not None:
            arrival_ns = self._tail.arrival_ns(arrival_ns, cost[0])
        if self._random is not None:
            self._deliver_with_faults(arrival_ns, frame, size_bytes, sender, to)
            return True
        self.delivered_frames += 1
        self.delivered_bytes += size_bytes
        network = self.network
        network._sequence = sequence = network._sequence + 1
        heappush(network._heap, (arrival_ns, sequence, self.receive, frame, sender, to))
        return True

    def send_ahead(self, frame: Any, size_bytes: int, ready_ns: int, sender: int, to: int) -> bool:
        """As `send`, past what waits, as acknowledgements go where queues are fair. Later frames are behind it."""
        if self._free_ns <= ready_ns:
            return self.send(frame, size_bytes, ready_ns, sender, to)
        cost_ns, remainder = divmod(size_bytes * 8_000_000_000, self._rate)
        later_ns, self._remainder = divmod(self._remainder + remainder, self._rate)
        self._free_ns += cost_ns + later_ns
        self.sent_frames += 1
        self.sent_bytes += size_bytes
        arrival_ns = ready_ns + cost_ns + (1 if remainder else 0) + self._delay_ns
        if self._tail_ahead is not None:  # the same delays, in an order of its own
            arrival_ns = self._tail_ahead.arrival_ns(arrival_ns, cost_ns)
        self._deliver(arrival_ns, frame, size_bytes, sender, to)
        return True

    def _deliver(self, arrival_ns: int, frame: Any, size_bytes: int, sender: int, to: int) -> None:
        if self._random is not None:
            self._deliver_with_faults(arrival_ns, frame, size_bytes, sender, to)
            return
        self.delivered_frames += 1
        self.delivered_bytes += size_bytes
        self.network.schedule(arrival_ns, self._arrives(size_bytes), frame, sender, to)

    def _arrives(self, _size_bytes: int) -> Action:
        """The receiver of a frame at the other end."""
        return self.receive

    def _deliver_with_faults(self, arrival_ns: int, frame: Any, size_bytes: int, sender: int, to: int) -> None:
        chance = self._random
        assert chance is not None
        config, faults = self.config, self.faults
        if config.loss and chance() < config.loss:
            faults["lost"] += 1
            return
        if config.corrupt and chance() < config.corrupt:
            faults["corrupted"] += 1
            frame = self._corrupt(frame)
        times_ns = [arrival_ns]
        if config.duplicate and chance() < config.duplicate:
            faults["duplicated"] += 1
            times_ns.append(arrival_ns + int(chance() * self._span_ns))
        if config.reorder and chance() < config.reorder:
            faults["held_back"] += 1
            times_ns[0] += 1 + int(chance() * self._span_ns)
        for time_ns in times_ns:
            self.delivered_frames += 1
            self.delivered_bytes += size_bytes
            self.network.schedule(time_ns, self._arrives(size_bytes), frame, sender, to)

    def _corrupt(self, frame: Any) -> Any:
        """Flip a burst: its first and last bit, and each between with probability 1/2."""
        assert self._random is not None
        if isinstance(frame, Bodiless):
            return frame.damaged()
        bits = 8 * (frame.size if isinstance(frame, np.ndarray) else len(frame))
        length = min(bits, 1 + int(self._random() * BURST_BITS_MAX))
        inner = int(self._random() * (1 << length))
        burst = inner | 1 | (1 << (length - 1))
        return CorruptedFrame(frame, burst, int(self._random() * (bits - length + 1)))

    def count(self, add: Callable[[Origin, int], None]) -> Callable[[], None]:
        """add(origin, bytes on the wire), of frames that are sent from now on, once they are through, and at the latest
        when what is returned is called."""
        receive = self.receive

        def counting(frame: Any, sender: int, to: int) -> None:
            add(*origin_of(frame, sender))
            receive(frame, sender, to)

        self.receive = counting
        return lambda: None

    def backlog_bytes(self, now_ns: int) -> int:
        """Bytes queued and not yet sent, rounded up."""
        backlog = (self._free_ns - now_ns) * self._rate + self._remainder
        return -(-backlog // 8_000_000_000) if backlog > 0 else 0

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """The first instant at which no more than size_bytes are left to send, if nothing is added."""
        left = self._remainder - size_bytes * 8_000_000_000
        return self._free_ns - (-left // self._rate)
