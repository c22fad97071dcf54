"""The outcome of a chaos run as text, and as a document for programs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.chaos_run import ChaosResult, quantiles
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, FaultKind

FAULTS_SHOWN = 20


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int] = (0,)) -> list[str]:
    """A plain table. words: the columns that are aligned to the left."""
    widths = [max(len(cells[at]) for cells in (head, *rows)) for at in range(len(head))]
    lines = []
    for cells in (head, *rows):
        places = enumerate(zip(cells, widths, strict=True))
        lines.append(
            "  ".join(cell.ljust(width) if at in words else cell.rjust(width) for at, (cell, width) in places).rstrip()
        )
    return lines


def event_lines(result: ChaosResult) -> list[str]:
    """The events in order of time."""
    rows = [
        [
            f"{record.at_s:.2f}",
            str(record.event.number),
            str(record.event),
            record.expected,
            record.outcome,
            "-" if record.recovery_s is None else f"{record.recovery_s:.2f}",
        ]
        for record in result.records
    ]
    return columns(("at (s)", "event", "what, whom", "expected", "came", "recovery (s)"), rows, (2, 3, 4))


def recovery_lines(result: ChaosResult) -> list[str]:
    """By kind: median, p99, worst."""
    rows = [
        [kind, str(len(times_s)), *(f"{time_s:.2f}" for time_s in quantiles(times_s))]
        for kind, times_s in result.recoveries().items()
    ]
    return columns(("recoveries", "events", "median (s)", "p99 (s)", "worst (s)"), rows)


def schedule_lines(schedule: list[ChaosEvent]) -> list[str]:
    """Events that have not happened."""
    rows = [
        [str(event.number), f"{event.gap_s:.3f}", "the event before" if event.second else "recovery", str(event)]
        for event in schedule
    ]
    return columns(("event", "seconds", "after", "what, whom"), rows, (2, 3))


def kind_lines(options: ChaosOptions, kinds: list[FaultKind]) -> list[str]:
    """The kinds of faults that these options have."""
    rows = [[kind.name, kind.outcome_words(options.survival), kind.summary] for kind in kinds]
    return columns(("kind", "expected", "what happens"), rows, (0, 1, 2))


def result_lines(result: ChaosResult) -> list[str]:
    """The whole text: events, recoveries, checks, and a line for each fault."""
    options = result.options
    checks = (
        f"{result.seconds:.0f} s, seed {options.seed}: {len(result.records)} events, {result.starts} starts of the "
        f"job, {result.steps} steps of {options.workers} ranks, {result.bad_packets} bad packets",
        f"sums checked: {result.sums}; parameters checked: {result.steps * options.workers}",
        f"wrong sums: {len(result.wrong_sums)}",
        f"hangs: {len(result.hangs)}",
        f"not as expected: {len(result.surprises)}",
        f"leftovers: {len(result.leftovers)}",
        *([f"disturbed: {len(result.disturbed)}"] if result.disturbed else []),
    )
    faults = [f"FAULT: {fault}" for fault in result.faults[:FAULTS_SHOWN]]
    if (more := len(result.faults) - FAULTS_SHOWN) > 0:
        faults.append(f"FAULT: {more} more, which --json FILE and --report DIR have")
    faults += [f"disturbed: {line}" for line in result.disturbed]
    return [*event_lines(result), "", *recovery_lines(result), "", *checks, *faults]


def options_document(options: ChaosOptions) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "seconds": options.seconds,
        "workers": options.workers,
        "method": options.method,
        "fallback": options.fallback,
        "standby": options.standby,
        "on": options.place,
        "events": options.events,
        "kinds": list(options.kinds),
        "lease_s": options.lease_s,
        "survives": options.survival.value,
    }


def document(result: ChaosResult) -> dict[str, Any]:
    """All of it."""
    return {
        "options": options_document(result.options),
        "seconds": result.seconds,
        "starts": result.starts,
        "steps": result.steps,
        "sums_checked": result.sums,
        "bad_packets": result.bad_packets,
        "events": [
            {
                "at_s": record.at_s,
                **record.event._asdict(),
                "expected": record.expected,
                "came": record.outcome,
                "start": record.start,
                "ended_s": record.ended_s,
                "recovery_s": record.recovery_s,
            }
            for record in result.records
        ],
        "recoveries": {
            kind: dict(zip(("median_s", "p99_s", "worst_s"), quantiles(times_s), strict=True))
            | {"events": len(times_s)}
            for kind, times_s in result.recoveries().items()
        },
        "wrong_sums": result.wrong_sums,
        "hangs": result.hangs,
        "not_as_expected": result.surprises,
        "leftovers": result.leftovers,
        "disturbed": result.disturbed,
    }


def write(result: ChaosResult, json_file: Path | None, folder: Path | None) -> None:
    """The document as a file, and text and document in a folder."""
    text = json.dumps(document(result), indent=1) + "\n"
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "chaos.txt").write_text("\n".join(result_lines(result)) + "\n", encoding="utf-8")
        (folder / "chaos.json").write_text(text, encoding="utf-8")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(text, encoding="utf-8")
