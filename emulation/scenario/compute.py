"""How long each rank computes in each iteration of virtual time: given, by rank, or drawn; with jitter, where it is
given or a profile's; stragglers take longer.

Draws depend on the scenario's seed, the rank and the iteration alone: all methods get the same ones, and differ by the
network only (common random numbers).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import ComputeDistribution


def _lognormal(source: random.Random, mean: float, deviation: float) -> float:
    variance = math.log1p((deviation / mean) ** 2)  # of the logarithm
    return source.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))


DRAWS: dict[str, Callable[[random.Random, float, float], float]] = {
    "normal": random.Random.gauss,
    "lognormal": _lognormal,
    "shifted_exponential": lambda source, mean, deviation: mean - deviation + source.expovariate(1) * deviation,
}


class ComputeTimes:
    """Forward and backward pass together, of every rank in every iteration.

    measured_ns: for a scenario without a compute time, of all ranks or one each. planned_ns: what schedules are made
    for: the slowest rank's, the mean of what is drawn; without stragglers.
    """

    def __init__(self, scenario: Scenario, measured_ns: int | tuple[int, ...] = 0) -> None:
        compute_ns = scenario.workload.compute_ns
        self._compute_ns = measured_ns if compute_ns is None else compute_ns
        self._seed = scenario.seed
        self._workers = scenario.topology.workers
        self._iterations = scenario.workload.iterations
        self._stragglers = scenario.faults.stragglers
        self._jitter = scenario.workload.compute_jitter
        if isinstance(self._compute_ns, ComputeDistribution):
            self.planned_ns = self._compute_ns.mean_ns
        else:
            self.planned_ns = max(self._compute_ns) if isinstance(self._compute_ns, tuple) else self._compute_ns

    def ns(self, rank: int, iteration: int) -> int:
        """A rank's time for an iteration."""
        compute_ns = self._compute_ns
        if isinstance(compute_ns, ComputeDistribution):
            source = random.Random(f"{self._seed} compute {rank} {iteration}")
            base_ns = max(0, round(DRAWS[compute_ns.distribution](source, compute_ns.mean_ns, compute_ns.deviation_ns)))
        else:
            base_ns = compute_ns[rank] if isinstance(compute_ns, tuple) else compute_ns
        if (jitter := self._jitter) is not None:
            source = random.Random(f"{self._seed} jitter {rank} {iteration}")
            base_ns = max(0, round(base_ns * DRAWS[jitter.distribution](source, 1.0, jitter.deviation)))
        for straggler in self._stragglers:
            if straggler.slows(rank, iteration, self._seed, self._workers):
                base_ns = round(base_ns * straggler.factor)
        return base_ns

    def most_ns(self) -> int:
        """No rank takes longer for an iteration; of what is drawn, but for values ten deviations off."""
        drawn = self._compute_ns.deviation_ns if isinstance(self._compute_ns, ComputeDistribution) else 0
        factors = (max(1.0, straggler.factor) for straggler in self._stragglers)
        jittered = 1.0 if self._jitter is None else 1 + 10 * self._jitter.deviation
        return round((self.planned_ns + 10 * drawn) * jittered * math.prod(factors))

    def means_ns(self) -> int | list[int]:
        """The mean over all iterations, by rank; one number if nothing makes them differ."""
        if isinstance(self._compute_ns, int) and not self._stragglers and not self._jitter:
            return self._compute_ns
        iterations = range(self._iterations)
        return [round(sum(self.ns(rank, k) for k in iterations) / len(iterations)) for rank in range(self._workers)]
