"""The retransmission timeout of RFC 6298, in whole nanoseconds: the one arithmetic of the window and of the ring."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RetransmissionTimeout:
    """rto_ns: the timeout now, without back-off unless `back_off` was called; between min_ns and max_ns after a sample.

    srtt_ns, rttvar_ns: smoothed round trip and its variation; 0 before the first sample.
    """

    rto_ns: int
    min_ns: int
    max_ns: int
    srtt_ns: int = 0
    rttvar_ns: int = 0

    def sample(self, rtt_ns: int) -> None:
        """Take a measured round trip, 0 or more, into account; ends a back-off."""
        if self.srtt_ns == 0:
            self.srtt_ns, self.rttvar_ns = rtt_ns, rtt_ns // 2
        else:
            self.rttvar_ns = (3 * self.rttvar_ns + abs(self.srtt_ns - rtt_ns)) // 4
            self.srtt_ns = (7 * self.srtt_ns + rtt_ns) // 8
        self.rto_ns = min(max(self.srtt_ns + 4 * self.rttvar_ns, self.min_ns), self.max_ns)

    def back_off(self) -> None:
        """Double the timeout, until the next sample."""
        self.rto_ns = min(2 * self.rto_ns, self.max_ns)
