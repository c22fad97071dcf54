"""How long a sender waits, and how much may be in flight: the retransmission timeout of RFC 6298 in whole nanoseconds,
which the window and the ring share, and the congestion window (rule G6)."""

from dataclasses import dataclass

from switchagg.job import DCTCP, FRIENDLY, RENO

SHIFT = 16
UNITY = 1 << SHIFT
GAIN_SHIFT = 4
"""RFC 8257: g = 1/16."""

LEAST_ALPHA = {DCTCP: 0, RENO: UNITY, FRIENDLY: 2 * UNITY // 5}
"""Reno's is a cut to a half. Friendly's is one to 0.8, as RFC 8511 has it: a link whose threshold is a quarter of its
bandwidth-delay product stays full."""


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


class CongestionWindow:
    """`chunks` of a stream with so many slots may be in flight: all of them until a mark, never fewer than one (G6).

    DCTCP (RFC 8257) in whole numbers: the same results give the same on every rank, in Python and in C. alpha: estimate
    of the marked part, from least_alpha to UNITY. Where that isn't 0 the window grows as much more slowly than Reno's
    as it is cut less.
    """

    __slots__ = ("_hold", "_least_alpha", "_marks", "_most", "_results", "_round", "_window", "alpha", "chunks")

    def __init__(self, slots: int, least_alpha: int = 0) -> None:
        self._least_alpha = least_alpha
        self.chunks = slots
        self.alpha = UNITY
        self._most = self._window = slots << SHIFT
        self._round = 0  # results until its end; 0: no mark yet
        self._results = self._marks = 0  # of this round
        self._hold = 0  # results that answer what was sent before the last cut, and say nothing new

    def unmarked(self, results: int) -> None:
        """So many results came without a mark."""
        while results and self._round:
            some = min(results, self._round - self._results)
            results -= some
            self._hold = max(0, self._hold - some)
            self._count(some, 0)

    def marked(self) -> None:
        """A result came with a mark."""
        if self._hold:
            self._hold -= 1
        if not self._hold:
            self._hold = self._window >> SHIFT
            self._window = max(UNITY, self._window - (self._window * self.alpha >> SHIFT + 1))
            self._round = self._round or self._window >> SHIFT
        self._count(1, 1)
        self.chunks = self._window >> SHIFT

    def _count(self, results: int, marks: int) -> None:
        self._results += results
        self._marks += marks
        if self._results < self._round:
            return
        part = (self._marks << SHIFT) // self._results
        self.alpha += (part >> GAIN_SHIFT) - (self.alpha >> GAIN_SHIFT)
        growth = UNITY
        if self._least_alpha:
            self.alpha = max(self.alpha, self._least_alpha)
            growth = (3 * self.alpha << SHIFT) // (4 * UNITY - self.alpha)
        if not self._marks:
            self._window = min(self._window + growth, self._most)
        self._round = self.chunks = self._window >> SHIFT
        self._results = self._marks = 0
