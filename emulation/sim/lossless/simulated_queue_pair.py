"""A RoCE queue pair in virtual time: sends at the rate that DCQCN allows, and goes back to what was lost."""

from collections.abc import Callable
from typing import Any

from emulation.scenario.scenario_tables import RDMA_CONTROLS
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.host_uplink import Alarm
from emulation.sim.network.simulated_link import CE, ECT
from emulation.sim.traffic.host_queue import HostQueue
from emulation.sim.traffic.segments import TCP_BYTES, TransportSegment
from switchagg.native.headers import SA_CNP_INTERVAL_NS
from transport.rdma.dcqcn import ReactionPoint, default_config

ACKNOWLEDGEMENT, CNP = -1, -3  # numbers of what isn't data; CNP: a congestion notification
ACK_BYTES, CNP_BYTES = 4, 16  # after the base transport header
ACK_EVERY = 16
TIMEOUT_NS = 67_108_864  # 4.096 us · 2^14, the usual one of NICs
MTUS = (4096, 2048, 1024, 512, 256)
PAYLOAD_BYTES = 1024  # at the usual MTU of Ethernet


class DcqcnPacket(TransportSegment):
    """A packet of a queue pair: UDP, the base transport header, and its checksum around the payload. cwr: its receiver
    shall acknowledge at once; again, of an acknowledgement: go back to what it is up to."""

    __slots__ = ()
    header_bytes = 8 + 12 + 4


def rdma_bytes_of(segment_bytes: int) -> int:
    """The payload bytes of a packet: the largest MTU of RoCE that fits where a segment of TCP does; at least 256."""
    room = segment_bytes + TCP_BYTES - DcqcnPacket.header_bytes
    return next((size for size in MTUS if size <= room), MTUS[-1])


class SimulatedQueuePair:
    """From one host to another: `write` what to send, `open` it. `arrived` takes what reaches either of them.

    links: those that leave the sender's and the receiver's host. nodes, destinations: see
    `traffic.connection.TcpConnection`. control: of RDMA_CONTROLS. config: of DCQCN, None: the paper's. ended: called
    when all is acknowledged. `library.CoreMissing` if DCQCN is to be without the compiled core.
    """

    def __init__(
        self,
        flow: int,
        links: tuple[SimulatedLink, SimulatedLink],
        nodes: tuple[int, int],
        destinations: tuple[int, int],
        config: Any | None = None,
        control: str = RDMA_CONTROLS[0],
        payload_bytes: int = PAYLOAD_BYTES,
    ) -> None:
        self.flow = flow
        self.payload_bytes = payload_bytes
        self.received = 0  # packets, in order
        self.arrived_bytes = 0  # on the wire
        self.counters = {"sent": 0, "retransmitted": 0, "marks": 0, "cnps": 0}
        self.opened_ns = -1
        self.ended_ns: int | None = None
        self.stopped = False
        self.ended: Callable[[], None] | None = None
        self._forward, self._backward = links
        self._network = self._forward.network
        self._nodes, self._destinations = nodes, destinations
        self._rate: ReactionPoint | None = None
        if control == RDMA_CONTROLS[0]:
            self._rate = ReactionPoint(config or default_config(self._forward.config.rate_bps), self._network.now_ns)
        self._wire_bytes = DcqcnPacket(flow, 0, payload_bytes).wire_bytes
        self._alarm = Alarm(self._network, self._ring)
        self._queue = HostQueue(self._forward, self._wire_bytes, self._alarm)
        self._end: int | None = 0  # how many there are to send
        self._next = self._most = self._acknowledged = 0
        self._complained = False
        self._cnp_ns: int | None = None
        self._progress_ns = self._network.now_ns

    @property
    def received_bytes(self) -> int:
        """Without headers."""
        return self.received * self.payload_bytes

    def write(self, packets: int | None) -> None:
        """The application writes so many more units; None: without end."""
        self._end = None if packets is None or self._end is None else self._end + packets
        self.ended_ns = None
        if self.opened_ns >= 0:
            self._pump()

    def open(self) -> None:
        """Begin."""
        self.opened_ns = self._progress_ns = self._network.now_ns
        self._pump()

    def stop(self) -> None:
        """Send nothing more; what is on its way arrives unheard."""
        self.stopped = True

    def arrived(self, frame: TransportSegment, marked: bool) -> None:
        """A frame of this queue pair, whole, at the host it was for."""
        if self.stopped:
            return
        if frame.number >= 0:
            self._take(frame, marked)
            return
        if frame.number == CNP:
            self.counters["cnps"] += 1
            if self._rate is not None:
                self._rate.cnp(self._network.now_ns)
            return
        if frame.upto > self._acknowledged:
            self._acknowledged, self._progress_ns = frame.upto, self._network.now_ns
            self._next = max(self._next, self._acknowledged)
        if frame.again:
            self._next = max(self._acknowledged, frame.upto)
        if self._acknowledged == self._end and self.ended_ns is None:
            self.ended_ns = self._network.now_ns
            if self.ended is not None:
                self.ended()
        self._pump()

    def receive(self, frame: TransportSegment, _sender: int, to: int) -> None:
        """`arrived`, as what a link delivers to; damaged frames fail their checksum."""
        if frame.intact:
            self.arrived(frame, bool(to & CE))

    def _take(self, frame: TransportSegment, marked: bool) -> None:
        now_ns = self._network.now_ns
        self.arrived_bytes += frame.wire_bytes
        if marked:
            self.counters["marks"] += 1
            if self._cnp_ns is None or now_ns - self._cnp_ns >= SA_CNP_INTERVAL_NS:
                self._cnp_ns = now_ns
                self._back(DcqcnPacket(self.flow, CNP, CNP_BYTES))
        if frame.number == self.received:
            self.received += 1
            self._complained = False
            if frame.cwr or self.received % ACK_EVERY == 0:
                self._acknowledge(False)
        elif frame.number > self.received and not self._complained:
            self._complained = True
            self._acknowledge(True)
        elif frame.number < self.received and frame.cwr:  # the acknowledgement was lost
            self._acknowledge(False)

    def _acknowledge(self, again: bool) -> None:
        packet = DcqcnPacket(self.flow, ACKNOWLEDGEMENT, ACK_BYTES)
        packet.upto, packet.again = self.received, again
        self._back(packet)

    def _back(self, frame: TransportSegment) -> None:
        self._backward.send(frame, frame.wire_bytes, self._network.now_ns, self._nodes[1], self._destinations[1])

    def _ring(self) -> None:
        now_ns = self._network.now_ns
        if self._next > self._acknowledged and now_ns - self._progress_ns >= TIMEOUT_NS:
            self._next, self._progress_ns = self._acknowledged, now_ns
        self._pump()

    def _put(self, packet: DcqcnPacket) -> None:
        """A data packet enters the host's queue."""
        self._queue.send(packet, packet.wire_bytes, self._nodes[0], self._destinations[0] | ECT)

    def _pump(self) -> None:
        now_ns, rate, queue = self._network.now_ns, self._rate, self._queue
        while queue.has_room and self._next != self._end and not self.stopped:
            if rate is not None and not rate.allowance(self._wire_bytes, now_ns):
                self._alarm.set(max(now_ns + 1, rate.next_ns(self._wire_bytes, now_ns)))
                break
            if self._next == self._acknowledged:
                self._progress_ns = now_ns
            frame = DcqcnPacket(self.flow, self._next, self.payload_bytes)
            self.counters["retransmitted" if self._next < self._most else "sent"] += 1
            self._next += 1
            self._most = max(self._most, self._next)
            frame.cwr = self._next == self._end
            self._put(frame)
            if rate is not None:
                rate.on_sent(frame.wire_bytes, now_ns)
        else:
            if self._next != self._end and not self.stopped:
                self._alarm.set(queue.room_ns)
        if self._next > self._acknowledged and not self.stopped:
            self._alarm.set(self._progress_ns + TIMEOUT_NS)
