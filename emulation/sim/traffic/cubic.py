"""CUBIC (RFC 9438) with its Reno-friendly region, fast convergence, and HyStart's delay test as Linux has it."""

from emulation.sim.traffic.congestion_control import LEAST_WINDOW, Acked, CongestionControl, slow_start

C = 0.4  # segments / s³
BETA = 0.7
ALPHA = 3 * (1 - BETA) / (1 + BETA)
HYSTART_LEAST_WINDOW = 16
HYSTART_SAMPLES = 8
HYSTART_LEAST_NS, HYSTART_MOST_NS = 4_000_000, 16_000_000


def cube_root(value: int) -> int:
    """Largest integer whose cube is at most value ≥ 0."""
    low, high = 0, 1 << -(-value.bit_length() // 3)
    while low < high:
        middle = (low + high + 1) >> 1
        low, high = (middle, high) if middle**3 <= value else (low, middle - 1)
    return low


def inflection_ns(below: float) -> int:
    """K: after how long a window that is so many segments below W_max is there again. The result is an integer, so it
    is the same everywhere."""
    return cube_root(int(below / C * 2**20) * 10**27 >> 20)


def cubic_window(time_ns: int, k_ns: int, most: float) -> float:
    """W_cubic(t) of RFC 9438, equation 1."""
    seconds = (time_ns - k_ns) / 1e9
    return C * seconds * seconds * seconds + most


class Cubic(CongestionControl):
    """hystart: leave slow start when a round trip's least delay has grown by an eighth of the least, 4 … 16 ms."""

    name = "cubic"

    def __init__(self, hystart: bool = True) -> None:
        super().__init__()
        self._hystart = hystart
        self._most = 0.0  # W_max
        self._before = 0.0  # cwnd_prior: the window at the last congestion
        self._epoch_ns: int | None = None
        self._k_ns = 0
        self._reno = 0.0  # W_est
        self._least_ns: int | None = None
        self._round_end = 0  # delivered, at which this round trip ends
        self._round: list[int] = []

    def on_ack(self, acked: Acked) -> None:
        """See `CongestionControl`."""
        if acked.rtt_ns is not None:
            self._least_ns = min(self._least_ns or acked.rtt_ns, acked.rtt_ns)
        count = acked.acked
        if self.window < self.threshold:
            if 2 * acked.in_flight_before < self.window:
                return
            if self._hystart and acked.rtt_ns is not None:
                self._test_delay(acked, acked.rtt_ns)
            count = slow_start(self, count)
        if not count or not acked.limited:
            return
        if self._epoch_ns is None:
            self._begin(acked.now_ns)
        self._grow(acked.now_ns - self._epoch_ns, count)  # type: ignore[operator]

    def _begin(self, now_ns: int) -> None:
        self._epoch_ns, self._reno = now_ns, self.window
        if self.window < self._most:
            self._k_ns = inflection_ns(self._most - self.window)
        else:
            self._k_ns, self._most = 0, self.window

    def _grow(self, time_ns: int, count: int) -> None:
        window = self.window
        self._reno += (ALPHA if self._reno < self._before else 1.0) * count / window
        target = cubic_window(time_ns + (self._least_ns or 0), self._k_ns, self._most)
        target = min(max(target, window), 1.5 * window)
        self.window += (target - window) / window * count
        if cubic_window(time_ns, self._k_ns, self._most) < self._reno:
            self.window = max(self.window, self._reno)

    def _test_delay(self, acked: Acked, rtt_ns: int) -> None:
        """HyStart: a round trip's first samples tell whether a queue grows."""
        assert self._least_ns is not None
        if acked.prior_delivered >= self._round_end:
            self._round_end, self._round = acked.delivered, []
        if len(self._round) >= HYSTART_SAMPLES or self.window < HYSTART_LEAST_WINDOW:
            return
        self._round.append(rtt_ns)
        margin_ns = min(max(self._least_ns >> 3, HYSTART_LEAST_NS), HYSTART_MOST_NS)
        if len(self._round) == HYSTART_SAMPLES and min(self._round) > self._least_ns + margin_ns:
            self.threshold = self.window

    def on_congestion(self, now_ns: int, in_flight: int) -> None:
        """See `CongestionControl`."""
        self._epoch_ns = None
        self._before = self.window
        self._most = self.window * (1 + BETA) / 2 if self.window < self._most else self.window
        self.threshold = max(self.window * BETA, LEAST_WINDOW)
