"""Host methods over TCP or RoCE in virtual time: the same members and messages, on connections like a flow's.

Connections stay as they are while a job computes: no slow start after idle (net.ipv4.tcp_slow_start_after_idle = 0).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from emulation.scenario.scenario_tables import RDMA_CONTROLS
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.lossless.simulated_queue_pair import DcqcnPacket, SimulatedQueuePair, rdma_bytes_of
from emulation.sim.network.simulated_link import CE, CLASS_SHIFT, NODE_MASK
from emulation.sim.traffic.connection import TcpConnection
from emulation.sim.traffic.connection_messages import Messages
from emulation.sim.traffic.controls import control
from emulation.sim.traffic.message_host import ClassFlow, MessageHost
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.segments import TransportSegment
from emulation.sim.traffic.sender import TcpSender
from transport.meshes.mesh import OutgoingMessage


class MessageConnection(TcpConnection):
    """A connection of TCP that carries messages in order."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._messages = Messages(self.payload_bytes)

    def submit(self, head_bytes: int, data: bytes, left: Callable[[], None]) -> None:
        """Send a message: see `Messages.add`."""
        self.write(self._messages.add(head_bytes, data, left))
        if self.opened_ns < 0:
            self.open()

    def arrived(self, frame: TransportSegment, marked: bool) -> None:
        """See `TcpConnection`."""
        if frame.number >= 0:
            self._messages.on_received(frame)
        super().arrived(frame, marked)
        self._messages.on_acknowledged(self.sender.unacknowledged)

    def messages(self) -> list[tuple[bytes, memoryview]]:
        """The messages that are complete since the last call: head and data."""
        return self._messages.complete_messages(self.receiver.upto)

    def _send(self, segment: TransportSegment) -> None:
        if segment.number < 0:
            super()._send(segment)
            return
        self._messages.fill(segment)
        super()._send(segment)
        self._messages.on_departed(segment)


class MessagePair(SimulatedQueuePair):
    """A queue pair of RoCE that carries messages in order."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._messages = Messages(self.payload_bytes)

    def submit(self, head_bytes: int, data: bytes, left: Callable[[], None]) -> None:
        """Send a message: see `Messages.add`."""
        self.write(self._messages.add(head_bytes, data, left))
        if self.opened_ns < 0:
            self.open()

    def arrived(self, frame: TransportSegment, marked: bool) -> None:
        """See `SimulatedQueuePair`."""
        if frame.number >= 0:
            self._messages.on_received(frame)
        super().arrived(frame, marked)
        self._messages.on_acknowledged(self._acknowledged)

    def messages(self) -> list[tuple[bytes, memoryview]]:
        """The messages that are complete since the last call: head and data."""
        return self._messages.complete_messages(self.received)

    def _put(self, packet: DcqcnPacket) -> None:
        self._messages.fill(packet)
        super()._put(packet)
        self._messages.on_departed(packet)


@dataclass(frozen=True)
class SimulatedTcpMesh:
    """The shared state of a job's members. uplinks: of their hosts; a member's address is `first` and its number.

    name: of a congestion control, of TCP or of RoCE. every: segments that receivers merge, as they do that arrive close
    to each other.
    """

    name: str
    uplinks: Sequence[SimulatedLink]
    first: int
    segment_bytes: int
    every: int
    seed: int
    connections: list[MessageConnection | MessagePair] = field(default_factory=list)  # by flow

    def connect(self, sender: int, to: int) -> MessageConnection | MessagePair:
        """From a member's address to another's, whose priority class is in the upper bits: see `addressed`."""
        flow, kind = len(self.connections), to >> CLASS_SHIFT << CLASS_SHIFT
        links = self.uplinks[sender - self.first], self.uplinks[(to & NODE_MASK) - self.first]
        nodes, destinations = (sender, to & NODE_MASK), (to, sender | kind)
        if self.name in RDMA_CONTROLS:
            pair = MessagePair(
                flow, links, nodes, destinations, control=self.name, payload_bytes=rdma_bytes_of(self.segment_bytes)
            )
            self.connections.append(pair)
            return pair
        marks = links[0].config.ecn_bytes is not None
        half = TcpSender(flow, control(self.name, f"{self.seed} member {flow}"), ecn=marks)
        half.payload_bytes = self.segment_bytes
        connection = MessageConnection(half, TcpReceiver(flow, merges=self.every), links, nodes, destinations)
        self.connections.append(connection)
        return connection


class TcpMeshHost(MessageHost):
    """As `MeshHost`, over TCP or RoCE: a connection to each member, and for each class, that it sends to."""

    def __init__(self, mesh: SimulatedTcpMesh, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._mesh = mesh
        self._connections: dict[int, MessageConnection | MessagePair] = {}
        self._departed: deque[tuple[ClassFlow, int, int]] = deque()  # messages on the link: flow, bytes, ticket

    @property
    def retransmissions(self) -> int:
        return sum(connection.counters["retransmitted"] for connection in self._connections.values())

    def pump(self) -> None:
        """Send what the party has, as far as credit goes; continues automatically."""
        if self._busy:
            return
        self._busy = True
        self._feed()
        while self._departed:
            self._left(*self._departed.popleft())
        self._busy = False
        self._timer.set(self.party.next_deadline_ns())

    def receive(self, frame: TransportSegment, sender: int, to: int) -> None:
        """A frame of another member."""
        if not frame.intact:
            self.drop_checksum += 1
            return
        connection = self._mesh.connections[frame.flow]
        connection.arrived(frame, bool(to & CE))
        self._on_receive(sender - self._first, connection.messages())

    def _carry(self, flow: ClassFlow, to: int, message: OutgoingMessage) -> None:
        connection = self._connections.get(to)
        if connection is None:
            connection = self._connections[to] = self._mesh.connect(self._address, to)
        size_bytes = len(message.head) + len(message.data)
        left = partial(self._note, flow, size_bytes, message.ticket)
        connection.submit(len(message.head), b"".join((message.head, message.data)), left)

    def _note(self, flow: ClassFlow, size_bytes: int, ticket: int) -> None:
        self._departed.append((flow, size_bytes, ticket))
        if not self._busy and not self._again:
            self._again = True  # once the connection has sent what it may
            self._network.schedule(self._network.now_ns, self._pump_again)
