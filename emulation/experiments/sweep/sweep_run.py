"""A whole sweep: its cells, those that aren't there yet run, and everything written from all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emulation.experiments import compare as comparing
from emulation.experiments.cells import CELLS, Cell, CellStore, Record, failures, point_text, run_cells, version
from emulation.experiments.compare import RUNNER_MODULES, choose_plane
from emulation.experiments.progress_text import Log, Passing
from emulation.experiments.sweep import sweep_page, sweep_table
from emulation.results.results import assembled, differing, entries, plain, unequal_ranks
from emulation.results.speedups import worst
from emulation.results.timeline import Span
from emulation.scenario.errors import RunFailed, ScenarioError
from emulation.scenario.profiles.workload_keys import tenant_graph
from emulation.scenario.scenario import Scenario, canonical
from emulation.scenario.scenario_tables import Methods
from emulation.scenario.sweep_axes import Point
from emulation.testbed.host import host_facts
from switchagg.dataplane.self_test import Choice
from transport.group.method_name import MethodName
from transport.group.method_name import parse as parse_method

NAME_MOST = 150
"""Characters of a run's folder."""


@dataclass(frozen=True)
class SweepCell(Cell):
    """One method of one scenario on one backend. folder: for what the backend keeps beside the result."""

    scenario: Scenario
    backend: str
    method: MethodName
    title: str
    version: str
    folder: Path

    @property
    def code(self) -> str:  # type: ignore[override]
        return self.backend

    @property
    def decides(self) -> dict[str, Any]:
        """The scenario with every default filled in, seed included, and the backend."""
        chosen = Methods(**{name: (self.method,) if name == self.backend else () for name in ("mininet", "sim")})
        values = canonical(dataclasses.replace(self.scenario, methods=chosen))
        del values["name"], values["title"]
        inputs = {"scenario": plain(values), "backend": self.backend}
        folder, beside = Path(self.scenario.folder), [job for job in self.scenario.jobs if job.profile]
        replayed: list[Any] = [tenant_graph(job, folder) for job in beside]
        if self.scenario.workload.profile:
            replayed.append(self.scenario.replayed)
        if replayed:  # what is in the files, beside how they are called
            inputs["replayed"] = hashlib.sha256(repr(replayed).encode()).hexdigest()
        return inputs


def run_cell(cell: SweepCell) -> dict[str, Any]:
    """A cell's result: `entry`, as in a results.json of it alone, and `timeline`."""
    scenario = cell.scenario
    # in virtual time all data planes give equal results
    plane = choose_plane(scenario, cell.backend) if cell.backend == "mininet" else None
    if plane is not None:
        scenario = dataclasses.replace(scenario, switch=dataclasses.replace(scenario.switch, dataplane=plane.name))
    run_method = importlib.import_module(RUNNER_MODULES[cell.backend]).run_method
    result = run_method(scenario, cell.method, cell.folder, lambda *_: None)
    (entry,) = entries(cell.scenario, cell.backend, [result])
    return {"entry": plain(entry), "timeline": [asdict(span) for span in result.timeline]}


def entry_of(record: Record, backend: str) -> dict[str, Any]:
    """The entry of a document in a cell's record, not yet compared."""
    return {**record["entry"], "method": parse_method(record["entry"]["method"], virtual=backend == "sim")}


@dataclass(frozen=True)
class SweepPoint:
    """All methods of a scenario at one point of its sweep."""

    point: Point
    scenario: Scenario
    plane: Choice | None
    folder: Path
    cells: tuple[SweepCell, ...]


@dataclass
class SweepRun:
    """A sweep on one backend, its results in `out`."""

    scenario: Scenario
    backend: str
    runs: list[SweepPoint]
    out: Path
    failed: dict[str, str] = field(default_factory=dict)
    """Title of a cell -> why it failed."""

    @property
    def store(self) -> CellStore:
        return CellStore(self.out / CELLS)

    @property
    def cells(self) -> list[SweepCell]:
        """The cells without repetitions: equal cells of different names are one cell."""
        return list({cell.key: cell for run in self.runs for cell in run.cells}.values())


def planned(scenario: Scenario, variants: Sequence[tuple[Point, Scenario]], backend: str, out: Path) -> SweepRun:
    """variants: as `load_variants` gave them. Raises ScenarioError, RunFailed for what can't be run."""
    code, runs, planes = version(backend), [], {}
    for number, (point, variant) in enumerate(variants):
        workload = variant.workload
        if backend == "sim" and workload.compute_ns is None and not workload.profile:
            raise ScenarioError(
                f"{scenario.file}: [workload] compute_ns is missing: each process would measure its own; put it into "
                "the file, or add --set workload.compute_ns=80e6"
            )
        folder = out / _folder(point, number)
        switches = variant.switch, variant.topology.fabric, variant.topology.workers
        if switches not in planes:  # data planes are tested for it, which takes a while
            planes[switches] = comparing.choose_plane(variant, backend)
        cells = tuple(
            SweepCell(variant, backend, method, f"{method}, {point_text(point)}", code, folder / method.slug)
            for method in variant.methods_for(backend)
        )
        runs.append(SweepPoint(point, variant, planes[switches], folder, cells))
    return SweepRun(scenario, backend, runs, out)


def _folder(point: Point, number: int) -> str:
    """Like rate_bps-1000000000_workers-4."""
    names = [key.rpartition(".")[2] for key in point]
    parts = [
        f"{name if names.count(name) == 1 else key}-{value}"
        for name, (key, value) in zip(names, point.items(), strict=True)
    ]
    text = "".join(c if c.isalnum() or c in "_-." else "-" for c in "_".join(parts))
    return text if len(text) <= NAME_MOST else f"run-{number}"


def run(sweep: SweepRun, jobs: int, ray: bool, log: Log) -> None:
    """Run the cells that aren't there, and keep each as it ends. jobs, ray: as of `run_cells`; in Mininet one after
    the other. Raises RunFailed, OSError."""
    if sweep.backend == "mininet" and ray:
        raise RunFailed("--ray: Mininet runs here, one method at a time; allowed: --on sim")
    if sweep.backend == "mininet":
        for point in sweep.runs:
            if any(sweep.store.find(cell) is None for cell in point.cells):
                comparing.prepare(point.folder, point.scenario.methods_for(sweep.backend))
    jobs = 1 if sweep.backend == "mininet" else jobs
    sweep.failed |= run_cells(sweep.cells, run_cell, sweep.store, log, jobs=jobs, ray=ray)


@dataclass
class SweepOutcome:
    """The outcome of a sweep. verdict: the worst; None if no run has a verdict; unequal: ranks or methods differ that
    must not; problems: a line each."""

    document: dict[str, Any]
    report: Path
    verdict: str | None
    unequal: bool
    problems: list[str]


def write_results(sweep: SweepRun, command: Sequence[str], reports: bool, log: Log) -> SweepOutcome:
    """Writes tables, sweep.json, the page and, if wanted, the report of each run. Raises RunFailed, OSError."""
    rows: list[sweep_table.Row] = []
    documents, verdicts, unequal = [], [], False
    problems = failures(sweep.failed, len(sweep.cells))
    for number, point in enumerate(sweep.runs, 1):
        there = {cell.method: (cell, record) for cell in point.cells if (record := sweep.store.find(cell))}
        built = assembled(
            point.scenario, sweep.backend, [entry_of(record, sweep.backend) for _, record in there.values()]
        )
        documents.append(sweep_page.of_run(point.point, built, point.folder.name if reports and there else ""))
        for entry in built["methods"]:
            key = {"seed": point.scenario.seed, "backend": sweep.backend, "cell": there[entry["method"]][0].key}
            rows.append({**point.point, **key, **sweep_table.row(entry)})
        if reports and there and not _is_there(point.folder, built):
            log(Passing(f"report {number}/{len(sweep.runs)}: {point.folder}"))
            comparing.prepare(point.folder, [])
            timelines = {method: [Span(**span) for span in record["timeline"]] for method, (_, record) in there.items()}
            timelines = {method: spans for method, spans in timelines.items() if spans}
            seconds = {method: record["seconds"] for method, (_, record) in there.items()}
            comparing.write(built, _host(point, command, seconds), timelines, point.folder)
        problems += [f"{point_text(point.point)}: {problem}" for problem in comparing.problems(built)]
        verdicts.append(built["verdict"])
        unequal |= bool(differing(built)) or any(map(unequal_ranks, built["methods"]))
    sweep.out.mkdir(parents=True, exist_ok=True)
    _, missing = sweep_table.write(rows, sweep.out)
    if missing:
        log(missing)
    document = sweep_page.build(sweep.scenario, sweep.backend, documents)
    return SweepOutcome(document, sweep_page.write(document, sweep.out), worst(verdicts), unequal, problems)


def _host(run: SweepPoint, command: Sequence[str], seconds: dict[Any, float]) -> dict[str, Any]:
    host = {**host_facts(command), "wall_seconds_per_method": seconds}
    if run.plane is not None:
        host |= {"dataplane": run.plane.name, "dataplanes_passed_over": run.plane.passed_over}
    return host


def _is_there(folder: Path, built: dict[str, Any]) -> bool:
    """Whether the report of the same numbers is."""
    try:
        earlier = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (folder / "report.html").exists() and earlier == json.loads(json.dumps(plain(built)))
