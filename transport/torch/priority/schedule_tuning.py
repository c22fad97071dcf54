"""Tuning while training runs: rank 0 measures iterations and proposes; all ranks change plans at the same iteration."""

import csv
import time
from collections.abc import Callable
from pathlib import Path

from transport.schedule.policy import Policy, Tunable, TuningPoint
from transport.schedule.tuning import Tuner

SETTLING_ITERATIONS = 2
"""After each change, not measured."""

MEASURED_ITERATIONS = 10
"""Per point; their mean counts, from one `step` to the next. ByteScheduler takes about 100."""

COLUMNS = ("step", "iteration", "partition_bytes", "credit_bytes", "iteration_ns")


class ScheduleTuning:
    """A rank's part of tuning. broadcast: a collective that returns rank 0's bytes. log: rank 0's CSV file."""

    def __init__(
        self,
        tunable: Tunable,
        rank: int,
        broadcast: Callable[[bytes], bytes],
        log: Path | None,
        *,
        make_tuner: Callable[[TuningPoint, int], Tuner] = Tuner,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tunable, self._broadcast, self._log, self._clock = tunable, broadcast, log, clock
        self._tuner = make_tuner(tunable.first, tunable.steps) if rank == 0 else None
        self._left = tunable.steps
        self._since = 0
        self._began_ns = 0
        if self._tuner is not None and log is not None:
            with log.open("w", newline="") as file:
                csv.writer(file).writerow(COLUMNS)

    @property
    def due(self) -> bool:
        """Whether the iteration that ends now ends a point. The same on all ranks: they count alike."""
        return self._left > 0 and self._since + 1 == SETTLING_ITERATIONS + MEASURED_ITERATIONS

    def iteration_ends(self) -> None:
        """An iteration that isn't `due` is over."""
        self._since += 1
        if self._since == SETTLING_ITERATIONS:
            self._began_ns = self._clock()

    def next_policy(self, iteration: int) -> Policy:
        """Called on every rank when `due`, with nothing in flight: the policy from now on. It is a collective."""
        proposal = b""
        if self._tuner is not None:
            tried = self._tuner.current
            iteration_ns = (self._clock() - self._began_ns) / MEASURED_ITERATIONS
            point = self._tuner.observe(iteration_ns)
            self._write(len(self._tuner.tried), iteration, tried, iteration_ns)
            proposal = f"{point.partition_bytes} {point.credit_bytes}".encode()
        point = TuningPoint(*map(int, self._broadcast(proposal).split()))
        self._since = 0
        self._left -= 1
        return self._tunable.at(point)

    def _write(self, step: int, iteration: int, tried: TuningPoint, iteration_ns: float) -> None:
        if self._log is not None:
            with self._log.open("a", newline="") as file:
                row = (step, iteration, tried.partition_bytes, tried.credit_bytes, round(iteration_ns))
                csv.writer(file).writerow(row)
