"""A tail of a link's delay: what a queue of other traffic ahead of ours adds, as long as it lasts.

Cross traffic comes in bursts, so neighbouring packets are late together: the extra delay is drawn once for each burst,
not for each packet, and lasts as long as the burst. It is lognormal, so its median and the ratio of its 99th percentile
to that say all of it: sigma = ln(p99 / p50) / 2.326. (OptiReduce measures public clouds by this ratio: 1.4 to 3.2.)
A queue is a queue: frames keep their order, and those that piled up behind a long delay leave at the link's rate.
"""

import math
import random
from dataclasses import dataclass

NORMAL_P99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


@dataclass(frozen=True)
class Tail:
    """ratio: 99th percentile over median of the extra delay, 1 or more. p50_ns: its median. burst_ns: mean time until
    it is drawn anew, from an exponential distribution."""

    ratio: float
    p50_ns: int
    burst_ns: int

    @property
    def sigma(self) -> float:
        """Of the delay's logarithm."""
        return math.log(self.ratio) / NORMAL_P99


class TailDelays:
    """The extra delays of one direction of a link, in ascending order of time; seed: the same gives the same ones."""

    def __init__(self, tail: Tail, seed: str) -> None:
        self._tail = tail
        self._random = random.Random(seed)
        self._until_ns = 0  # of this burst
        self._extra_ns = 0
        self._last_ns = 0  # arrival of the last frame in the queue

    def arrival_ns(self, usual_ns: int, frame_ns: int) -> int:
        """When a frame arrives that would at usual_ns: in order, and no closer to the one before than its frame_ns."""
        while usual_ns >= self._until_ns:
            self._until_ns += 1 + round(self._random.expovariate(1 / self._tail.burst_ns))
            self._extra_ns = round(self._tail.p50_ns * math.exp(self._tail.sigma * self._random.gauss(0, 1)))
        self._last_ns = max(usual_ns + self._extra_ns, self._last_ns + frame_ns)
        return self._last_ns
