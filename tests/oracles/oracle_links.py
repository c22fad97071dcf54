"""Links in Python, the oracle of those in C: the same instants, drops, marks and faults."""

import random
from collections.abc import Callable
from heapq import heappush
from math import exp, inf
from typing import Any

import numpy as np

from emulation.sim.network.simulated_link import (
    CE,
    DROPPABLE,
    ECT,
    IP_BYTES,
    UDP_FRAMING_BYTES,
    LinkConfig,
    Origin,
    Tail,
)
from emulation.sim.network.virtual_clock import Action, VirtualClock
from emulation.sim.traffic.segments import TransportSegment
from switchagg.wire import job_of
from transport.bounded.bounded_packets import MAGIC
from transport.links.ethernet import ETHERNET_BYTES

BURST_BITS_MAX = 15  # a 16-bit ones'-complement sum finds every burst up to this length
REORDER_SPAN_FRAMES = 8  # a packet that is held back arrives up to so many full frames late


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
            self._extra_ns = round(self._tail.p50_ns * exp(self._tail.sigma * self._random.gauss(0, 1)))
        self._last_ns = max(usual_ns + self._extra_ns, self._last_ns + frame_ns)
        return self._last_ns


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

    __slots__ = ("checksum", "data", "framing_bytes", "shape")

    def __init__(self, frame: Any, burst: int, first_bit: int) -> None:
        again = isinstance(frame, CorruptedFrame)
        before: bytes = frame.data if again else bytes(memoryview(frame).cast("B"))
        self.checksum: int = frame.checksum if again else internet_checksum(before)
        self.framing_bytes = framing_bytes_of(frame)
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


def framing_bytes_of(frame: Any) -> int:
    """Headers around a frame: packets of method `switch` and of methods with bounded loss begin behind that of UDP,
    others behind that of IP."""
    if frame.__class__ is CorruptedFrame:
        framing_bytes: int = frame.framing_bytes
        return framing_bytes
    is_datagram = isinstance(frame, np.ndarray) or (isinstance(frame, bytes) and frame[:2] == MAGIC.to_bytes(2, "big"))
    return UDP_FRAMING_BYTES if is_datagram else ETHERNET_BYTES + IP_BYTES


def origin_of(frame: Any, sender: int) -> tuple[Origin, int]:
    """The owner of a frame, and its bytes on the wire; a damaged frame counts as its receiver sees it."""
    damaged = frame.__class__ is CorruptedFrame
    if frame.shape is not None if damaged else frame.__class__ is np.ndarray:
        data = frame.data if damaged else frame[0]
        return Origin(job_of(data)), len(data) + UDP_FRAMING_BYTES
    return Origin(None, sender, getattr(frame, "flow", 0)), len(frame) + framing_bytes_of(frame)


class OracleLink:
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
        self._tail = TailDelays(config.tail, f"{seed} tail") if config.tail else None
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
        if isinstance(frame, TransportSegment):
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

    def backlog(self, _left: Callable[[], None]) -> Any:
        """As of `SimulatedLink`: None."""

    def backlog_bytes(self, now_ns: int) -> int:
        """Bytes queued and not yet sent, rounded up."""
        backlog = (self._free_ns - now_ns) * self._rate + self._remainder
        return -(-backlog // 8_000_000_000) if backlog > 0 else 0

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """The first instant at which no more than size_bytes are left to send, if nothing is added."""
        left = self._remainder - size_bytes * 8_000_000_000
        return self._free_ns - (-left // self._rate)
