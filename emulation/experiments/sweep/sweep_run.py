"""A whole sweep: its cells, those that aren't there yet run, and everything written from all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.experiments import compare as comparing
from emulation.experiments import pool
from emulation.experiments.sweep import sweep_page, sweep_table
from emulation.experiments.sweep.sweep_cells import Store, SweepCell, version, work
from emulation.results.results import assembled, differing, plain, unequal_ranks
from emulation.results.speedups import worst
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, ScenarioError
from emulation.scenario.sweep_axes import Point
from emulation.testbed.host import host_facts
from switchagg.dataplane.self_test import Choice

Log = Callable[[str], None]

CELLS = "cells"
NAME_MOST = 150
"""Characters of a run's folder."""


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
    def store(self) -> Store:
        return Store(self.out / CELLS)

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
            SweepCell(variant, backend, method, f"{method}, {sweep_page.point_text(point)}", code, folder / method.slug)
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
    """Run the cells that aren't there, and keep each as it ends. jobs, ray: as `pool.worked` has them; in Mininet one
    after the other. Raises RunFailed, OSError."""
    if sweep.backend == "mininet" and ray:
        raise RunFailed("--ray: Mininet runs here, one method at a time; allowed: --on sim")
    sweep.store.folder.mkdir(parents=True, exist_ok=True)
    every = sweep.cells
    missing = [cell for cell in every if not sweep.store.has(cell)]
    jobs = 1 if sweep.backend == "mininet" else max(1, min(jobs, len(missing)))
    where = "by Ray" if ray else f"{jobs} at a time"
    there = len(every) - len(missing)
    log(f"{len(every)} runs, of which {there} are there and {len(missing)} are to do, {where}")
    if sweep.backend == "mininet":
        for point in sweep.runs:
            if any(cell in missing for cell in point.cells):
                comparing.prepare(point.folder, point.scenario.methods_for(sweep.backend))
    start_s = time.monotonic()
    for number, (cell, record) in enumerate(pool.worked(work, missing, jobs, ray), 1):
        if "error" in record:
            sweep.failed[cell.title] = record["error"]
        else:
            sweep.store.keep(cell, record)
        took = f"{record['seconds']:.1f} s" if "seconds" in record else f"failed: {record['error']}"
        log(f"[{number}/{len(missing)}] {cell.title}: {took}; {pool.time_left(start_s, number, len(missing))}")


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
    documents, problems, verdicts, unequal = [], failures(sweep), [], False
    for number, point in enumerate(sweep.runs, 1):
        there = {cell.method: cell for cell in point.cells if cell.title not in sweep.failed}
        entries = {method: sweep.store.entry(cell) for method, cell in there.items()}
        built = assembled(point.scenario, sweep.backend, [entry for entry, _, _ in entries.values()])
        documents.append(sweep_page.of_run(point.point, built, point.folder.name if reports and entries else ""))
        for entry in built["methods"]:
            key = {"seed": point.scenario.seed, "backend": sweep.backend, "cell": there[entry["method"]].key}
            rows.append({**point.point, **key, **sweep_table.row(entry)})
        if reports and entries and not _is_there(point.folder, built):
            log(f"report {number}/{len(sweep.runs)}: {point.folder}")
            comparing.prepare(point.folder, [])
            timelines = {method: spans for method, (_, spans, _) in entries.items() if spans}
            seconds = {method: took for method, (_, _, took) in entries.items()}
            comparing.write(built, _host(point, command, seconds), timelines, point.folder)
        problems += [f"{sweep_page.point_text(point.point)}: {problem}" for problem in comparing.problems(built)]
        verdicts.append(built["verdict"])
        unequal |= bool(differing(built)) or any(map(unequal_ranks, built["methods"]))
    sweep.out.mkdir(parents=True, exist_ok=True)
    _, missing = sweep_table.write(rows, sweep.out)
    if missing:
        log(missing)
    document = sweep_page.build(sweep.scenario, sweep.backend, documents)
    return SweepOutcome(document, sweep_page.write(document, sweep.out), worst(verdicts), unequal, problems)


def failures(sweep: SweepRun) -> list[str]:
    """A line for each reason."""
    reasons = dict.fromkeys(sweep.failed.values())
    lines = []
    for reason in reasons:
        titles = [title for title, why in sweep.failed.items() if why == reason]
        lines.append(
            f"{len(titles)} of {len(sweep.cells)} runs failed ({titles[0]}{', …' if titles[1:] else ''}): {reason}"
        )
    return lines


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
