"""The outcome of a chaos run as text, and as a document for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.chaos_result import ChaosResult, EventRecord, quantiles
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, FaultKind
from emulation.report.table_kit import columns

FAULTS_SHOWN = 20
COUNTS = "wrong_sums", "hangs", "not_as_expected", "leftovers"


def event_lines(result: ChaosResult) -> list[str]:
    """The events in order of time."""
    rows = [
        [
            *(f"{record.at_s:.2f}", str(record.event.number), str(record.event), record.expected, record.outcome),
            "-" if record.recovery_s is None else f"{record.recovery_s:.2f}",
        ]
        for record in result.records
    ]
    return columns(("at (s)", "event", "what, whom", "expected", "came", "recovery (s)"), rows, (2, 3, 4))


def recovery_lines(result: ChaosResult) -> list[str]:
    """By kind: median, p99, worst."""
    rows = [
        [kind, str(len(records)), *(f"{time_s:.2f}" for time_s in _times_s(records))]
        for kind, records in result.recoveries().items()
    ]
    return columns(("recoveries", "events", "median (s)", "p99 (s)", "worst (s)"), rows, (0,))


def _times_s(records: Sequence[EventRecord]) -> tuple[float, float, float]:
    return quantiles([record.recovery_s or 0.0 for record in records])


def schedule_lines(schedule: list[ChaosEvent]) -> list[str]:
    """Events that have not happened."""
    rows = [
        [str(event.number), f"{event.gap_s:.3f}", "the event before" if event.second else "recovery", str(event)]
        for event in schedule
    ]
    return columns(("event", "seconds", "after", "what, whom"), rows, (2, 3))


def kind_lines(options: ChaosOptions, kinds: list[FaultKind]) -> list[str]:
    """The kinds of faults that these options have."""
    rows = [[kind.name, kind.outcome_words(options), kind.summary] for kind in kinds]
    return columns(("kind", "expected", "what happens"), rows, (0, 1, 2))


def result_lines(result: ChaosResult) -> list[str]:
    """The contents text: events, recoveries, checks, and a line for each fault."""
    options = result.options
    checks = [
        f"{result.seconds:.0f} s, seed {options.seed}: {len(result.records)} events, {result.starts} starts of the "
        f"job, {result.steps} steps of {options.workers} ranks, {result.bad_packets} bad packets",
        f"sums checked: {result.sums_checked}; parameters checked: {result.parameters_checked}",
    ]
    if options.elastic:
        share = result.steps_discarded / max(1, result.steps + result.steps_discarded)
        checks[0] = checks[0].replace("ranks,", "ranks or fewer,")
        checks.append(
            f"steps discarded and done again: {result.steps_discarded} ({share:.2%}); laps compared with a run without "
            f"faults: {result.laps_compared} of {result.laps}"
        )
    checks += [f"{name.replace('_', ' ')}: {len(getattr(result, name))}" for name in COUNTS]
    if result.disturbed:
        checks.append(f"disturbed: {len(result.disturbed)}")
    faults = [f"FAULT: {fault}" for fault in result.faults[:FAULTS_SHOWN]]
    if (more := len(result.faults) - FAULTS_SHOWN) > 0:
        faults.append(f"FAULT: {more} more, which --json FILE and --report DIR have")
    faults += [f"disturbed: {line}" for line in result.disturbed]
    return [*event_lines(result), "", *recovery_lines(result), "", *checks, *faults]


def document(result: ChaosResult) -> dict[str, Any]:
    """All of it."""
    contents = asdict(result)
    contents["options"]["survives"] = result.options.survival.value
    records = zip(contents.pop("records"), result.records, strict=True)
    contents["events"] = [
        {**record.event._asdict(), **values, "event": str(record.event)} for values, record in records
    ]
    contents["recoveries"] = {
        kind: dict(zip(("median_s", "p99_s", "worst_s"), _times_s(records), strict=True)) | {"events": len(records)}
        for kind, records in result.recoveries().items()
    }
    return contents


def write(result: ChaosResult, json_file: Path | None, folder: Path | None) -> None:
    """The document as a file, and text and document in a folder."""
    files = {json_file: json.dumps(document(result), indent=1)} if json_file is not None else {}
    if folder is not None:
        files |= {folder / "chaos.txt": "\n".join(result_lines(result))}
        files |= {folder / "chaos.json": json.dumps(document(result), indent=1)}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
