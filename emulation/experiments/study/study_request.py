"""The whole study: it trains the cells that aren't trained yet, and puts all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.experiments.cells import CELLS, CellStore, Record, chosen, failures, run_cells, version
from emulation.experiments.progress_text import Log, Passing
from emulation.experiments.study import costs, study_plan, summary
from emulation.experiments.study.study_plan import StudyCell
from emulation.report import figure_kit
from emulation.results.results import write_json
from emulation.results.whole_file import write_text
from emulation.scenario.errors import RunFailed

STUDY = "study.json"


@dataclass(frozen=True)
class StudyRequest:
    """A user's request. (): the defaults. only: text in the titles of cells. quick: few and short runs."""

    codecs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    seeds: int = 3
    only: str = ""
    quick: bool = False

    def settings(self) -> list[study_plan.TrainingSetting]:
        """Raises ScenarioError."""
        base = study_plan.QUICK if self.quick else study_plan.SETTINGS
        return study_plan.settings(base, self.workloads, self.workers, self.codecs)


def study(request: StudyRequest, out: Path, jobs: int, ray: bool, log: Log) -> Iterator[str]:
    """Lines to show in the end. Raises ScenarioError, RunFailed, OSError."""
    settings = request.settings()
    store = CellStore(out / CELLS)
    for codec in dict.fromkeys(codec for setting in settings for codec in setting.codecs):
        if warning := study_plan.warning(codec):
            log(warning)
    for setting in settings:
        for codec in setting.codecs:
            for workers in setting.workers:
                if fault := study_plan.can(codec, workers):
                    log(f"{setting.workload}: left out: {fault}")
    failed: dict[str, str] = {}

    def train(cells: Sequence[StudyCell]) -> None:
        failed.update(run_cells(cells, trained, store, log, jobs=jobs, ray=ray, outcome=_outcome))

    tuning = list(study_plan.tuning_cells(settings))
    train(tuning)
    best = study_plan.best_rates(settings, store.find)
    seeds = 1 if request.quick else request.seeds
    cells = chosen(list(study_plan.reported_cells(settings, seeds, best)), request.only)
    train(cells)
    problems = "; ".join(failures(failed, len(tuning) + len(cells)))
    if len(failed) < len(tuning) + len(cells):
        yield from write_reports(out, store, log, quick=request.quick)
    if failed:
        raise RunFailed(problems)


def trained(cell: StudyCell) -> Record:
    """A cell's record. Raises RunFailed, WorkloadError."""
    from emulation.experiments.study.codec_training import train  # imports PyTorch

    try:
        return train(cell)
    except ValueError as error:
        raise RunFailed(str(error)) from error


def _outcome(record: Record) -> str:
    return "diverged" if record["diverged"] else f"{100 * record['accuracy']:.1f} %"


def write_reports(out: Path, store: CellStore, log: Log, *, quick: bool = False) -> list[str]:
    """Writes study.json, figures and tables of all runs that have finished; lines to show."""
    from emulation.experiments.bench.document import machine
    from emulation.experiments.study import study_figures, study_page

    every = store.all_of(version("study"))
    if not every:
        raise RunFailed(f"{store.folder}: no run has finished")
    words = sorted({run["cell"]["codec"] for run in every} - {study_plan.FLOAT32})
    codecs = [word for word in words if not study_plan.is_method(word) and not study_plan.can(word, 4)]
    log(Passing("codecs are timed, alone on a core"))
    rates = {word: costs.rate(word, 4, 1 if quick else costs.TURNS) for word in codecs}
    measured = {word: costs.measured_bytes(word, 4) for word in codecs}
    compute_ns = {
        name: costs.compute_ns(name, batch)
        for name, batch in sorted({(run["cell"]["workload"], run["cell"]["batch_per_worker"]) for run in every})
    }
    document = summary.build(every, rates, compute_ns, {k: v for k, v in measured.items() if v}, machine())
    write_json(out / STUDY, document)
    figures = study_figures.draw_all(document)
    paths = [out / STUDY, *figure_kit.write(figures, out), out / "tables.md", out / "study.html"]
    write_text(paths[-2], "\n".join(study_page.tables(document)) + "\n")
    write_text(paths[-1], study_page.page(document, figures))
    return [*study_page.lines(document), *map(str, paths)]
