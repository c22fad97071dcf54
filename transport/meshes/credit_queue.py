"""CreditQueue: what is most urgent goes first, and a byte credit bounds the FIFOs below.

Kernel buffers, ZeroMQ pipes and NIC queues are first in, first out: what lies in them can't be overtaken. So an item
leaves this queue only while fewer bytes than the credit are below it. The credit may be overdrawn by one item, so
that items larger than it pass: an urgent item waits for at most credit + one item. URGENT items don't wait for
credit: else one peer that reads nothing would keep heartbeats, and the reason of a failure, from all others.
"""

from heapq import heappop, heappush
from typing import Generic, TypeVar

from transport.meshes.mesh import URGENT

Item = TypeVar("Item")


class CreditQueue(Generic[Item]):
    """credit_bytes: how much may be in queues below; None for no bound. Lower priority is more urgent; equal ones keep
    order."""

    def __init__(self, credit_bytes: int | None) -> None:
        if credit_bytes is not None and credit_bytes < 1:
            raise ValueError(f"credit_bytes {credit_bytes}: 1 or more, or None")
        self.credit_bytes = credit_bytes
        self.below_bytes = 0
        self._heap: list[tuple[int, int, int, Item]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: Item, size_bytes: int, priority: int = 0) -> None:
        """Queue an item."""
        heappush(self._heap, (priority, self._sequence, size_bytes, item))
        self._sequence += 1

    def pop(self) -> Item | None:
        """The most urgent item, whose bytes are below from now on; None if nothing waits or the credit is used up."""
        if not self._heap:
            return None
        if self.credit_bytes is not None and self.below_bytes >= self.credit_bytes and self._heap[0][0] > URGENT:
            return None
        _, _, size_bytes, item = heappop(self._heap)
        self.below_bytes += size_bytes
        return item

    def returned(self, size_bytes: int) -> None:
        """These bytes have left what is below."""
        self.below_bytes -= size_bytes
        assert self.below_bytes >= 0, "more came back than was taken"
