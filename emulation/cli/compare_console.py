"""What `switchagg compare` does with a checked scenario, and what it prints.

Progress and problems go to stderr, a table or JSON to stdout.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from emulation import compare as comparing
from emulation import sweep
from emulation.compare import Comparison
from emulation.report import wording
from emulation.results import differing, plain, unequal_ranks
from emulation.scenario import Scenario, ScenarioError

if TYPE_CHECKING:
    from switchagg.dataplane.self_test import Choice

EXIT_DONE, EXIT_FAILED, EXIT_INVALID = 0, 1, 3
TABLE_COLUMNS = 130  # where stdout is no terminal


def overrides(seed: int | None, settings: list[str]) -> dict[str, Any]:
    """Command-line values by dotted key; a value is read as TOML, so `10e9`, `true` and `"text"` are what they look
    like."""
    found: dict[str, Any] = {} if seed is None else {"seed": seed}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {setting}: not understood; allowed: TABLE.KEY=VALUE, like topology.workers=8")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            found[key.strip()] = text.strip()  # a bare word: name=text
    return found


def run(
    whole: Scenario, variants: Sequence[Scenario], on: str | None, folder: Path, command: Sequence[str], as_json: bool
) -> int:
    """Run the variants of a scenario, print the outcome, and return the exit code.

    whole: the scenario with its sweep; variants: as `load_variants` returned them. Raises what `compare` raises.
    """
    backend, reason = comparing.choose_backend(variants[0], on)
    planes = [comparing.choose_plane(variant, backend) for variant in variants]  # all are refused before any has run
    _announce(whole, variants, backend, reason, planes[0])
    if not whole.sweep.values or len(variants) == 1:
        with _progress() as progress:
            done = comparing.compare(variants[0], backend, folder, progress, command=command, plane=planes[0])
        if as_json:
            typer.echo(json.dumps(plain(_summary(done)), sort_keys=True))
        else:
            _print_table(done)
        return _finish([done], done.report)
    runs = []
    for variant, plane, name in zip(variants, planes, sweep.folders(whole, variants), strict=True):
        typer.echo(f"\n{sweep.label(whole, variant)}", err=True)
        with _progress() as progress:
            runs.append(comparing.compare(variant, backend, folder / name, progress, command=command, plane=plane))
    document, report = sweep.write(whole, runs, folder)
    if as_json:
        typer.echo(json.dumps(plain(document), sort_keys=True))
    else:
        _print_sweep(document)
    return _finish(runs, report)


def _announce(
    scenario: Scenario, variants: Sequence[Scenario], backend: str, reason: str, plane: Choice | None
) -> None:
    names = list(map(str, scenario.methods_for(backend)))
    methods = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    where = "Mininet (real time)" if backend == "mininet" else "virtual time (sim)"
    typer.echo(f"{scenario.title}\n{methods} in {where}: {reason}", err=True)
    if len(variants) > 1:
        typer.echo(f"{len(variants)} runs: {scenario.sweep.key} = {sweep.values_text(scenario)}", err=True)
    if plane is not None:
        typer.echo(f"data plane of the switch: {plane}", err=True)


@contextmanager
def _progress() -> Iterator[Any]:
    """A progress callback: bars on a terminal, plain lines elsewhere. Everything goes to stderr."""
    from emulation.cli.progress import bars, lines

    with bars() if sys.stderr.isatty() else lines() as report:
        yield report


def _summary(done: Comparison) -> dict[str, Any]:
    built = done.document
    return {
        "scenario": built["scenario"]["name"],
        "backend": built["backend"],
        "valid": built["valid"],
        "results": str(done.folder / "results.json"),
        "report": str(done.report),
        "methods": {
            entry["method"]: {**entry["summary"], "comparison": entry["comparison"]} for entry in built["methods"]
        },
    }


def _print_table(done: Comparison) -> None:
    from emulation.report.report import COLUMNS_MOST, table_rows, turned

    built = done.document
    names = list(wording.short_names([entry["method"] for entry in built["methods"]]).values())
    heads, rows = turned(names, table_rows(built), notes=False)
    _print(heads, rows)
    doubt = "INVALID, what was measured nevertheless: " if built["valid"] is False else ""
    typer.echo(f"\n{doubt}{wording.headline(built)}")
    beyond = any(entry["comparison"] and entry["comparison"]["beyond_bound"] for entry in built["methods"])
    if beyond and len(names) <= COLUMNS_MOST:  # of many methods only the report has all
        for sentence in wording.explanations(built):  # the table says "see below"
            typer.echo(sentence)


def _print_sweep(document: dict[str, Any]) -> None:
    heads, rows = sweep.table(document)
    _print(heads, rows)
    typer.echo(f"\n{sweep.headline(document)}")


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


def _finish(runs: Sequence[Comparison], report: Path) -> int:
    """Last lines: certificate, report, problems. Returns the exit code: 1 or 3 where there is a problem."""
    verdicts = [done.document["valid"] for done in runs]
    valid = None if None in verdicts else all(verdicts)
    verdict = {None: "none needed in virtual time", True: "VALID", False: "INVALID: do not use these times"}
    typer.echo(f"Certificate: {verdict[valid]}", err=True)
    typer.echo(f"Report: {report}", err=True)
    for done in runs:
        where = f"{done.folder.name}: " if len(runs) > 1 else ""
        for problem in comparing.problems(done.document):
            typer.echo(f"switchagg: {where}{problem}", err=True)
    entries = [entry for done in runs for entry in done.document["methods"]]
    if any(map(differing, (done.document for done in runs))) or any(map(unequal_ranks, entries)):
        return EXIT_FAILED
    return EXIT_INVALID if valid is False else EXIT_DONE
