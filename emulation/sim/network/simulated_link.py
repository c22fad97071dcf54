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
from dataclasses import dataclass
from typing import NamedTuple

from switchagg.priority import BEST_EFFORT, class_of
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import IP_UDP_BYTES

IP_BYTES = 20
UDP_FRAMING_BYTES = ETHERNET_BYTES + IP_UDP_BYTES
# A frame's destination `to` is one integer: bits 0 … 14 are the node's number, bits 16 … 18 the priority class as its
# distance from best effort, and bits 20 … 22 the flags ECT, CE and DROPPABLE. The engine in C uses the same bits.
NODE_MASK = (1 << 15) - 1
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


class Origin(NamedTuple):
    """The owner of a frame. job: the job id in a packet of method `switch`; of other frames sender: an address, and
    flow: the number of the connection, or 0."""

    job: int | None
    sender: int = 0
    flow: int = 0
