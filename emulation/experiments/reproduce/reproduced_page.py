"""What the command writes: a table for the terminal, docs/reproduced.md and its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from emulation.experiments.reproduce.figure import svg
from emulation.experiments.reproduce.published import RULE, Judgement, Published, PublishedCell
from emulation.report.table_kit import markdown

Judged = tuple[Published, Judgement]

HEAD = """# Published results, run again

Written by `switchagg reproduce --write docs`: change `emulation/experiments/reproduce/results/`, not this page.
Each result has the paper's own numbers, with their source and conditions, and ours, which are made from the paper's
inputs alone: nothing is fitted on a cell that is judged, and cells that fix a constant say so.

{rule}

Errors are of ours against the paper's number. Order is Kendall's tau over the pairs of cells that the paper separates,
within each series of a result: 1 is the paper's order throughout.

"""


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
    return f"open; missing: {published.missing}" if judgement.verdict == "open" else "agrees"


def section(published: Published, judgement: Judgement) -> str:
    """Of the page."""
    facts = [
        ("paper", f"{published.paper}, {published.year}"),
        ("source", published.source),
        ("conditions", published.conditions),
        ("inputs", published.inputs),
        ("calibrated on", published.calibration),
        ("read", published.reading),
        ("verdict", f"**{verdict_line(published, judgement)}**"),
    ]
    lines = [f"## {published.title}", "", f"`switchagg reproduce {published.name}`", ""]
    lines += [f"- {word}: {text}" for word, text in facts if text]
    lines += ["", *markdown(("cell", f"paper, {published.unit}", "ours", "error"), cell_rows(published, judgement)), ""]
    if judgement.reproduced:
        lines += [f"![{published.title}: the paper's numbers and ours](reproduced/{published.name}.svg)", ""]
    return "\n".join(lines)


def write(results: Sequence[Judged], folder: Path) -> None:
    """reproduced.md and reproduced/NAME.svg into a folder of documents."""
    figures = folder / "reproduced"
    figures.mkdir(parents=True, exist_ok=True)
    parts = [HEAD.format(rule=RULE) + "\n".join(markdown(SUMMARY_HEAD, summary_rows(results))) + "\n"]
    for published, judgement in results:
        parts.append(section(published, judgement))
        if judgement.reproduced:
            (figures / f"{published.name}.svg").write_text(svg(published, judgement))
    (folder / "reproduced.md").write_text("\n".join(parts))


def _remark(cell: PublishedCell, judgement: Judgement) -> str:
    error = judgement.errors.get(cell.name)
    return {"calibrates": "calibrates", "shown": "not judged"}[cell.role] if error is None else _percent(error)


def _percent(share: float, *, sign: bool = True) -> str:
    text = f"{100 * share:{'+' if sign else ''}.1f} %"
    return text.replace("-0.0", "0.0").replace("+0.0", "0.0")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
