"""What `switchagg compare` and `switchagg sweep` do with a checked scenario, and what they print.

Progress and problems go to stderr, a table or JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from emulation.cli.progress import of_methods, say
from emulation.experiments import compare as comparing
from emulation.experiments.cells import values_text
from emulation.experiments.compare import Comparison
from emulation.report import wording
from emulation.results.results import differing, plain, unequal_ranks
from emulation.results.speedups import DISTURBED, INVALID
from emulation.scenario.scenario import BACKENDS, Scenario, ScenarioError
from emulation.scenario.scenario_tables import AUTO
from emulation.scenario.sweep_axes import Point
from emulation.testbed.nursery import Nursery
from switchagg.option_syntax import choices

EXIT_DONE, EXIT_FAILED = 0, 1
EXIT_OF_VERDICT = {INVALID: 3, DISTURBED: 4}
TABLE_COLUMNS = 130  # where stdout is no terminal


def check_backend(on: str | None) -> None:
    """Raises ScenarioError."""
    if on is not None and on not in BACKENDS:
        raise ScenarioError(f"--on: '{on}' is unknown{choices(on, BACKENDS)}")


def overrides(seed: int | None, settings: list[str]) -> dict[str, Any]:
    """Command-line values by dotted key; a value is read as TOML, so `10e9`, `true` and `"text"` are what they look
    like."""
    overridden: dict[str, Any] = {} if seed is None else {"seed": seed}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {setting}: not understood; allowed: TABLE.KEY=VALUE, like topology.workers=8")
        try:
            overridden[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            overridden[key.strip()] = text.strip()  # a bare word: name=text
    return overridden


def fidelity_overrides(wanted: str | None, within_s: int | None, on: str | None) -> dict[str, Any]:
    """The scenario's values in place of which --fidelity-level and --within stand; both are of virtual time."""
    if on == "mininet":
        raise ScenarioError("--fidelity-level: Mininet sends real packets; allowed: --on sim, or no --fidelity-level")
    if within_s is not None and wanted not in (None, AUTO):
        raise ScenarioError(f"--within: it belongs to --fidelity-level auto, not {wanted}; leave one of them out")
    overridden: dict[str, Any] = {"virtual_time.fidelity_level": wanted or AUTO}
    return overridden if within_s is None else {**overridden, "virtual_time.within_s": within_s}


def run(
    scenario: Scenario, on: str | None, folder: Path, command: Sequence[str], as_json: bool, nursery: Nursery
) -> int:
    """Run a scenario's methods, print the outcome, and return the exit code. Raises what `compare` raises.

    nursery: which loads PyTorch; it is closed where nothing is trained.
    """
    if scenario.workload.profile:
        nursery.close()
    backend, reason = comparing.choose_backend(scenario, on)
    plane = comparing.choose_plane(scenario, backend)
    _announce(scenario, backend, reason)
    if plane is not None:
        typer.echo(f"data plane of the switch: {plane}", err=True)
    trainers = None if scenario.workload.profile else nursery
    with of_methods() as progress, _told_if_busy(backend):
        done = comparing.compare(scenario, backend, folder, progress, command=command, plane=plane, nursery=trainers)
    if as_json:
        typer.echo(json.dumps(plain(_summary(done)), sort_keys=True))
    else:
        _print_table(done)
    built = done.document
    unequal = bool(differing(built)) or any(map(unequal_ranks, built["methods"]))
    return _finish(built["verdict"], unequal, comparing.problems(built), done.report)


@dataclass(frozen=True)
class HowToSweep:
    """jobs: processes; 0: one on each core. ray: by Ray instead. reports: of each run."""

    jobs: int
    ray: bool
    reports: bool
    as_json: bool


def run_sweep(
    scenario: Scenario,
    variants: Sequence[tuple[Point, Scenario]],
    on: str | None,
    folder: Path,
    command: Sequence[str],
    how: HowToSweep,
) -> int:
    """Run what isn't there yet of a sweep, print the outcome, and return the exit code.

    whole: the scenario with its sweep; variants: as `load_variants` returned them. Raises what `compare` raises.
    """
    from emulation.experiments.sweep import sweep_page  # matplotlib
    from emulation.experiments.sweep import sweep_run as sweeping

    backend, reason = comparing.choose_backend(variants[0][1], on)
    swept = sweeping.planned(scenario, variants, backend, folder)  # all are refused before any has run
    _announce(scenario, backend, reason)
    for group in scenario.sweep.groups:
        typer.echo(f"{', '.join(group[0])}: {'; '.join(map(values_text, group))}", err=True)

    with _told_if_busy(backend):
        sweeping.run(swept, how.jobs, how.ray, say)
    done = sweeping.write_results(swept, command, how.reports, say)
    if how.as_json:
        typer.echo(json.dumps(plain(done.document), sort_keys=True))
    else:
        for title, heads, rows, _ in sweep_page.tables(done.document):
            if title:
                typer.echo(f"\n{title}", nl=False)
            _print(heads, rows)
        typer.echo(f"\n{sweep_page.headline(done.document)}")
    return _finish(done.verdict, done.unequal or bool(swept.failed), done.problems, done.report)


def _announce(scenario: Scenario, backend: str, reason: str) -> None:
    names = list(map(str, scenario.methods_for(backend)))
    methods = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    where = "Mininet (real time)" if backend == "mininet" else "virtual time (sim)"
    typer.echo(f"{scenario.title}\n{methods} in {where}: {reason}", err=True)


@contextmanager
def _told_if_busy(backend: str) -> Iterator[None]:
    """A line, a second after a run in real time has begun, if other programs use this machine."""
    if backend != "mininet":
        yield
        return
    from emulation.testbed.certificate.processes import OTHERS_SHARE, PROBE_S, busy_since, usage

    def tell() -> None:
        share, programs = busy_since(before, os.getpid())
        if share > OTHERS_SHARE:
            words = wording.busy_text({"cpu_other_share": share, "cpu_other_programs": programs})
            typer.echo(
                f"this machine isn't quiet: other programs have {words} of the CPUs' time; end them, or expect wide "
                "intervals and DISTURBED or INVALID times",
                err=True,
            )

    before, timer = usage(os.getpid()), threading.Timer(PROBE_S, tell)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _summary(done: Comparison) -> dict[str, Any]:
    built = done.document
    return {
        "scenario": built["scenario"].name,
        "backend": built["backend"],
        "verdict": built["verdict"],
        "finding": built["finding"],
        "results": str(done.folder / "results.json"),
        "report": str(done.report),
        "methods": {
            entry["method"]: {**entry["summary"], "comparison": entry["comparison"]} for entry in built["methods"]
        },
    }


def _print_table(done: Comparison) -> None:
    from emulation.report.comparison_rows import COLUMNS_MOST, split_rows, turned

    built = done.document
    names = list(wording.short_names([entry["method"] for entry in built["methods"]]).values())
    heads, rows = turned(names, split_rows(built)[0])
    _print(heads, rows)
    typer.echo("\nalgbw, busbw and more are under Details in the report.")
    doubt = "INVALID, what was measured nevertheless: " if built["verdict"] == INVALID else ""
    typer.echo(f"\n{doubt}{wording.headline(built)}")
    beyond = any(entry["comparison"] and entry["comparison"]["beyond_bound"] for entry in built["methods"])
    if beyond and len(names) <= COLUMNS_MOST:  # of many methods only the report has all
        for sentence in wording.explanations(built):  # the table says "see below"
            typer.echo(sentence)


def _print(heads: Sequence[str], rows: Sequence[tuple[str, list[tuple[str, str]]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, min_width=28 if place == 0 and not head else None, overflow="fold")
    for label, cells in rows:
        table.add_row(label, *(f"{value}  [dim]({note})[/dim]" if note else value for value, note in cells))
    console = Console(width=None if sys.stdout.isatty() else TABLE_COLUMNS, highlight=False, soft_wrap=False)
    console.print()
    console.print(table)


def _finish(verdict: str | None, failed: bool, problems: Sequence[str], report: Path) -> int:
    """Last lines: certificate, report, problems. Returns the exit code: 1, or the verdict's where that isn't VALID."""
    more = {INVALID: ": do not use these times", DISTURBED: ": compute was not alike, or slower than its pace"}
    typer.echo(f"Certificate: {verdict or 'none needed in virtual time'}{more.get(verdict or '', '')}", err=True)
    typer.echo(f"Report: {report}", err=True)
    for problem in problems:
        typer.echo(f"switchagg: {problem}", err=True)
    if failed:
        return EXIT_FAILED
    return EXIT_OF_VERDICT.get(verdict or "", EXIT_DONE)
