"""Members of host methods on connections in Python, the oracle of those in C."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from emulation.sim.host_costs import FlowPacer
from emulation.sim.network.host_uplink import Alarm, ClassQueue, HostUplink
from emulation.sim.network.simulated_link import (
    CLASS_SHIFT,
    IP_BYTES,
    NODE_MASK,
)
from emulation.sim.traffic.message_host import ClassFlow, MessageHost
from switchagg.priority import BEST_EFFORT
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import RELIABLE_BYTES
from transport.meshes.mesh import OutgoingMessage
from transport.meshes.reliable import DATA, KIND_OFFSET, Receiver, ReliableConfig, Sender


class _Departing(NamedTuple):
    """A message that has left the queue. to: see `addressed`. last: segments of its connection up to its end."""

    to: int
    last: int
    size_bytes: int
    ticket: int


class ReliableFlow(ClassFlow):
    """uplink: None until the class has a message."""

    def __init__(self, credit_bytes: int | None) -> None:
        super().__init__(credit_bytes)
        self.departing: deque[_Departing] = deque()
        self.repeating: set[int] = set()
        self.uplink: HostUplink | None = None


class OracleMeshHost(MessageHost):
    """As `MeshHost`."""

    flow_kind = ReliableFlow
    _flows: list[ReliableFlow]  # type: ignore[assignment]

    def __init__(
        self,
        member: int,
        party: Any,
        connections: Callable[[int, int], ReliableConfig],
        link: Any,
        notice: Callable[[int], None],
        first: int,
        credit_bytes: int | None,
        *,
        job: str,
    ) -> None:
        super().__init__(member, party, link, notice, first, credit_bytes)
        self._connections = connections
        self._job = job
        # Keys of what is stored per connection: the peer's address, with the class in the upper bits; see `addressed`.
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._alarms: dict[tuple[int, bool], Alarm] = {}
        self._out: dict[int, int] = {}  # first transmissions so far
        self._submitted: dict[int, int] = {}  # segments of all messages so far
        self._segment_bytes = connections(member, member).segment_bytes
        self._paces: dict[int, FlowPacer] = {}  # of connections
        self._paced = Alarm(link.network, self.pump)

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
        for kind, flow in enumerate(self._flows):
            if flow.departing or flow.repeating:
                if flow.uplink is None:
                    flow.uplink = self._new_uplink(kind)
                flow.uplink.pump()
        self._timer.set(self.party.next_deadline_ns())

    def _new_uplink(self, kind: int) -> HostUplink:
        network, link = self._network, self._link
        frame_bytes = self._segment_bytes + RELIABLE_BYTES + ETHERNET_BYTES + IP_BYTES
        queue = ClassQueue(network, link, kind) if link.strict else link
        return HostUplink(network, queue, frame_bytes, partial(self._give, self._flows[kind]))

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame of another member, its bytes from after the IP header."""
        if frame is None:
            self.drop_checksum += 1
            return
        now_ns = self._network.now_ns
        peer = sender | to >> CLASS_SHIFT << CLASS_SHIFT
        if len(frame) > KIND_OFFSET and frame[KIND_OFFSET] == DATA:
            receiver = self._receiver(peer)
            receiver.receive(frame, now_ns)
            self._acknowledge(peer, receiver)
            messages = []
            while (message := receiver.next_message()) is not None:
                messages.append((message.data[: message.tag], memoryview(message.data)[message.tag :]))
            self._on_receive(sender - self._first, messages)
        else:
            connection = self._sender(peer)
            connection.receive(frame, now_ns)
            self._after_input(peer, connection)
            self.pump()

    def _carry(self, flow: ReliableFlow, to: int, message: OutgoingMessage) -> None:
        """A message to an address, its class in the upper bits, is below its queue."""
        head, data = message.head, message.data
        size_bytes = len(head) + len(data)
        segments = -(-size_bytes // self._segment_bytes) or 1
        last = self._submitted.get(to, 0) + segments
        self._submitted[to] = last
        self._sender(to).submit(len(head), b"".join((head, data)))  # a copy: it may have to be sent again
        flow.departing.append(_Departing(to, last, size_bytes, message.ticket))

    def _give(self, flow: ReliableFlow, limit: int) -> int:
        """Up to limit frames to the link: repetitions, then messages in order; those behind a full window wait."""
        self._busy = True
        frames = 0
        for member in sorted(flow.repeating):
            sender = self._senders[member]
            frames += self._put(member, sender, min(limit - frames, sender.repeats))
            if not sender.repeats:
                flow.repeating.discard(member)
        full: set[int] = set()
        index = 0
        departing, out = flow.departing, self._out
        while frames < limit and index < len(departing):
            message = departing[index]
            to = message.to
            if to in full:
                index += 1
                continue
            wanted = min(limit - frames, message.last - out.get(to, 0))
            taken_frames = self._put(to, self._senders[to], wanted)
            frames += taken_frames
            out[to] = out.get(to, 0) + taken_frames
            if out[to] == message.last:
                del departing[index]
                self._left(flow, message.size_bytes, message.ticket)
            elif taken_frames < wanted:
                full.add(to)
                index += 1
        self._busy = False
        return frames

    def _put(self, to: int, sender: Sender, limit: int) -> int:
        now_ns, pace = self._network.now_ns, None
        if self._costs.flow_bps:
            pace = self._paces.setdefault(to, FlowPacer(self._costs.flow_bps))
            limit = min(limit, int(pace.next_ns <= now_ns))
            if not limit:
                self._paced.set(pace.next_ns)
        frames = sender.frames_to_send(now_ns, limit)
        send, address = self._link.send, self._address
        for frame in frames:
            size_bytes = len(frame) + ETHERNET_BYTES + IP_BYTES
            send(frame, size_bytes, now_ns, address, to)
            if pace is not None:
                pace.left(now_ns, size_bytes)
                self._paced.set(pace.next_ns)
        if frames:
            self._alarm(to, True).set(sender.next_deadline_ns())
        return len(frames)

    def _acknowledge(self, peer: int, receiver: Receiver) -> None:
        now_ns = self._network.now_ns
        for ack in receiver.frames_to_send(now_ns):
            self._link.send(ack, len(ack) + ETHERNET_BYTES + IP_BYTES, now_ns, self._address, peer)
        deadline_ns = receiver.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm(peer, False).set(deadline_ns)

    def _after_input(self, peer: int, sender: Sender) -> None:
        if sender.repeats:
            kind = BEST_EFFORT - (peer >> CLASS_SHIFT) if self._strict else 0
            self._flows[kind].repeating.add(peer)
        deadline_ns = sender.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm(peer, True).set(deadline_ns)

    def _sender(self, peer: int) -> Sender:
        sender = self._senders.get(peer)
        if sender is None:
            to = (peer & NODE_MASK) - self._first
            connection = self._member | peer & ~NODE_MASK
            sender = self._senders[peer] = Sender(self._connections(self._member, to), connection, self._job, to)
        return sender

    def _receiver(self, peer: int) -> Receiver:
        receiver = self._receivers.get(peer)
        if receiver is None:
            config = self._connections((peer & NODE_MASK) - self._first, self._member)
            receiver = self._receivers[peer] = Receiver(config, peer - self._first)
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

    def _left(self, flow: ClassFlow, size_bytes: int, ticket: int) -> None:
        super()._left(flow, size_bytes, ticket)
        if any(other.departing for other in self._flows if other is not flow) and not self._again:
            self._again = True  # once this class's uplink is done
            self._network.schedule(self._network.now_ns, self._pump_again)
