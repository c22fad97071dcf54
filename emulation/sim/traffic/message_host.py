"""A host whose messages leave over connections in Python: between a party and connections, on a simulated link.

Messages wait in a CreditQueue, most urgent first. If links serve classes strictly, each class has a queue for itself,
as in a real mesh with `classes`. A message is `Sent`, and its credit back, when its last frame was put on the link. The
party's computing takes no time, unless `HostCosts` says so: then messages leave the queue, and reach the party, as the
host gets to them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.host_costs import FREE, HostCosts, Processor
from emulation.sim.network.host_uplink import Alarm
from emulation.sim.network.mesh_host import Begins
from emulation.sim.network.simulated_link import addressed
from switchagg.priority import CLASSES, class_of
from transport.meshes.credit_queue import CreditQueue
from transport.meshes.mesh import OutgoingMessage, Party


class ClassFlow:
    """The state of a priority class; without classes there is one object."""

    def __init__(self, credit_bytes: int | None) -> None:
        self.queue: CreditQueue[OutgoingMessage] = CreditQueue(credit_bytes)


class MessageHost(ABC):
    """A member of a host method. After any input of the party `notice` is called, to take its events: it may give the
    party new calls.

    `pump` after the party was given something to do. credit_bytes bounds what was taken from a queue and isn't out.
    first: a member's address is that and its number. On a strict link frames have the class of their priority.
    """

    flow_kind = ClassFlow

    def __init__(
        self,
        member: int,
        party: Party,
        link: SimulatedLink,
        notice: Callable[[int], None],
        first: int,
        credit_bytes: int | None,
    ) -> None:
        self.party = party
        self.drop_checksum = 0
        self._network = link.network
        self._member = member
        self._first = first
        self._address = first + member
        self._link = link
        self._notice = notice
        self._strict = link.strict
        # the most urgent first
        self._flows = [self.flow_kind(credit_bytes) for _ in range(CLASSES if link.strict else 1)]
        self._busy = self._again = False
        self._timer = Alarm(link.network, self._party_due)
        self._costs = FREE
        self._begins: Begins = bool
        self._host = Processor(link.network)

    def has_costs(self, costs: HostCosts, begins: Begins) -> None:
        """From the start: what transfers cost the host."""
        self._costs, self._begins = costs, begins

    def _on_receive(self, member: int, messages: Sequence[tuple[bytes, memoryview]]) -> None:
        """Whole messages of a member, head and data: the party has those that cost its host nothing at once."""
        if not messages:
            return
        if not self._costs.transfer_ns:
            for head, data in messages:
                self.party.receive(member, head, data, self._network.now_ns)
            self._notice(self._member)
            self.pump()
            return
        for head, data in messages:
            self._host.run(self._cost_ns(head), partial(self._take, member, head, data))

    def _take(self, member: int, head: bytes, data: memoryview) -> None:
        self.party.receive(member, head, data, self._network.now_ns)
        self._notice(self._member)
        self.pump()

    def _cost_ns(self, head: bytes) -> int:
        """The host's time for a message, at either end."""
        return self._costs.transfer_ns if self._costs.transfer_ns and self._begins(head) else 0

    def _feed(self) -> None:
        """From the party to the queues, from the queues to the connections."""
        for message in self.party.messages_to_send():
            queue = self._flows[class_of(message.priority) if self._strict else 0].queue
            queue.push(message, len(message.head) + len(message.data), message.priority)
        for flow in self._flows:
            while self._host.idle and (message := flow.queue.pop()) is not None:  # type: ignore[assignment]
                to = message.to + self._first
                to = addressed(to, message.priority) if self._strict else to
                cost_ns = self._cost_ns(message.head)
                self._host.run(cost_ns, partial(self._carry_and_go_on if cost_ns else self._carry, flow, to, message))

    def _carry_and_go_on(self, flow: ClassFlow, to: int, message: OutgoingMessage) -> None:
        self._carry(flow, to, message)
        self.pump()

    def _left(self, flow: ClassFlow, size_bytes: int, ticket: int) -> None:
        """The last frame of a message is on the link."""
        flow.queue.returned(size_bytes)
        self.party.on_sent(ticket)
        self._notice(self._member)
        self._feed()

    def _pump_again(self, _frame: None, _sender: int, _to: int) -> None:
        self._again = False
        self.pump()

    def _party_due(self) -> None:
        self.party.handle_timer(self._network.now_ns)
        self._notice(self._member)
        self.pump()

    @property
    @abstractmethod
    def retransmissions(self) -> int:
        """Frames sent again."""

    @abstractmethod
    def pump(self) -> None:
        """Send what the party has, as far as credit and link go; continues automatically."""

    @abstractmethod
    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame of another member; None: its checksum is wrong."""

    @abstractmethod
    def _carry(self, flow: Any, to: int, message: OutgoingMessage) -> None:
        """A message to an address, its class in the upper bits, is below its queue."""
