"""Output queues of a switch on interfaces: first in, first out, a depth in packets, a rate in packets per second."""

from collections import deque
from dataclasses import dataclass, field

BURST_US = 2000
"""A queue that was empty, or whose turn came late, may catch up on so much time."""


@dataclass(slots=True)
class OutputQueue:
    """A port's queue. rate: packets per second, 0: no limit."""

    depth: int
    rate: int
    packets: deque[bytes] = field(default_factory=deque)
    next_us: float = 0.0
    overflowed: int = 0

    @property
    def full(self) -> bool:
        return len(self.packets) >= self.depth

    def put(self, data: bytes) -> None:
        """A packet that finds the queue full is dropped and counted."""
        if self.full:
            self.overflowed += 1
        else:
            self.packets.append(data)

    def due(self, now_us: float) -> int:
        """Packets that may leave now."""
        waiting = len(self.packets)
        if not waiting or not self.rate:
            return waiting
        self.next_us = max(self.next_us, now_us - BURST_US)
        return min(waiting, max(0, int((now_us - self.next_us) * self.rate / 1e6) + 1)) if now_us >= self.next_us else 0

    def on_transmit(self, count: int) -> None:
        """Note that so many packets have left since `due` was asked."""
        if self.rate:
            self.next_us += count * 1e6 / self.rate

    def wait_us(self, now_us: float) -> float | None:
        """Time until the next packet may leave; None: nothing waits."""
        if not self.packets:
            return None
        return max(0.0, self.next_us - now_us) if self.rate else 0.0
