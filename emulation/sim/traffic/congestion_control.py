"""The contract of a congestion control, and Reno, the simplest one. Windows are counted in segments."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

INITIAL_WINDOW = 10.0  # RFC 6928
LEAST_WINDOW = 2.0
NO_LIMIT = float("inf")


@dataclass(slots=True)
class Acked:
    """The facts of an acknowledgement. Counts are segments; in_flight: sent, and neither received nor thought lost.

    rtt_ns: of a segment sent once, or None. delayed: the receiver may have waited with it. rate_delivered in
    rate_interval_ns: a sample of the rate (draft-cheng-iccrg-delivery-rate-estimation), 0: none; prior_delivered: those
    delivered when the segment that gave it was sent; app_limited: the sender had had nothing more to send then.
    """

    now_ns: int
    acked: int
    lost: int
    delivered: int
    in_flight_before: int
    in_flight: int
    rtt_ns: int | None = None
    delayed: bool = False
    rate_delivered: int = 0
    rate_interval_ns: int = 0
    prior_delivered: int = 0
    app_limited: bool = False
    limited: bool = True
    recovering: bool = False
    timed_out: bool = False


class CongestionControl(ABC):
    """Decides how many segments may be in flight: `window`.

    conserves: it paces and sets its window itself, in recovery too; of all others the sender reduces the window over
    a round trip (RFC 6937) from the moment of `on_congestion`. obeys_marks: an echoed mark is congestion (RFC 3168).
    """

    name = ""
    conserves = False
    obeys_marks = True

    def __init__(self) -> None:
        self.window = INITIAL_WINDOW
        self.threshold = NO_LIMIT  # of slow start

    def pacing_ns(self) -> int | None:
        """Time between two segments; None: not paced."""
        return None

    def burst(self) -> int:
        """Segments that leave together, where it paces."""
        return 1

    def on_start(self, rtt_ns: int) -> None:  # noqa: B027, most need nothing
        """The round trip of the handshake."""

    @abstractmethod
    def on_ack(self, acked: Acked) -> None:
        """An acknowledgement came. An acknowledgement of new data reaches a control that doesn't conserve, outside of a
        reduction."""

    @abstractmethod
    def on_congestion(self, now_ns: int, in_flight: int) -> None:
        """A loss, or a mark it obeys, at most once a window: set `threshold`, to which the window is reduced."""

    def on_timeout(self, now_ns: int, in_flight: int) -> None:
        """All that was in flight is taken as lost."""
        self.on_congestion(now_ns, in_flight)
        self.window = 1.0


def slow_start(control: CongestionControl, acked: int) -> int:
    """Grow by what was acknowledged up to the threshold; what is left of it."""
    grown = min(control.window + acked, control.threshold)
    left = acked - int(grown - control.window)
    control.window = grown
    return max(0, left)


class Reno(CongestionControl):
    """RFC 5681: one segment more a round trip, half at a loss."""

    name = "reno"

    def on_ack(self, acked: Acked) -> None:
        """See `CongestionControl`."""
        count = acked.acked
        if self.window < self.threshold:
            if 2 * acked.in_flight_before >= self.window:
                count = slow_start(self, count)
            else:
                return
        if count and acked.limited:
            self.window += count / self.window

    def on_congestion(self, now_ns: int, in_flight: int) -> None:
        """See `CongestionControl`."""
        self.threshold = max(self.window / 2, LEAST_WINDOW)
