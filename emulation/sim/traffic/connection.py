"""TCP connections on links in virtual time: both ends of each, and the one place where their frames arrive."""

from collections.abc import Callable
from typing import Protocol

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.host_uplink import Alarm
from emulation.sim.network.simulated_link import CE, ECT
from emulation.sim.traffic.host_queue import HostQueue
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.segments import TransportSegment, acknowledgement
from emulation.sim.traffic.sender import RTO_FIRST_NS, TcpSender

SYN = -2  # the number of what opens a connection
SYN_BYTES = 8  # more options than a data segment has


class TcpConnection:
    """From one host to another: `open` it; `arrived` takes what reaches either of them.

    forward, backward: the links that leave the sender's and the receiver's host; destinations: the `to` of frames
    for the receiver and for the sender (see `addressed`). The sender keeps about a millisecond of its own in its
    host's queue, as TCP small queues do. ended: called when all that was written is acknowledged.
    """

    def __init__(
        self,
        sender: TcpSender,
        receiver: TcpReceiver,
        links: tuple[SimulatedLink, SimulatedLink],
        nodes: tuple[int, int],
        destinations: tuple[int, int],
    ) -> None:
        self.flow = sender.flow
        self.sender = sender
        self.receiver = receiver
        self.opened_ns = -1
        self.ended_ns: int | None = None
        self.stopped = False
        self.ended: Callable[[], None] | None = None
        self._forward, self._backward = links
        self._network = self._forward.network
        self._nodes = nodes
        self._destinations = destinations
        self._open = False
        self._alarm = Alarm(self._network, self._ring)
        self._queue = HostQueue(self._forward, TransportSegment(0, 0, sender.payload_bytes).wire_bytes, self._alarm)
        self._patience = Alarm(self._network, self._delayed)
        self._tries = 0

    def open(self) -> None:
        """Begin with the handshake's round trip."""
        self.opened_ns = self._network.now_ns
        self._try()

    def stop(self) -> None:
        """Send nothing more; what is on its way arrives unheard."""
        self.stopped = True

    def arrived(self, frame: TransportSegment, marked: bool) -> None:
        """A frame of this connection, whole, at the host it was for."""
        if self.stopped:
            return
        now_ns = self._network.now_ns
        if frame.number >= 0:
            self._send_back(self.receiver.receive(frame, marked, now_ns))
            self._patience.set(self.receiver.next_deadline_ns())
        elif frame.number == SYN:
            self._send_back(acknowledgement(frame.flow, 0, (), False, False))
        elif not self._open:
            self._open = True
            self.sender.start(max(1, now_ns - self.opened_ns))
            self._pump()
        elif self.ended_ns is None:
            self.sender.receive(frame, now_ns)
            if self.sender.done:
                self.ended_ns = now_ns
                if self.ended is not None:
                    self.ended()
            self._pump()

    def write(self, segments: int | None) -> None:
        """The application writes so many more units; None: without end."""
        self.sender.write(segments)
        self.ended_ns = None
        if self._open:
            self._pump()

    def _try(self) -> None:
        if self._open or self.stopped:
            return
        self._send(TransportSegment(self.sender.flow, SYN, SYN_BYTES))
        self._network.schedule(self._network.now_ns + (RTO_FIRST_NS << self._tries), self._again)
        self._tries += 1

    def _again(self, _frame: None, _sender: int, _to: int) -> None:
        if not self._open:
            self._try()

    @property
    def payload_bytes(self) -> int:
        """The wire bytes of a segment."""
        return self.sender.payload_bytes

    @property
    def counters(self) -> dict[str, int]:
        """The sender's counters."""
        return self.sender.counters

    @property
    def received_bytes(self) -> int:
        """Without headers."""
        return self.receiver.received * self.sender.payload_bytes

    def _send(self, segment: TransportSegment) -> None:
        """Only new data may be marked (RFC 3168)."""
        to = self._destinations[0]
        if self.sender.ecn and segment.number >= 0 and not segment.again:
            to |= ECT
        self._queue.send(segment, segment.wire_bytes, self._nodes[0], to)

    def _send_back(self, ack: TransportSegment | None) -> None:
        if ack is not None:
            self._backward.send(ack, ack.wire_bytes, self._network.now_ns, self._nodes[1], self._destinations[1])

    def _pump(self) -> None:
        now_ns, queue, sender = self._network.now_ns, self._queue, self.sender
        while queue.has_room and not self.stopped:
            segment = sender.next_segment(now_ns)
            if segment is None:
                break
            self._send(segment)
        else:
            self._alarm.set(queue.room_ns)
        self._alarm.set(sender.next_deadline_ns(now_ns))

    def _ring(self) -> None:
        if self.stopped or self.ended_ns is not None:
            return
        probe = self.sender.handle_timer(self._network.now_ns)
        if probe is not None:
            self._send(probe)
        self._pump()

    def _delayed(self) -> None:
        if not self.stopped:
            self._send_back(self.receiver.handle_timer(self._network.now_ns))
            self._patience.set(self.receiver.next_deadline_ns())


class FrameReceiver(Protocol):
    """A connection, of whatever kind."""

    flow: int

    def arrived(self, frame: TransportSegment, marked: bool) -> None:
        """See `TcpConnection`."""


class Connections:
    """All connections of a network, by the number of their flow; `receive` is what their hosts' links deliver to."""

    def __init__(self) -> None:
        self._by_flow: dict[int, FrameReceiver] = {}

    def add(self, connection: FrameReceiver) -> None:
        """Frames of its flow are for it."""
        self._by_flow[connection.flow] = connection

    def remove(self, flow: int) -> None:
        """Later frames of the flow are dropped."""
        del self._by_flow[flow]

    def receive(self, frame: TransportSegment, sender: int, to: int) -> None:
        """A frame for any host; one that is damaged fails its checksum."""
        connection = self._by_flow.get(frame.flow)
        if connection is not None and frame.intact:
            connection.arrived(frame, bool(to & CE))
