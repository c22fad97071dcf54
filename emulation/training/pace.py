"""How long a rank of a real run computes, where the scenario has ranks compute for different times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from emulation.scenario import Scenario
from emulation.sim.compute import ComputeTimes


class Pace:
    """Sleeps between the forward and the backward pass, until both have lasted as long as in virtual time.

    That is `ComputeTimes`, with the same draws: `[workload] compute_ns`, or else what the rank itself took for its last
    iteration, as often as a straggler's factor says. What it takes is the CPU time of the calling thread: that others
    want the CPU, too, makes no rank a straggler. A rank that takes longer than it shall doesn't sleep. sleep: seconds.
    """

    def __init__(self, scenario: Scenario, rank: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._scenario, self._rank, self._sleep = scenario, rank, sleep
        self._begun_ns = 0
        self._own_ns: list[int] = []

    def begin(self) -> None:
        """The forward pass begins."""
        self._begun_ns = time.thread_time_ns()

    def rest(self, iteration: int) -> None:
        """The forward pass is over."""
        if self._scenario.unequal_compute:
            own_ns = self._own_ns[-1] if self._own_ns else 0
            planned_ns = ComputeTimes(self._scenario, own_ns).ns(self._rank, iteration)
            self._sleep(max(0, planned_ns - own_ns) / 1e9)

    def computed(self) -> None:
        """The backward pass is over."""
        self._own_ns.append(time.thread_time_ns() - self._begun_ns)

    def notes(self) -> list[str]:
        """What it did, in a sentence."""
        if not self._scenario.unequal_compute:
            return []
        own_ms = statistics.median(self._own_ns) / 1e6
        return [
            "Between forward and backward pass ranks sleep until they have computed for as long as the scenario says, "
            f"which counts as computing; rank {self._rank} itself needs {own_ms:.1f} ms of CPU time (median)."
        ]
