"""Which steps all ranks have done, and whether each rank's parameters are those that they must be. Pure."""

from __future__ import annotations

from emulation.experiments.chaos.rank_reports import StepDone


class StepLedger:
    """Steps of a job that may start again from earlier ones. lap: after so many steps training begins anew.

    undisturbed: sha256 of the parameters after each step of a lap, of a run that nothing has met. It is written by
    `learn`; where it is None (`forget`), ranks are compared with each other alone. repeats: whether later laps must
    have the same bits, too.
    """

    def __init__(self, workers: int, lap: int, repeats: bool = True) -> None:
        self.workers, self.lap, self.repeats = workers, lap, repeats
        self.undisturbed: dict[int, str] | None = {}
        self.steps, self.sums = 0, 0
        self._open: dict[int, dict[int, StepDone]] = {}
        self._done: list[tuple[int, int]] = []

    def learn(self, step: int, sha256: str) -> None:
        assert self.undisturbed is not None
        self.undisturbed.setdefault(step % self.lap, sha256)

    def forget(self) -> None:
        """From now on a step may have other bits than that of the undisturbed run."""
        self.undisturbed = None

    def restart(self) -> None:
        """The job starts again: steps that only some ranks have done are done anew by all."""
        self._open.clear()
        self._done.clear()

    def note(self, rank: int, report: StepDone) -> str:
        """What is wrong with the parameters of this rank after this step, or ""."""
        ranks = self._open.setdefault(report.step, {})
        other = next(iter(ranks.items()), None)
        ranks[rank] = report
        self.sums += report.sums
        if len(ranks) == self.workers:
            self.steps += 1
            self._done.append((min(done.begun_ns for done in ranks.values()), max(d.done_ns for d in ranks.values())))
            del self._open[report.step]
        comparable = self.undisturbed is not None and (self.repeats or report.step < self.lap)
        right = self.undisturbed.get(report.step % self.lap) if self.undisturbed and comparable else None
        if right is not None and report.sha256 != right:
            return f"step {report.step}: parameters of rank {rank} aren't those of the undisturbed run"
        if other is not None and report.sha256 != other[1].sha256:
            return f"step {report.step}: parameters of rank {rank} aren't those of rank {other[0]}"
        return ""

    def first_done_ns(self, since_ns: int) -> int | None:
        """When the first step was done that every rank has begun since then."""
        return next((done_ns for begun_ns, done_ns in self._done if begun_ns >= since_ns), None)
