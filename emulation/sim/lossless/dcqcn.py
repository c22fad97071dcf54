"""A RoCE queue pair in virtual time: sends at the rate that DCQCN allows, and goes back to what was lost."""

from collections import deque

from emulation.sim.network.hosts import CREDIT_BYTES_MAX, CREDIT_NS, Alarm
from emulation.sim.network.link import CE, ECT, Link
from emulation.sim.traffic.segments import Segment, acknowledgement
from transport.rdma.dcqcn import CNP_INTERVAL_NS, DcqcnConfig, ReactionPoint, default_config

PAYLOAD_BYTES = 1024  # the usual MTU of RoCE
CNP = -3  # the number of a congestion notification
ACK_EVERY = 16
TIMEOUT_NS = 67_108_864  # 4.096 us · 2^14, the usual one of NICs


class QueuePair:
    """From one host to another, without end. `arrived` takes what reaches either of them.

    links: those that leave the sender's and the receiver's host. nodes, ways: see `traffic.connection.Connection`; ways
    have the class that is lossless. config: of DCQCN, None: the paper's. `library.Missing` without the compiled core.
    """

    def __init__(
        self,
        flow: int,
        links: tuple[Link, Link],
        nodes: tuple[int, int],
        ways: tuple[int, int],
        config: DcqcnConfig | None = None,
    ) -> None:
        self.flow = flow
        self.received = 0  # packets, in order
        self.arrived_bytes = 0  # on the wire
        self.counters = {"sent": 0, "retransmitted": 0, "marks": 0, "cnps": 0}
        self._forward, self._backward = links
        self._network = self._forward.network
        self._nodes, self._ways = nodes, ways
        line_bps = self._forward.config.rate_bps
        self._rate = ReactionPoint(config or default_config(line_bps), self._network.now_ns)
        self._wire_bytes = Segment(flow, 0, PAYLOAD_BYTES).wire_bytes
        self._credit = max(2, min(CREDIT_BYTES_MAX, line_bps * CREDIT_NS // 8_000_000_000) // self._wire_bytes)
        self._queued: deque[int] = deque()
        self._next = self._most = self._acknowledged = 0
        self._upto = 0
        self._complained = False
        self._cnp_ns: int | None = None
        self._progress_ns = self._network.now_ns
        self._alarm = Alarm(self._network, self._ring)

    def open(self) -> None:
        """Begin."""
        self._progress_ns = self._network.now_ns
        self._ring()

    def arrived(self, frame: Segment, marked: bool) -> None:
        """A frame of this queue pair, whole, at the host it was for."""
        if frame.number >= 0:
            self._take(frame, marked)
        elif frame.number == CNP:
            self.counters["cnps"] += 1
            self._rate.cnp(self._network.now_ns)
        else:
            if frame.upto > self._acknowledged:
                self._acknowledged, self._progress_ns = frame.upto, self._network.now_ns
            if frame.again:
                self._next = max(self._acknowledged, frame.upto)
            self._pump()

    def receive(self, frame: Segment, _sender: int, to: int) -> None:
        """`arrived`, as what a link delivers to; damaged frames fail their checksum."""
        if frame.intact:
            self.arrived(frame, bool(to & CE))

    def _take(self, frame: Segment, marked: bool) -> None:
        now_ns = self._network.now_ns
        self.arrived_bytes += frame.wire_bytes
        if marked:
            self.counters["marks"] += 1
            if self._cnp_ns is None or now_ns - self._cnp_ns >= CNP_INTERVAL_NS:
                self._cnp_ns = now_ns
                self._back(Segment(self.flow, CNP, 0))
        if frame.number == self._upto:
            self._upto += 1
            self.received += 1
            self._complained = False
            if self._upto % ACK_EVERY == 0:
                self._back(acknowledgement(self.flow, self._upto, (), False, False))
        elif frame.number > self._upto and not self._complained:
            self._complained = True
            self._back(acknowledgement(self.flow, self._upto, (), False, True))

    def _back(self, frame: Segment) -> None:
        self._backward.send(frame, frame.wire_bytes, self._network.now_ns, self._nodes[1], self._ways[1])

    def _ring(self) -> None:
        now_ns = self._network.now_ns
        if self._next > self._acknowledged + ACK_EVERY and now_ns - self._progress_ns >= TIMEOUT_NS:
            self._next, self._progress_ns = self._acknowledged, now_ns
        self._pump()

    def _pump(self) -> None:
        now_ns, queued, link = self._network.now_ns, self._queued, self._forward
        while queued and queued[0] <= now_ns:
            queued.popleft()
        while len(queued) < self._credit and self._rate.allowance(self._wire_bytes, now_ns):
            frame = Segment(self.flow, self._next, PAYLOAD_BYTES)
            self.counters["retransmitted" if self._next < self._most else "sent"] += 1
            self._next += 1
            self._most = max(self._most, self._next)
            link.send(frame, frame.wire_bytes, now_ns, self._nodes[0], self._ways[0] | ECT)
            self._rate.sent(frame.wire_bytes, now_ns)
            queued.append(max(now_ns + 1, link.time_at_backlog_ns(0)))
        if len(queued) >= self._credit:
            self._alarm.set(queued[len(queued) // 2])
        else:
            self._alarm.set(max(now_ns + 1, self._rate.next_ns(self._wire_bytes, now_ns)))
