"""The sending half of a TCP connection, sans-IO: what may leave when, what was lost, what its control is told.

A segment is lost when three that were sent later have arrived (RFC 6675), or one that was sent much later (RFC 8985):
in the order of transmissions, so a retransmission's loss is found like any other. A tail is probed before the timer of
RFC 6298 expires, windows are reduced in proportion to what arrives (RFC 6937), and an echoed mark acts as a loss
without one (RFC 3168): as Linux.
"""

from collections import deque
from dataclasses import dataclass

from emulation.sim.traffic.congestion_control import Acked, CongestionControl
from emulation.sim.traffic.segments import Ranges, TransportSegment

DUPLICATES = 3
REORDERING = 4  # much later: by a round trip's fourth part
RTO_FIRST_NS = 1_000_000_000
RTO_VARIANCE_LEAST_NS = 200_000_000  # Linux's floor: of the variance's part, so of all of it
RTO_MOST_NS = 120_000_000_000
PROBE_MARGIN_NS = 8_000_000  # two ticks at 250 Hz
PAYLOAD_BYTES = 1448  # of MTU 1500
OPEN, REDUCING, RECOVERY, LOSS = range(4)


@dataclass(slots=True)
class _Transmission:
    """A segment's last transmission, and what was delivered then."""

    order: int
    sent_ns: int
    delivered: int
    delivered_ns: int
    first_ns: int
    app_limited: bool
    repeated: bool
    lost: bool = False


class TcpSender:
    """`next_segment` until it gives none, after every input; `write` gives it segments to send, None: without end.

    ecn: its segments, retransmissions apart, are to be sent ECT(0). window_segments: the receiver's.
    """

    def __init__(
        self, flow: int, control: CongestionControl, *, ecn: bool = False, window_segments: int = 4096
    ) -> None:
        self.flow = flow
        self.control = control
        self.ecn = ecn
        self.counters = {"sent": 0, "retransmitted": 0, "timeouts": 0, "reductions": 0, "marks": 0}
        self.delivered = 0
        self.unacknowledged = 0
        self.payload_bytes = PAYLOAD_BYTES
        self._end: int | None = 0
        self._next = 0
        self._peer_window = window_segments
        self._transmissions: dict[int, _Transmission] = {}
        self._sacked = Ranges()
        self._orders: deque[tuple[int, int]] = deque()
        self._order = 0
        self._order_received = -1
        self._received_sent_ns = 0  # when that was sent
        self._lost: deque[int] = deque()
        self._pipe = 0
        self._state = OPEN
        self._recover = 0  # the state ends when all below is acknowledged
        self._reduced = 0.0
        self._reduce_from = self._reduce_delivered = self._reduce_out = 0
        self._cwr = False
        self._rtt_ns = self._variance_ns = 0
        self._backoff = 0
        self._timer_from_ns = 0
        self._probe: tuple[int, bool] | None = None  # acknowledged up to there, and was it a retransmission
        self._delivered_ns = self._first_ns = 0
        self._app_limited = 0
        self._pace_ns = 0
        self._burst_left = 0

    # ---- inputs

    def start(self, rtt_ns: int) -> None:
        """The round trip that the handshake took."""
        self._sample_rtt(rtt_ns)
        self.control.on_start(rtt_ns)

    def write(self, segments: int | None) -> None:
        """The application writes so many more segments."""
        self._end = None if segments is None or self._end is None else self._end + segments

    @property
    def done(self) -> bool:
        """All that was written is acknowledged."""
        return self.unacknowledged == self._end

    def receive(self, ack: TransportSegment, now_ns: int) -> None:
        """An acknowledgement."""
        before, delivered, una = self._pipe, self.delivered, self.unacknowledged
        best, rtt_ns = self._take(ack, now_ns)
        acked = Acked(now_ns, self.delivered - delivered, 0, self.delivered, before, 0, rtt_ns)
        if rtt_ns is not None:
            self._sample_rtt(rtt_ns)
        acked.lost = self._find_losses()
        if self.unacknowledged > una or acked.acked:
            self._backoff = 0
            self._timer_from_ns = now_ns
        self._probe_answered(ack, now_ns)
        self._change_state(ack, acked.lost, now_ns)
        acked.in_flight = self._pipe
        acked.delayed = acked.acked == 1 and before > 1
        acked.limited = before >= int(self.control.window)
        acked.recovering, acked.timed_out = self._state >= RECOVERY, self._state == LOSS
        if best is not None:
            self._sample_rate(best, acked)
        if self.control.conserves:
            self.control.on_ack(acked)
        elif self._state in (REDUCING, RECOVERY):
            self._reduce(acked.acked, acked.lost)
        elif acked.acked:
            self.control.on_ack(acked)

    def next_segment(self, now_ns: int) -> TransportSegment | None:
        """The segment to be sent now, or None: then `next_deadline_ns` or an acknowledgement is next."""
        lost = self._lost
        while lost and not ((entry := self._transmissions.get(lost[0])) and entry.lost):
            lost.popleft()
        new = self._next < self.unacknowledged + self._peer_window and (self._end is None or self._next < self._end)
        if not lost and not new:
            if self._next == self._end and self._pipe < self._window():
                self._app_limited = self.delivered + self._pipe or 1
            return None
        if self._pipe >= int(self._window()) or not self._paced(now_ns):
            return None
        if lost:
            return self._transmit(lost.popleft(), True, now_ns)
        self._next += 1
        return self._transmit(self._next - 1, False, now_ns)

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When `handle_timer` is due, or pacing lets more leave; None: when nothing is on its way."""
        at = [self._pace_ns] if self._pace_ns > now_ns and self._wants_pace else []
        if self._transmissions:
            at.append(self._timer_from_ns + self._patience_ns())
        return min(at, default=None)

    def handle_timer(self, now_ns: int) -> TransportSegment | None:
        """A probe of the tail to be sent at once, if that is due; after a timeout `next_segment` has more."""
        if not self._transmissions or now_ns < self._timer_from_ns + self._patience_ns():
            return None
        self._timer_from_ns = now_ns
        if self._may_probe:
            new = self._end is None or self._next < self._end
            number = self._next if new else self._next - 1
            self._next += new
            self._probe = self._next, not new
            return self._transmit(number, not new, now_ns)
        self._time_out(now_ns)
        return None

    # ---- outputs

    def _window(self) -> float:
        if self._state in (REDUCING, RECOVERY) and not self.control.conserves:
            return self._reduced
        return self.control.window

    def _paced(self, now_ns: int) -> bool:
        """Whether pacing lets a segment leave; a burst leaves together, and then as long nothing."""
        gap_ns = self.control.pacing_ns()
        if gap_ns is None:
            return True
        if self._burst_left <= 0:
            if now_ns < self._pace_ns:
                return False
            self._burst_left = self.control.burst()
            self._pace_ns = now_ns
        self._burst_left -= 1
        self._pace_ns += gap_ns
        return True

    @property
    def _wants_pace(self) -> bool:
        if self.control.pacing_ns() is None or self._pipe >= int(self._window()):
            return False
        return bool(self._lost) or self._end is None or self._next < self._end

    def _transmit(self, number: int, again: bool, now_ns: int) -> TransportSegment:
        old = self._transmissions.get(number)
        if not self._transmissions:
            self._first_ns = self._delivered_ns = self._timer_from_ns = now_ns
        if old is None or old.lost:
            self._pipe += 1
        self._transmissions[number] = _Transmission(
            self._order,
            now_ns,
            self.delivered,
            self._delivered_ns,
            self._first_ns,
            self._app_limited > 0,
            again or old is not None,
        )
        self._orders.append((self._order, number))
        self._order += 1
        self._reduce_out += 1
        self.counters["retransmitted" if again else "sent"] += 1
        segment = TransportSegment(self.flow, number, self.payload_bytes)
        segment.again = again
        if not again and self._cwr:
            segment.cwr, self._cwr = True, False
        return segment

    # ---- what acknowledgements tell

    def _take(self, ack: TransportSegment, now_ns: int) -> tuple[_Transmission | None, int | None]:
        """Remove what arrived; the newest transmission of it, and the round trip of the newest sent once."""
        new: list[tuple[int, int]] = []
        if ack.upto > self.unacknowledged:
            new.append((self.unacknowledged, ack.upto))
            self.unacknowledged = ack.upto
            self._sacked.cut(ack.upto)
        for first, end in ack.blocks:
            if end > self.unacknowledged:
                new += self._sacked.add(max(first, self.unacknowledged), end)
        best: _Transmission | None = None
        rtt_ns = None
        for first, end in new:
            for number in range(first, end):
                transmission = self._transmissions.pop(number, None)
                if transmission is None:
                    continue  # it had been reported beyond a gap
                self.delivered += 1
                if not transmission.lost:
                    self._pipe -= 1
                if best is None or transmission.order > best.order:
                    best = transmission
                    rtt_ns = None if transmission.repeated else now_ns - transmission.sent_ns
        if best is not None:
            if best.order > self._order_received:
                self._order_received, self._received_sent_ns = best.order, best.sent_ns
            self._delivered_ns = now_ns
            self._first_ns = best.sent_ns
            if self._app_limited and self.delivered > self._app_limited:
                self._app_limited = 0
        return best, rtt_ns

    def _sample_rtt(self, rtt_ns: int) -> None:
        if not self._rtt_ns:
            self._rtt_ns, self._variance_ns = rtt_ns, rtt_ns // 2
            return
        self._variance_ns += (abs(rtt_ns - self._rtt_ns) - self._variance_ns) // 4
        self._rtt_ns += (rtt_ns - self._rtt_ns) // 8

    def _sample_rate(self, best: _Transmission, acked: Acked) -> None:
        acked.prior_delivered = best.delivered
        acked.app_limited = best.app_limited
        interval_ns = max(best.sent_ns - best.first_ns, acked.now_ns - best.delivered_ns)
        if interval_ns > 0:
            acked.rate_delivered = self.delivered - best.delivered
            acked.rate_interval_ns = interval_ns

    def _find_losses(self) -> int:
        losses = 0
        orders, limit = self._orders, self._order_received - DUPLICATES
        before_ns = self._received_sent_ns - self._rtt_ns // REORDERING
        while orders:
            order, number = orders[0]
            transmission = self._transmissions.get(number)
            if transmission is not None and transmission.order == order and not transmission.lost:
                if order > limit and (order > self._order_received or transmission.sent_ns >= before_ns):
                    break
                self._lose(number, transmission)
                losses += 1
            orders.popleft()
        return losses

    def _lose(self, number: int, transmission: _Transmission) -> None:
        transmission.lost = True
        self._pipe -= 1
        self._lost.append(number)

    # ---- reactions

    def _change_state(self, ack: TransportSegment, lost: int, now_ns: int) -> None:
        if self._state != OPEN and self.unacknowledged >= self._recover:
            if self._state != LOSS and not self.control.conserves:
                self.control.window = self.control.threshold
            self._state = OPEN
        if ack.ece:
            self.counters["marks"] += 1
        if lost and self._state == REDUCING:
            self._state = RECOVERY  # within the same window: once is enough
        elif lost and self._state == OPEN:
            self._begin_reduction(RECOVERY, now_ns)
        elif ack.ece and self._state == OPEN and self.control.obeys_marks:
            self._begin_reduction(REDUCING, now_ns)
            self._cwr = True

    def _begin_reduction(self, state: int, now_ns: int) -> None:
        self.counters["reductions"] += 1
        self.control.on_congestion(now_ns, self._pipe)
        self._state, self._recover = state, self._next
        self._reduce_from = max(1, len(self._transmissions))
        self._reduce_delivered = self._reduce_out = 0
        self._reduced = self.control.window

    def _reduce(self, acked: int, lost: int) -> None:
        """Proportional rate reduction."""
        self._reduce_delivered += acked
        threshold = int(self.control.threshold)
        if self._pipe > threshold:
            allowed = -(-self._reduce_delivered * threshold // self._reduce_from) - self._reduce_out
        else:
            allowed = max(self._reduce_delivered - self._reduce_out, acked)
            allowed = min(threshold - self._pipe, allowed + (not lost))
        self._reduced = self._pipe + max(allowed, 0 if self._reduce_out else 1)

    def _probe_answered(self, ack: TransportSegment, now_ns: int) -> None:
        if self._probe is None or ack.upto < self._probe[0]:
            return
        if self._probe[1] and not ack.again and self._state == OPEN and not self.control.conserves:
            self._begin_reduction(REDUCING, now_ns)  # it mended a loss that nothing else would have told
        self._probe = None

    @property
    def _may_probe(self) -> bool:
        return self._probe is None and self._state == OPEN and not self._sacked and self._rtt_ns > 0

    def _patience_ns(self) -> int:
        rto_ns = RTO_FIRST_NS
        if self._rtt_ns:
            rto_ns = self._rtt_ns + max(4 * self._variance_ns, RTO_VARIANCE_LEAST_NS)
        rto_ns = min(rto_ns << self._backoff, RTO_MOST_NS)
        if not self._may_probe:
            return rto_ns
        extra_ns = RTO_VARIANCE_LEAST_NS if len(self._transmissions) == 1 else PROBE_MARGIN_NS
        return min(2 * self._rtt_ns + extra_ns, rto_ns)

    def _time_out(self, now_ns: int) -> None:
        self.counters["timeouts"] += 1
        if self._state != LOSS or self.unacknowledged >= self._recover:
            self.control.on_timeout(now_ns, 0)
        self._backoff = min(self._backoff + 1, 10)
        self._state, self._recover, self._probe = LOSS, self._next, None
        self._lost.clear()
        self._orders.clear()
        for number in sorted(self._transmissions):
            transmission = self._transmissions[number]
            if transmission.lost:
                self._lost.append(number)
            else:
                self._lose(number, transmission)
