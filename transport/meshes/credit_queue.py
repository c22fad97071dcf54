"""CreditQueue: what is most urgent goes first, and a byte credit bounds the FIFOs below.

Kernel buffers, ZeroMQ pipes and NIC queues are first in, first out: what lies in them can't be overtaken. So an item
leaves this queue only while fewer bytes than the credit are below it. The credit may be overdrawn by one item, so
that items larger than it pass: an urgent item waits for at most credit + one item. URGENT items don't wait for
credit: else one peer that reads nothing would keep heartbeats, and the reason of a failure, from all others.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar, runtime_checkable

from switchagg.priority import flow_of
from transport.meshes.mesh import URGENT, Event, Mesh, MessageSent, OutgoingMessage, Place

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


def ticket_in_use(ticket: int) -> str:
    """The fault of a message whose ticket another message has, too."""
    return f"ticket {ticket} is that of a message that hasn't left yet: a party gives each message its own"


@runtime_checkable
class Sends(Protocol):
    """A mesh with a CreditQueue for each of its flows: `Credited`, or a mesh that has them itself."""

    def carry(self, messages: Iterable[OutgoingMessage]) -> None:
        """Queue messages; what the credit allows is on its way, now or with the next `receive`."""

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """As the mesh's."""

    def set_credit(self, credit_bytes: int | None) -> None:
        """As of CreditQueue, of each flow; from now on. Any thread may call it."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that left the queues and are not yet known to have left the mesh. Any thread may ask."""


class Credited:
    """See `Sends`; over any mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._queues: list[CreditQueue[OutgoingMessage]] = [CreditQueue(None) for _ in mesh.classes or (None,)]
        self._below: dict[
            int, tuple[CreditQueue[OutgoingMessage], int]
        ] = {}  # ticket -> bytes of a message the mesh has

    def carry(self, messages: Iterable[OutgoingMessage]) -> None:
        """See `Sends`."""
        queues, mesh, below = self._queues, self._mesh, self._below
        for message in messages:
            flow = flow_of(message.priority, mesh.classes) if len(queues) > 1 else 0
            queues[flow].push(message, len(message.data), message.priority)
        for flow, queue in enumerate(queues):
            while (next_one := queue.pop()) is not None:
                if next_one.ticket in below:  # else what is below would be counted for ever
                    raise ValueError(ticket_in_use(next_one.ticket))
                below[next_one.ticket] = (queue, len(next_one.data))
                mesh.send(next_one.to, next_one.head, next_one.data, next_one.ticket, flow)

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Sends`."""
        events = self._mesh.receive(place)
        for event in events:
            if type(event) is MessageSent:
                queue, size_bytes = self._below.pop(event.ticket)
                queue.returned(size_bytes)
        return events

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Sends`."""
        for queue in self._queues:
            queue.credit_bytes = credit_bytes

    @property
    def waiting_bytes(self) -> int:
        """See `Sends`."""
        return sum(queue.below_bytes for queue in self._queues)
