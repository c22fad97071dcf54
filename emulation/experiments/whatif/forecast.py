"""How long a run's iterations take if its collectives cost so much: all ranks, each with its own compute times. The
module is pure.

A rank computes until it needs a collective that isn't done; a collective begins once all its ranks have begun it; the
network carries collectives one after the other, more urgent ones first within a credit
(`transport.schedule.schedule_model`). So it overlaps communication with the backward pass, and with the next forward
pass where a schedule allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulation.experiments.whatif.recorded_run import RecordedCollective, RecordedRun
from transport.schedule.schedule_model import Network, NetworkQueue, TransferOverhead

SETTLING, MEASURED = 3, 8
"""Iterations: those that don't count, and those that do."""

Cost = Callable[[RecordedCollective], tuple[float, TransferOverhead]]
"""The cost of a collective: ns that it occupies the network, and the other times until its sums are there."""


@dataclass(frozen=True)
class Forecast:
    """The mean iteration of each seed, in ns."""

    iterations_ns: tuple[float, ...]

    @property
    def mean_ns(self) -> float:
        return sum(self.iterations_ns) / len(self.iterations_ns)

    @property
    def spread(self) -> float:
        """Standard deviation over the mean, between seeds."""
        return float(np.std(self.iterations_ns, ddof=1)) / self.mean_ns if len(self.iterations_ns) > 1 else 0.0


def factors(run: RecordedRun, seed: int) -> NDArray[np.float64]:
    """Factors of ranks' compute times, (iterations, ranks): log-normal with the run's jitter, times its skew. They are
    the same for every method, so that methods differ by communication alone."""
    shape = (SETTLING + MEASURED, run.workers)
    variance = float(np.log1p(run.jitter**2))
    drawn = np.random.default_rng(seed).normal(-variance / 2, variance**0.5, shape)
    scale: NDArray[np.float64] = np.exp(drawn) * np.array(run.skew or 1.0)
    return scale


@dataclass(frozen=True)
class ForecastLimits:
    """credit_ns: how much may lie in the network, where nothing overtakes; None: no bound. calls_at_once: as of
    [hosts]. check: called again and again while a forecast goes on; it may raise."""

    credit_ns: float | None = None
    calls_at_once: int = 0
    check: Callable[[], None] = lambda: None


def forecast(run: RecordedRun, cost: Cost, seeds: Sequence[int], limits: ForecastLimits = ForecastLimits()) -> Forecast:
    """The forecast for these seeds."""
    return Forecast(tuple(iteration_ns(run, cost, factors(run, seed), limits) for seed in seeds))


def iteration_ns(
    run: RecordedRun,
    cost: Cost,
    scale: NDArray[np.float64],
    limits: ForecastLimits = ForecastLimits(),
    settling: int = SETTLING,
) -> float:
    """The mean of the iterations after the first ones."""
    costs = [cost(call) for call in run.collectives]
    places = _places(run)
    credit = None if limits.credit_ns is None else max(1, round(limits.credit_ns))
    carrier = NetworkQueue(Network(beta_ns_per_byte=1.0, calls_at_once=limits.calls_at_once), credit)
    clocks = np.zeros(run.workers)
    count, ends = len(costs), [0.0]
    for iteration, factor in enumerate(scale):
        at = 0
        limits.check()
        for place, step, key in places:
            if place > at:
                clocks += factor * (place - at)
                at = place
            if step == ISSUE:
                occupied_ns = max(1, round(costs[key][0]))
                number = iteration * count + key
                carrier.submit(number, float(clocks.max()), run.collectives[key].priority, occupied_ns, costs[key][1])
                continue
            number = (iteration - (step == NEED_OF_LAST)) * count + key
            if number >= 0:
                carrier.carry(number)
                np.maximum(clocks, carrier.completed[number], out=clocks)
        clocks += factor * (run.compute_ns - at)
        ends.append(float(clocks.max()))
    return (ends[-1] - ends[settling]) / (len(scale) - settling)


NEED_OF_LAST, ISSUE, NEED = range(3)
"""The steps of a collective, of the last iteration or of this one; at the same place they have this order."""


def _places(run: RecordedRun) -> list[tuple[int, int, int]]:
    """All steps of an iteration, in the order in which every rank comes to them: place, step, number of exchange. Ranks
    wait for a chained one before those behind it begin."""
    steps: list[tuple[int, int, int, int]] = []
    behind = 0  # chained exchanges so far at one place
    for key, call in enumerate(run.collectives):
        issue = min(call.issue_ns, run.compute_ns)
        behind = behind if key and issue == min(run.collectives[key - 1].issue_ns, run.compute_ns) else 0
        steps.append((issue, ISSUE + 2 * behind, key, ISSUE))
        chained = call.chained and call.need_ns <= call.issue_ns
        late = call.need_ns >= run.compute_ns and not chained
        place = call.need_ns - run.compute_ns if late else max(call.need_ns, issue)
        steps.append((place, NEED_OF_LAST if late else NEED + 2 * behind, key, NEED_OF_LAST if late else NEED))
        behind += chained
    return [(place, step, key) for place, _, key, step in sorted(steps)]
