"""Members of host methods whose parties are in Python, on connections in C: Python sees whole messages alone."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from emulation.sim.engine import engine_library
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.engine.member_group import Connections, MemberCounters, MemberGroup
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.host_costs import HostCosts
from switchagg.errors import AggregationFailed
from switchagg.native import headers
from switchagg.native.library import load
from transport.meshes.mesh import HEAD_BYTES_MAX, OutgoingMessage, Party

Begins = Callable[[bytes], bool]
"""Whether a message is the first of a transfer, by its head."""


class MemberHost(Protocol):
    """The interface of a `MeshHost` for simulations; hosts in C have it, too."""

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""

    @property
    def retransmissions(self) -> int:
        """Frames sent again."""

    def has_costs(self, costs: HostCosts, begins: Begins) -> None: ...

    def pump(self) -> None: ...

    def receive(self, frame: Any, sender: int, to: int) -> None: ...


class PartyGroup(MemberGroup):
    """The members of a job, and their messages: C knows a message by its number, and of its bytes only how many there
    are, but where there is a trace."""

    def __init__(
        self, clock: PacketClock, connections: Connections, first: int, credit_bytes: int | None, job: str
    ) -> None:
        super().__init__(clock, connections, first, credit_bytes, self._happened)
        self.job = job
        self.hosts: dict[int, MeshHost] = {}
        self.numbers = itertools.count()
        self.waiting: dict[int, OutgoingMessage] = {}  # until their last frame is on the link
        self.under_way: dict[int, tuple[bytes, bytes]] = {}  # then head and data, until they have arrived

    def _happened(self, member: int, what: int, peer: int, message: int) -> int:
        host = self.hosts[member]
        if not self.clock.guarded(partial(host.happened, what, peer, message)):
            return headers.SIM_BROKEN_OFF
        deadline_ns = host.party.next_deadline_ns()
        return -1 if deadline_ns is None else deadline_ns


class MeshHost(MemberCounters):
    """A member of a host method. After any input of the party `notice` is called, to take its events: it may give the
    party new calls.

    Messages wait in a queue, most urgent first; what left it goes out message by message in that order, over one
    reliable connection to each member it is for. If links serve classes strictly, each class has all of this for
    itself, as in a real mesh with `classes`: no message waits for another class's credit, and what is overtaken on the
    way does not look lost. Acknowledgements wait behind data. A message is `Sent`, and its credit back, when its
    last frame was put on the link. The party's computing takes no time, unless `HostCosts` says so: then messages leave
    the queue, and reach the party, as the host gets to them. A party without input since it was last asked has neither
    messages nor another deadline, so that it isn't asked after acknowledgements.
    """

    def __init__(
        self, group: PartyGroup, member: int, party: Party, link: SimulatedLink, notice: Callable[[int], None]
    ) -> None:
        self.party = party
        self._group, self._member, self._notice = group, member, notice
        self._begins: Begins = bool
        self._clock = group.clock
        self._library = load()
        handle = self._library.sa_sim_member(group.handle, link.handle, member, 0, link.strict)
        self._handle = engine_library.there(handle)
        group.hosts[member] = self

    def happened(self, what: int, peer: int, number: int) -> None:
        """C reports an event: see `enum sim_report`."""
        party, group, now_ns = self.party, self._group, self._clock.now_ns
        if what in (headers.SIM_REPORT_CAME, headers.SIM_REPORT_CAME_LAST):
            head, data = group.under_way.pop(number)
            party.receive(peer, head, memoryview(data), now_ns)
        elif what == headers.SIM_REPORT_SENT:
            message = group.waiting.pop(number)
            group.under_way[number] = message.head, bytes(message.data)  # a copy: it is the party's again
            party.on_sent(message.ticket)
        elif what == headers.SIM_REPORT_DUE:
            party.handle_timer(now_ns)
        elif what == headers.SIM_REPORT_UNANSWERED:
            limit = group.retry_limit(self._member, peer)
            words = f"no acknowledgement from rank {peer} after {limit} timeouts in a row"
            raise AggregationFailed(words, job=group.job, missing=(peer,))
        if what == headers.SIM_REPORT_CAME:
            return
        if what != headers.SIM_REPORT_PUMPS:
            self._notice(self._member)
        for message in party.messages_to_send():
            self._push(message)

    def _push(self, message: OutgoingMessage) -> None:
        head, data = message.head, message.data
        assert len(head) <= HEAD_BYTES_MAX
        number = next(self._group.numbers)
        self._group.waiting[number] = message
        values = bytes(data) if self._clock.traces and len(data) else None
        what = number, message.to, message.priority, head, len(head), self._begins(head), values, len(data)
        if self._library.sa_sim_member_push(self._handle, *what):
            raise MemoryError("no memory for a message")

    def pump(self) -> None:
        """Send what the party has, as far as credit and link go; continues automatically. After the party was given
        something to do."""
        self._library.sa_sim_member_pump(self._handle)
        self._clock.go_on()

    def has_costs(self, costs: HostCosts, begins: Begins) -> None:
        """From the start: what transfers cost the host; of all members alike."""
        self._group.has_costs(costs)
        if costs.transfer_ns:
            self._begins = begins

    def receive(self, _frame: object, _sender: int, _to: int) -> None:
        """The method is never called: frames stay in C."""
        raise AssertionError("a frame from C")
