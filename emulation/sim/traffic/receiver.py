"""The receiving half of a TCP connection, sans-IO: acknowledgements, delayed and selective ones, and echoed marks."""

from emulation.sim.traffic.segments import Block, Ranges, TransportSegment, acknowledgement

EVERY = 2  # segments for an acknowledgement (RFC 5681)
DELAYED_NS = 40_000_000  # Linux's least
QUICK_SEGMENTS = 16  # a connection's first ones are acknowledged at once
MERGE_NS = 1_000_000  # what TCP hands to the link at once: in Mininet it arrives, and is acknowledged, as one


class TcpReceiver:
    """Acknowledges every second segment (RFC 5681), and at once what is out of order or fills a gap.

    merges: segments that arrive within MERGE_NS are one, with an acknowledgement for up to so many of them.
    """

    def __init__(self, flow: int, merges: int = EVERY) -> None:
        self.flow = flow
        self.received = 0  # segments, each once
        self.arrived = 0  # those that came again included
        self._merges = merges
        self.upto = 0  # all segments below have come
        self._beyond = Ranges()
        self._echo = False  # RFC 3168: until the sender says that it has reduced its window
        self._waiting = 0
        self._deadline_ns: int | None = None

    def receive(self, segment: TransportSegment, marked: bool, now_ns: int) -> TransportSegment | None:
        """A data segment; marked: it had CE. The acknowledgement to be sent now, if any."""
        number = segment.number
        self.arrived += 1
        if segment.cwr:
            self._echo = False
        if marked:
            self._echo = True
        again = number < self.upto or self._beyond.holding(number) is not None
        in_order = number == self.upto and not self._beyond
        if not again:
            self.received += 1
            if number == self.upto:
                self.upto = self._beyond.cut(number + 1)
            else:
                self._beyond.add(number, number + 1)
        self._waiting += 1
        if in_order and self._waiting < self._merges and self.received > QUICK_SEGMENTS:
            if self._deadline_ns is None:
                self._deadline_ns = now_ns + DELAYED_NS
            elif self._waiting == EVERY:
                self._deadline_ns = min(self._deadline_ns, now_ns + MERGE_NS)
            return None
        return self._acknowledge(number, again)

    def next_deadline_ns(self) -> int | None:
        """When `handle_timer` is due."""
        return self._deadline_ns

    def handle_timer(self, now_ns: int) -> TransportSegment | None:
        """The delayed acknowledgement, if its time has come."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        return self._acknowledge(-1, False)

    def _acknowledge(self, number: int, again: bool) -> TransportSegment:
        self._waiting, self._deadline_ns = 0, None
        blocks: tuple[Block, ...] = ()
        if self._beyond:
            first = self._beyond.holding(number)
            earlier_blocks = [block for block in reversed(self._beyond.ranges[-3:]) if block != first]
            blocks = tuple(([first] if first else []) + earlier_blocks)[:3]
        return acknowledgement(self.flow, self.upto, blocks, self._echo, again)
