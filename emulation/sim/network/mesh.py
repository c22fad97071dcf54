"""MeshHost: a member of a host method on a simulated link. It drives any Party, as a mesh's event loop does.

Messages wait in a CreditQueue, most urgent first; what left it goes out message by message in that order, over one
reliable connection to each member it is for, or one for each priority class, if links serve classes strictly: what is
overtaken on the way must not look lost. Acknowledgements go past data that waits. A message is `Sent`, and its credit
back, when its last frame was put on the link. Frames come and go in virtual time; the party's computing takes none.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from emulation.sim.network.hosts import Alarm, Uplink
from emulation.sim.network.link import AHEAD, CLASS_SHIFT, IP_BYTES, NODE_MASK, CorruptedFrame, Link, addressed
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import RELIABLE_BYTES
from transport.meshes.credit_queue import CreditQueue
from transport.meshes.mesh import Outgoing, Party
from transport.meshes.reliable import DATA, KIND_OFFSET, Receiver, ReliableConfig, Sender


class _Departing(NamedTuple):
    """A message that has left the queue. to: see `addressed`. last: segments of its connection up to its end."""

    to: int
    last: int
    size_bytes: int
    ticket: int
    priority: int


class MeshHost:
    """One member. After any input of the party `notice` is called, to take its events: it may give the party new calls.

    `pump` after the party was given something to do. credit_bytes bounds what was taken from the queue and isn't out.
    strict: messages' frames have the class of their priority.
    """

    def __init__(
        self,
        member: int,
        party: Party,
        connections: Callable[[int, int], ReliableConfig],
        link: Link,
        notice: Callable[[int], None],
        *,
        job: str,
        credit_bytes: int | None,
        strict: bool = False,
    ) -> None:
        self.party = party
        self.drop_checksum = 0
        self.queue: CreditQueue[Outgoing] = CreditQueue(credit_bytes)
        self._network = link.network
        self._member = member
        self._connections = connections
        self._link = link
        self._notice = notice
        self._job = job
        self._strict = strict
        # Keys of what is stored per connection: the member's number, with the class in the upper bits; see `addressed`.
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._alarms: dict[tuple[int, bool], Alarm] = {}
        self._out: dict[int, int] = {}  # first transmissions so far
        self._submitted: dict[int, int] = {}  # segments of all messages so far
        self._departing: deque[_Departing] = deque()
        self._repeating: set[int] = set()
        self._busy = False
        self._segment_bytes = connections(member, member).segment_bytes
        frame_bytes = self._segment_bytes + RELIABLE_BYTES + ETHERNET_BYTES + IP_BYTES
        self._uplink = Uplink(link.network, link, frame_bytes, self._give)
        self._timer = Alarm(link.network, self._party_due)

    @property
    def retransmissions(self) -> int:
        return sum(sender.counters["retransmitted"] for sender in self._senders.values())

    def pump(self) -> None:
        """Send what the party has, as far as credit and link go; continues automatically."""
        if self._busy:
            return  # the caller that is in it will look again
        self._busy = True
        self._feed()
        self._busy = False
        self._uplink.pump()
        self._timer.set(self.party.next_deadline_ns())

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame of another member, its bytes from after the IP header."""
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self.drop_checksum += 1
                return
        now_ns = self._network.now_ns
        peer = sender | to >> CLASS_SHIFT << CLASS_SHIFT
        if len(frame) > KIND_OFFSET and frame[KIND_OFFSET] == DATA:
            receiver = self._receiver(peer)
            receiver.receive(frame, now_ns)
            self._acknowledge(peer, receiver)
            came = False
            while (message := receiver.next_message()) is not None:
                data = memoryview(message.data)
                self.party.receive(sender, message.data[: message.tag], data[message.tag :], now_ns)
                came = True
            if not came:
                return
            self._notice(self._member)
        else:
            connection = self._sender(peer)
            connection.receive(frame, now_ns)
            self._after_input(peer, connection)
        self.pump()

    def _feed(self) -> None:
        """From the party to the queue, from the queue to the connections."""
        queue = self.queue
        for message in self.party.messages_to_send():
            queue.push(message, len(message.head) + len(message.data), message.priority)
        while (message := queue.pop()) is not None:  # type: ignore[assignment]
            to, head, data, ticket, priority = message
            if self._strict:
                to = addressed(to, priority)
            size_bytes = len(head) + len(data)
            segments = -(-size_bytes // self._segment_bytes) or 1
            last = self._submitted.get(to, 0) + segments
            self._submitted[to] = last
            self._sender(to).submit(len(head), b"".join((head, data)))  # a copy: it may have to be sent again
            self._departing.append(_Departing(to, last, size_bytes, ticket, priority))

    def _give(self, limit: int) -> int:
        """Up to limit frames to the link: repetitions, then messages in order; those behind a full window wait."""
        self._busy = True
        given = 0
        for member in sorted(self._repeating):
            sender = self._senders[member]
            given += self._put(member, sender, min(limit - given, sender.repeats))
            if not sender.repeats:
                self._repeating.discard(member)
        full: set[int] = set()
        index = 0
        departing, out = self._departing, self._out
        while given < limit and index < len(departing):
            message = departing[index]
            to = message.to
            if to in full:
                index += 1
                continue
            wanted = min(limit - given, message.last - out.get(to, 0))
            got = self._put(to, self._senders[to], wanted)
            given += got
            out[to] = out.get(to, 0) + got
            if out[to] == message.last:
                del departing[index]
                self._left(message)
            elif got < wanted:
                full.add(to)
                index += 1
        self._busy = False
        return given

    def _left(self, message: _Departing) -> None:
        """The last frame of a message is on the link."""
        self.queue.returned(message.size_bytes)
        self.party.sent(message.ticket)
        self._notice(self._member)
        self._feed()

    def _put(self, to: int, sender: Sender, limit: int) -> int:
        now_ns = self._network.now_ns
        frames = sender.frames_to_send(now_ns, limit)
        send, member = self._link.send, self._member
        for frame in frames:
            send(frame, len(frame) + ETHERNET_BYTES + IP_BYTES, now_ns, member, to)
        if frames:
            self._alarm(to, True).set(sender.next_deadline_ns())
        return len(frames)

    def _acknowledge(self, peer: int, receiver: Receiver) -> None:
        now_ns = self._network.now_ns
        for ack in receiver.frames_to_send(now_ns):
            self._link.send_ahead(ack, len(ack) + ETHERNET_BYTES + IP_BYTES, now_ns, self._member, peer | AHEAD)
        deadline_ns = receiver.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm(peer, False).set(deadline_ns)

    def _after_input(self, peer: int, sender: Sender) -> None:
        if sender.repeats:
            self._repeating.add(peer)
        deadline_ns = sender.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm(peer, True).set(deadline_ns)

    def _sender(self, peer: int) -> Sender:
        sender = self._senders.get(peer)
        if sender is None:
            to = peer & NODE_MASK
            connection = self._member | peer & ~NODE_MASK
            sender = self._senders[peer] = Sender(self._connections(self._member, to), connection, self._job, to)
        return sender

    def _receiver(self, peer: int) -> Receiver:
        receiver = self._receivers.get(peer)
        if receiver is None:
            config = self._connections(peer & NODE_MASK, self._member)
            receiver = self._receivers[peer] = Receiver(config, peer)
        return receiver

    def _alarm(self, peer: int, of_sender: bool) -> Alarm:
        alarm = self._alarms.get((peer, of_sender))
        if alarm is None:
            ring = self._sender_due if of_sender else self._receiver_due
            alarm = self._alarms[peer, of_sender] = Alarm(self._network, lambda: ring(peer))
        return alarm

    def _sender_due(self, peer: int) -> None:
        sender = self._senders[peer]
        sender.handle_timer(self._network.now_ns)
        self._after_input(peer, sender)
        self.pump()

    def _receiver_due(self, peer: int) -> None:
        receiver = self._receivers[peer]
        receiver.handle_timer(self._network.now_ns)
        self._acknowledge(peer, receiver)

    def _party_due(self) -> None:
        self.party.handle_timer(self._network.now_ns)
        self._notice(self._member)
        self.pump()
