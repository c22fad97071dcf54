"""BBR version 1 as Linux ships it (net/ipv4/tcp_bbr.c), without its detection of policers. It ignores loss and marks.

Bandwidths are whole numbers of segments per 1,000 s, gains of 1/256, so a run is the same everywhere.
"""

import random
from collections import deque

from emulation.sim.traffic.congestion_control import INITIAL_WINDOW, Acked, CongestionControl

BANDWIDTH_UNIT = 10**12  # segments / ns -> segments / 1,000 s
GAIN_ONE = 256
HIGH_GAIN = GAIN_ONE * 2885 // 1000 + 1  # 2/ln 2
DRAIN_GAIN = GAIN_ONE * 1000 // 2885
CYCLE = (320, 192, 256, 256, 256, 256, 256, 256)  # 5/4, 3/4, then 1
WINDOW_GAIN = 2 * GAIN_ONE
BANDWIDTH_ROUNDS = 10
EXTRA_ROUNDS = 5
LEAST_WINDOW = 4
RTT_WINDOW_NS = 10_000_000_000
PROBE_RTT_NS = 200_000_000
BURST_NS = 1_000_000  # what leaves together is a millisecond's worth, at most 64 kB
BURST_SEGMENTS_MOST = 44
EXTRA_MOST_NS = 100_000_000
STARTUP, DRAIN, PROBE_BANDWIDTH, PROBE_RTT = "startup", "drain", "probe bandwidth", "probe rtt"


class Bbr(CongestionControl):
    """seed: of the phase in which its cycle begins."""

    name = "bbr"
    conserves = True
    obeys_marks = False

    def __init__(self, seed: str = "") -> None:
        super().__init__()
        self.mode = STARTUP
        self._random = random.Random(seed)
        self._gain = self._window_gain = HIGH_GAIN
        self._pacing = 0  # segments / 1,000 s
        self._samples: deque[tuple[int, int]] = deque()  # (round, bandwidth), bandwidths decreasing
        self._rounds = self._round_end = 0
        self._round_start = False
        self._full = self._full_rounds = 0
        self._filled = False
        self._cycle, self._cycle_ns = 0, 0
        self._least_ns: int | None = None
        self._least_from_ns = 0
        self._probe_end_ns: int | None = None
        self._probe_round_done = False
        self._saved = 0.0
        self._recovering = self._conserving = False
        self._extra = [0, 0]
        self._extra_at = self._extra_rounds = self._epoch_acked = 0
        self._epoch_ns: int | None = None

    def bandwidth(self) -> int:
        """The greatest sample of the last ten round trips."""
        return self._samples[0][1] if self._samples else 0

    def pacing_ns(self) -> int | None:
        """See `CongestionControl`."""
        return BANDWIDTH_UNIT // self._pacing if self._pacing else None

    def burst(self) -> int:
        """See `CongestionControl`."""
        return min(max(self._pacing * BURST_NS // BANDWIDTH_UNIT, 2), BURST_SEGMENTS_MOST)

    def on_start(self, rtt_ns: int) -> None:
        """See `CongestionControl`."""
        self._pacing = int(INITIAL_WINDOW) * BANDWIDTH_UNIT // max(rtt_ns, 1) * HIGH_GAIN // GAIN_ONE

    def on_ack(self, acked: Acked) -> None:
        """bbr_main."""
        self._update_bandwidth(acked)
        self._update_aggregation(acked)
        self._update_cycle(acked)
        self._check_full(acked)
        self._check_drain(acked)
        self._update_least_rtt(acked)
        self._set_gains()
        bandwidth = self.bandwidth()
        pacing = bandwidth * self._gain // GAIN_ONE * 99 // 100
        if pacing and (self._filled or pacing > self._pacing):
            self._pacing = pacing
        self._set_window(acked, bandwidth)

    def on_congestion(self, now_ns: int, in_flight: int) -> None:
        """Loss is none; what the window is gets restored after recovery."""
        if not self._recovering and self.mode != PROBE_RTT:
            self._saved = self.window
        else:
            self._saved = max(self._saved, self.window)

    def on_timeout(self, now_ns: int, in_flight: int) -> None:
        """See `CongestionControl`."""
        self.on_congestion(now_ns, in_flight)
        self._recovering, self._conserving, self._full = True, False, 0
        self.window = float(in_flight + 1)

    def _update_bandwidth(self, acked: Acked) -> None:
        self._round_start = False
        if acked.rate_interval_ns <= 0:
            return
        if acked.prior_delivered >= self._round_end:
            self._round_end = acked.delivered
            self._rounds += 1
            self._round_start, self._conserving = True, False
        bandwidth = acked.rate_delivered * BANDWIDTH_UNIT // acked.rate_interval_ns
        if acked.app_limited and bandwidth < self.bandwidth():
            return
        samples = self._samples
        while samples and samples[-1][1] <= bandwidth:
            samples.pop()
        samples.append((self._rounds, bandwidth))
        while samples[0][0] < self._rounds - BANDWIDTH_ROUNDS:
            samples.popleft()

    def _update_aggregation(self, acked: Acked) -> None:
        """How much more than the bandwidth acknowledgements bring at once, at most, in five to ten round trips."""
        if acked.acked <= 0 or acked.rate_interval_ns <= 0:
            return
        if self._round_start:
            self._extra_rounds += 1
            if self._extra_rounds >= EXTRA_ROUNDS:
                self._extra_rounds, self._extra_at = 0, 1 - self._extra_at
                self._extra[self._extra_at] = 0
        now_ns = acked.now_ns
        since_ns = now_ns - (now_ns if self._epoch_ns is None else self._epoch_ns)
        expected = self.bandwidth() * since_ns // BANDWIDTH_UNIT
        if self._epoch_acked <= expected:
            self._epoch_acked, self._epoch_ns, expected = 0, now_ns, 0
        self._epoch_acked += acked.acked
        extra = min(self._epoch_acked - expected, int(self.window))
        self._extra[self._extra_at] = max(self._extra[self._extra_at], extra)

    def _update_cycle(self, acked: Acked) -> None:
        if self.mode != PROBE_BANDWIDTH:
            return
        full = self._least_ns is not None and acked.now_ns - self._cycle_ns > self._least_ns
        gain = CYCLE[self._cycle]
        if gain > GAIN_ONE:
            over = full and (acked.lost > 0 or acked.in_flight_before >= self._inflight(gain))
        else:
            over = full or (gain < GAIN_ONE and acked.in_flight_before <= self._inflight(GAIN_ONE))
        if over:
            self._cycle = (self._cycle + 1) % len(CYCLE)
            self._cycle_ns = acked.now_ns

    def _check_full(self, acked: Acked) -> None:
        """Startup has found the bandwidth when three round trips brought less than a quarter more."""
        if self._filled or not self._round_start or acked.app_limited:
            return
        if 4 * self.bandwidth() >= 5 * self._full:
            self._full, self._full_rounds = self.bandwidth(), 0
            return
        self._full_rounds += 1
        self._filled = self._full_rounds >= 3

    def _check_drain(self, acked: Acked) -> None:
        if self.mode == STARTUP and self._filled:
            self.mode = DRAIN
        if self.mode == DRAIN and acked.in_flight <= self._inflight(GAIN_ONE):
            self._probe_bandwidth(acked.now_ns)

    def _probe_bandwidth(self, now_ns: int) -> None:
        self.mode = PROBE_BANDWIDTH
        self._cycle = (len(CYCLE) - 1 - self._random.randrange(len(CYCLE) - 1) + 1) % len(CYCLE)
        self._cycle_ns = now_ns

    def _update_least_rtt(self, acked: Acked) -> None:
        now_ns, rtt_ns = acked.now_ns, acked.rtt_ns
        expired = now_ns > self._least_from_ns + RTT_WINDOW_NS
        if rtt_ns is not None and (
            self._least_ns is None or rtt_ns < self._least_ns or (expired and not acked.delayed)
        ):
            self._least_ns, self._least_from_ns = rtt_ns, now_ns
        if expired and self.mode != PROBE_RTT and self._least_ns is not None:
            self.mode, self._probe_end_ns = PROBE_RTT, None
            self._saved = max(self._saved, self.window) if self._recovering else self.window
        if self.mode != PROBE_RTT:
            return
        if self._probe_end_ns is None:
            if acked.in_flight <= LEAST_WINDOW:
                self._probe_end_ns, self._probe_round_done = now_ns + PROBE_RTT_NS, False
                self._round_end = acked.delivered
            return
        self._probe_round_done |= self._round_start
        if self._probe_round_done and now_ns > self._probe_end_ns:
            self._least_from_ns = now_ns
            self.window = max(self.window, self._saved)
            if self._filled:
                self._probe_bandwidth(now_ns)
            else:
                self.mode = STARTUP

    def _set_gains(self) -> None:
        if self.mode == STARTUP:
            self._gain = self._window_gain = HIGH_GAIN
        elif self.mode == DRAIN:
            self._gain, self._window_gain = DRAIN_GAIN, HIGH_GAIN
        elif self.mode == PROBE_BANDWIDTH:
            self._gain, self._window_gain = CYCLE[self._cycle], WINDOW_GAIN
        else:
            self._gain = self._window_gain = GAIN_ONE

    def _inflight(self, gain: int) -> int:
        """Segments of `gain` bandwidth-delay products, with those that wait in bursts at both ends."""
        if self._least_ns is None:
            return int(INITIAL_WINDOW)
        segments = -(-self.bandwidth() * self._least_ns * gain // (BANDWIDTH_UNIT * GAIN_ONE))
        segments += 3 * self.burst()
        segments += segments % 2
        return segments + (2 if self.mode == PROBE_BANDWIDTH and self._cycle == 0 else 0)

    def _set_window(self, acked: Acked, bandwidth: int) -> None:
        if acked.acked and not self._recovers(acked):
            target = self._inflight(self._window_gain)
            if self._filled:
                target += min(max(self._extra), bandwidth * EXTRA_MOST_NS // BANDWIDTH_UNIT)
                self.window = min(self.window + acked.acked, float(target))
            elif self.window < target or acked.delivered < INITIAL_WINDOW:
                self.window += acked.acked
            self.window = max(self.window, float(LEAST_WINDOW))
        if self.mode == PROBE_RTT:
            self.window = min(self.window, float(LEAST_WINDOW))

    def _recovers(self, acked: Acked) -> bool:
        """The first round trip of a recovery sends what is acknowledged and no more."""
        if acked.lost:
            self.window = max(self.window - acked.lost, 1.0)
        if acked.recovering and not self._recovering and not acked.timed_out:
            self._conserving = True
            self._round_end = acked.delivered
            self.window = float(acked.in_flight + acked.acked)
        elif self._recovering and not acked.recovering:
            self.window = max(self.window, self._saved)
            self._conserving = False
        self._recovering = acked.recovering
        if self._conserving:
            self.window = max(self.window, float(acked.in_flight + acked.acked))
        return self._conserving
