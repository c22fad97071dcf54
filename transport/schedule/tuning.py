"""Tuning of ByteScheduler's partition and credit while training runs, by Bayesian optimisation (as its authors do).

The optimiser is the package bayesian-optimization, an optional extra, imported when tuning is asked for. It searches
logarithms of both sizes for the fastest iteration, by expected improvement. Pure but for that: rank 0 owns a `Tuner`,
gives it the times of iterations, and sends the other ranks what to use next.
"""

import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from transport.schedule.policy import TuningPoint

PARTITION_BYTES = (1 << 16, 1 << 25)
CREDIT_BYTES = (1 << 16, 1 << 26)
"""Where is searched: 64 KiB to 32 MiB, to 64 MiB. ByteScheduler's own ranges end at 32 and 64 million parameters."""

IMPROVEMENT = 0.1
"""xi of expected improvement, in units of the first point's speed: ByteScheduler's."""

REMEDY = "pip install 'switchagg[tune]'"


class Optimiser(Protocol):
    """The interface of bayes_opt.BayesianOptimization that tuning uses."""

    def suggest(self) -> dict[str, Any]: ...

    def register(self, params: dict[str, float], target: float) -> None: ...


def missing() -> str:
    """Why tuning isn't possible here, with what to do; empty if it is."""
    try:
        import bayes_opt  # noqa: F401
    except ImportError as error:
        return f"tuning needs the package bayesian-optimization ({error}): {REMEDY}, or leave out tune="
    return ""


def bayesian_optimiser(bounds: dict[str, tuple[float, float]], seed: int) -> Optimiser:
    """The real one."""
    from bayes_opt import BayesianOptimization, acquisition

    optimiser: Optimiser = BayesianOptimization(
        f=None,
        pbounds=bounds,
        acquisition_function=acquisition.ExpectedImprovement(xi=IMPROVEMENT),
        random_state=seed,
        verbose=0,
        allow_duplicate_points=True,
    )
    return optimiser


class Tuner:
    """Proposes points, one after the other; the first is the one given, a third of the others are random.

    steps: how many points in all. make: the optimiser's maker; each point is given to it with its speed, relative to
    the first point's.
    """

    def __init__(
        self,
        first: TuningPoint,
        steps: int,
        seed: int = 0,
        make: Callable[[dict[str, tuple[float, float]], int], Optimiser] = bayesian_optimiser,
    ) -> None:
        assert steps >= 1
        self.steps = steps
        self.tried: list[tuple[TuningPoint, float]] = []
        """Points with the time of an iteration, ns."""
        self._chance = random.Random(seed)
        self._bounds = {
            "partition": (math.log2(PARTITION_BYTES[0]), math.log2(PARTITION_BYTES[1])),
            "credit": (math.log2(CREDIT_BYTES[0]), math.log2(CREDIT_BYTES[1])),
        }
        self._optimiser = make(self._bounds, seed)
        self._random = max(1, (steps - 1) // 3)
        self.current = first

    @property
    def done(self) -> bool:
        """Whether all points were tried."""
        return len(self.tried) >= self.steps

    @property
    def best(self) -> TuningPoint:
        """The fastest point so far, the earlier of equals."""
        return min(self.tried, key=lambda trial: trial[1])[0]

    def observe(self, iteration_ns: float) -> TuningPoint:
        """The current point's time; the point to use from now on: the next to try, or in the end the best."""
        assert not self.done
        self.tried.append((self.current, max(iteration_ns, 1.0)))
        at = {"partition": self.current.partition_bytes, "credit": self.current.credit_bytes}
        self._optimiser.register(
            {name: self._within(name, math.log2(size)) for name, size in at.items()},
            self.tried[0][1] / self.tried[-1][1],
        )
        self.current = self.best if self.done else self._propose()
        return self.current

    def _propose(self) -> TuningPoint:
        if len(self.tried) <= self._random:
            proposal = {name: self._chance.uniform(low, high) for name, (low, high) in self._bounds.items()}
        else:
            proposal = {name: float(value) for name, value in self._optimiser.suggest().items()}
        # Whole KiB: finer steps mean nothing, and a partition stays a multiple of every element's size.
        sizes = {name: max(1, round(2 ** self._within(name, value) / 1024)) * 1024 for name, value in proposal.items()}
        return TuningPoint(sizes["partition"], sizes["credit"])

    def _within(self, name: str, value: float) -> float:
        low, high = self._bounds[name]
        return min(max(value, low), high)
