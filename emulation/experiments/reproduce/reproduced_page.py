"""Published results beside ours as rows of tables, for the terminal and docs/results/reproduced.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from emulation.experiments.reproduce.published import Judgement, Published, PublishedCell

Judged = tuple[Published, Judgement]


def summary_rows(results: Sequence[Judged]) -> list[tuple[str, ...]]:
    """name, title, verdict, judged cells, median and worst error, order."""
    return [
        (
            published.name,
            published.title,
            judgement.verdict,
            str(len(judgement.errors)),
            _percent(median(map(abs, judgement.errors.values())), sign=False) if judgement.errors else "-",
            _percent(judgement.worst) if judgement.errors else "-",
            "-" if math.isnan(judgement.tau) else f"{judgement.tau:.2f} of {judgement.pairs}",
        )
        for published, judgement in results
    ]


SUMMARY_HEAD = ("result", "what", "verdict", "judged", "median error", "worst", "order")


def page_row(published: Published, judgement: Judgement) -> tuple[str, ...]:
    """A row of the page under PAGE_HEAD: the judged cell that is furthest off stands for all."""
    authors, *_, venue = published.paper.replace(" et al.", "").split(",")
    first = min(published.cells, key=lambda cell: -round(abs(judgement.errors.get(cell.name, 0.0)), 2))
    claim = f"[{published.title}](reproduced/{published.name}.svg)" if judgement.errors else published.title
    return (
        f"`{published.name}`",
        f"{authors},{venue} {published.year}",
        claim,
        f"{_number(first.published)} {published.unit}",
        _number(judgement.reproduced.get(first.name)),
        judgement.verdict,
    )


PAGE_HEAD = ("result", "paper", "claim", "theirs", "ours", "verdict")


def facts(published: Published) -> list[str]:
    """Where the paper's numbers come from, and what of them went into ours: a line each."""
    named = {
        "paper": f"{published.paper}, {published.year}",
        "source": published.source,
        "conditions": published.conditions,
        "inputs": published.inputs,
        "calibrated on": published.calibration,
        "read": published.reading,
    }
    return [f"{name}: {text}" for name, text in named.items() if text]


def cell_rows(published: Published, judgement: Judgement) -> list[tuple[str, ...]]:
    """cell, the paper's number, ours, error or what the cell is for."""
    return [
        (cell.name, _number(cell.published), _number(judgement.reproduced.get(cell.name)), _remark(cell, judgement))
        for cell in published.cells
    ]


def verdict_line(published: Published, judgement: Judgement) -> str:
    """With the reason, or what is missing."""
    if judgement.verdict == "differs":
        return f"differs because {published.because}"
    return f"stays open, as what could be read lacks {published.missing}" if judgement.verdict == "open" else "agrees"


def _remark(cell: PublishedCell, judgement: Judgement) -> str:
    if cell.role == "experiment" and cell.name in judgement.reproduced:
        return f"experiment: {_percent(judgement.reproduced[cell.name] / cell.published - 1)}"
    error = judgement.errors.get(cell.name)
    return {"shown": "not judged"}.get(cell.role, cell.role) if error is None else _percent(error)


def _percent(share: float, *, sign: bool = True) -> str:
    text = f"{100 * share:{'+' if sign else ''}.1f} %"
    return text.replace("-0.0", "0.0").replace("+0.0", "0.0")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
