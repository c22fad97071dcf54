"""Which steps all ranks have done, and whether each rank's parameters are those that they must be. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from emulation.experiments.chaos.rank_reports import StepDone

Members = tuple[tuple[int, int], ...]
"""Numbers of ranks, each with how many steps so many have done, one after the other."""


class LapHistory(NamedTuple):
    """A lap, or what was done of it. start: of the job. first: the lap's first step. sha256: of the parameters after
    each step."""

    start: int
    first: int
    members: Members
    sha256: list[str]


class StepLedger:
    """Steps of a job that may start again from earlier ones. lap: after so many steps training begins anew.

    undisturbed: sha256 of the parameters after each step of a lap, of a run that nothing has met. It is written by
    `learn`; where it is None, ranks are compared with each other alone. repeats: whether later laps must have the same
    bits, too. elastic: the number of ranks may change; then laps are compared once all is over (`laps`).
    """

    def __init__(self, workers: int, lap: int, repeats: bool = True, elastic: bool = False) -> None:
        self.workers, self.lap, self.repeats, self.elastic = workers, lap, repeats, elastic
        self.undisturbed: dict[int, str] | None = {}
        self.steps = self.sums = self.parameters = self.steps_discarded = 0
        self.generation = 0
        """Of the last step that all have done."""
        self._start = 0
        self._laps: list[LapHistory] = []
        self._failed: set[tuple[int, int]] = set()
        self._open: dict[tuple[int, int], dict[int, StepDone]] = {}
        self._history: dict[tuple[int, int], tuple[int, str]] = {}
        self._done: list[tuple[int, int, int]] = []

    def learn(self, step: int, sha256: str) -> None:
        assert self.undisturbed is not None
        self.undisturbed.setdefault(step % self.lap, sha256)

    def restart(self, start: int) -> None:
        """The job starts again: steps that only some ranks have done are done anew by all."""
        self._keep_laps()
        self._start, self.generation = start, 0
        self._open.clear()
        self._done.clear()

    def note(self, rank: int, report: StepDone) -> str:
        """What is wrong with the parameters of this rank after this step, or ""."""
        key = report.generation, report.step
        ranks = self._open.setdefault(key, {})
        other = next(iter(ranks.items()), None)
        ranks[rank] = report
        self.sums += report.sums
        self.parameters += 1
        self._history[key] = report.workers, report.sha256
        if len(ranks) == report.workers:
            self.steps += 1
            self.generation = report.generation
            begun_ns, done_ns = min(done.begun_ns for done in ranks.values()), max(d.done_ns for d in ranks.values())
            self._done.append((begun_ns, done_ns, report.workers))
            del self._open[key]
        comparable = not self.elastic and (self.repeats or report.step < self.lap)
        right = self.undisturbed.get(report.step % self.lap) if self.undisturbed and comparable else None
        if right is not None and report.sha256 != right:
            return f"step {report.step}: parameters of rank {rank} aren't those of the undisturbed run"
        if other is not None and report.sha256 != other[1].sha256:
            return f"step {report.step}: parameters of rank {rank} aren't those of rank {other[0]}"
        return ""

    def note_failed(self, step: int, generation: int) -> None:
        """A step that a rank has begun, and that is discarded, unless a rank that is left has done it."""
        self._failed.add((generation, step))

    def first_done_ns(self, since_ns: int, workers: int = 0) -> int | None:
        """When the first step was done that every rank has begun since then. workers: by that many or more."""
        return next((end for start, end, number in self._done if start >= since_ns and number >= workers), None)

    def laps(self) -> list[LapHistory]:
        """All laps of all starts, as far as they went: steps that were done again count as they were the last time."""
        self._keep_laps()
        return self._laps

    def _keep_laps(self) -> None:
        first: dict[int, int] = {}
        for generation, step in self._history:
            first[generation] = min(step, first.get(generation, step))
        keys: list[tuple[int, int]] = []
        for generation in sorted(first):
            del keys[first[generation] :]  # what was done of these ended with the ranks that did it
            while (generation, len(keys)) in self._history:
                keys.append((generation, len(keys)))
        self.steps_discarded += len(self._failed.difference(keys))
        for begin in range(0, len(keys), self.lap):
            lap = [self._history[key] for key in keys[begin : begin + self.lap]]
            members = tuple((number, len(list(same))) for number, same in groupby(number for number, _ in lap))
            self._laps.append(LapHistory(self._start, begin, members, [sha256 for _, sha256 in lap]))
        self._history.clear()
        self._failed.clear()
