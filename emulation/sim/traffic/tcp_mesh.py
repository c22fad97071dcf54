"""Host methods over TCP in virtual time: the same members and messages as over windows, on connections like a flow's.

Connections stay as they are while a job computes: no slow start after idle (net.ipv4.tcp_slow_start_after_idle = 0).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from emulation.sim.network.link import CE, CLASS_SHIFT, NODE_MASK, Link
from emulation.sim.network.mesh import MeshHost, MessageFlow
from emulation.sim.traffic.connection import Connection
from emulation.sim.traffic.controls import control
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.segments import Segment
from emulation.sim.traffic.sender import TcpSender
from transport.meshes.mesh import Outgoing


class Content(NamedTuple):
    """What a segment carries of a message. head_bytes: how much of the message is its head, in its last segment; else
    -1. left: called when that is on the link."""

    piece: memoryview
    head_bytes: int = -1
    left: Callable[[], None] | None = None


class MessageConnection(Connection):
    """A connection that carries messages in order; each begins with a segment of its own."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._contents: dict[int, Content] = {}  # by segment: not yet acknowledged
        self._written = self._put = self._kept = 0  # segments; those before _kept are acknowledged
        self._there: dict[int, Content] = {}  # at the receiver, not yet taken
        self._taken = 0
        self._pieces: list[memoryview] = []

    def submit(self, head_bytes: int, data: bytes, left: Callable[[], None]) -> None:
        """Send a message (may be empty) after all those before; `left` is called once its last byte is on the link."""
        size, view = self.sender.payload_bytes, memoryview(data)
        last = max(0, len(data) - 1) // size
        for place in range(last):
            self._contents[self._written + place] = Content(view[place * size : (place + 1) * size])
        self._contents[self._written + last] = Content(view[last * size :], head_bytes, left)
        self._written += last + 1
        self.write(last + 1)
        if self.opened_ns < 0:
            self.open()

    def arrived(self, frame: Segment, marked: bool) -> None:
        """See `Connection`."""
        if frame.number >= self._taken:
            assert frame.content is not None
            self._there[frame.number] = frame.content
        super().arrived(frame, marked)
        while self._kept < self.sender.unacknowledged:
            del self._contents[self._kept]
            self._kept += 1

    def messages(self) -> list[tuple[bytes, memoryview]]:
        """Those that are whole since the last call: head and data."""
        found = []
        while self._taken < self.receiver.upto:
            content = self._there.pop(self._taken)
            self._taken += 1
            self._pieces.append(content.piece)
            if content.head_bytes >= 0:
                data = b"".join(self._pieces)
                self._pieces = []
                found.append((data[: content.head_bytes], memoryview(data)[content.head_bytes :]))
        return found

    def _send(self, segment: Segment) -> None:
        if segment.number < 0:
            super()._send(segment)
            return
        content = segment.content = self._contents[segment.number]
        segment.payload_bytes = len(content.piece)
        super()._send(segment)
        if segment.number == self._put:
            self._put += 1
            if content.left is not None:
                content.left()


@dataclass(frozen=True)
class TcpMesh:
    """What the members of a job have in common. uplinks: of their hosts; a member's address is `first` and its number.

    name: of a congestion control. every: segments that receivers merge, as they do that arrive close to each other.
    """

    name: str
    uplinks: Sequence[Link]
    first: int
    segment_bytes: int
    every: int
    seed: int
    connections: list[MessageConnection] = field(default_factory=list)  # by flow

    def connect(self, sender: int, to: int) -> MessageConnection:
        """From a member's address to another's, whose priority class is in the upper bits: see `addressed`."""
        flow, kind = len(self.connections), to >> CLASS_SHIFT << CLASS_SHIFT
        links = self.uplinks[sender - self.first], self.uplinks[(to & NODE_MASK) - self.first]
        marks = links[0].config.ecn_bytes is not None
        half = TcpSender(flow, control(self.name, f"{self.seed} member {flow}"), ecn=marks)
        half.payload_bytes = self.segment_bytes
        nodes, ways = (sender, to & NODE_MASK), (to, sender | kind)
        made = MessageConnection(half, TcpReceiver(flow, merges=self.every), links, nodes, ways)
        self.connections.append(made)
        return made


class TcpMeshHost(MeshHost):
    """As `MeshHost`, over TCP: a connection to each member, and for each class, that it sends to."""

    def __init__(self, mesh: TcpMesh, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._mesh = mesh
        self._ways: dict[int, MessageConnection] = {}
        self._departed: deque[tuple[MessageFlow, int, int]] = deque()  # messages on the link: flow, bytes, ticket

    @property
    def retransmissions(self) -> int:
        return sum(way.sender.counters["retransmitted"] for way in self._ways.values())

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

    def receive(self, frame: Segment, sender: int, to: int) -> None:
        """A frame of another member."""
        if not frame.intact:
            self.drop_checksum += 1
            return
        connection = self._mesh.connections[frame.flow]
        connection.arrived(frame, bool(to & CE))
        if messages := connection.messages():
            now_ns = self._network.now_ns
            for head, data in messages:
                self.party.receive(sender - self._first, head, data, now_ns)
            self._notice(self._member)
            self.pump()

    def _carry(self, flow: MessageFlow, to: int, message: Outgoing) -> None:
        way = self._ways.get(to)
        if way is None:
            way = self._ways[to] = self._mesh.connect(self._address, to)
        size_bytes = len(message.head) + len(message.data)
        left = partial(self._note, flow, size_bytes, message.ticket)
        way.submit(len(message.head), b"".join((message.head, message.data)), left)

    def _note(self, flow: MessageFlow, size_bytes: int, ticket: int) -> None:
        self._departed.append((flow, size_bytes, ticket))
        if not self._busy and not self._again:
            self._again = True  # once the connection has sent what it may
            self._network.schedule(self._network.now_ns, self._pump_again)
