"""The page docs/results/reproduced.md and its figures: papers' numbers and ours beside each other.

`python -m tools.documents.reproduced [FOLDER]` runs all results, a minute, and writes reproduced.md and its figures.
"""

from __future__ import annotations

import argparse
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from emulation.cli.progress import say
from emulation.experiments.reproduce import catalogue
from emulation.experiments.reproduce.published import RULE, Judgement, Published
from emulation.experiments.reproduce.reproduced_page import PAGE_HEAD, Judged, page_row, verdict_line
from emulation.report.figure_kit import STYLE
from emulation.report.table_kit import markdown

HEAD = """# Published results, run again

Do papers' results come out here under their own conditions? Of {count} results {agrees} agree with the paper,
{differs} differ for a reason that an experiment shows, and {open} stay open, as too little of the paper could be read.

`python -m tools.documents.reproduced` writes this page in a minute, the same on every machine. `switchagg reproduce
NAME` shows all cells of a result with source, conditions, inputs and calibration.

Ours are made from the paper's inputs alone. {rule} *Theirs* and *ours* are the judged cell with the
largest error; the figure behind a claim has all cells.

"""

_PAPER, _REPRODUCED, _CALIBRATED = "#999999", "#0072B2", "#A6CEE3"  # grey, and two blues of which both print
_BAR = 0.38
MANY, WIDE = 40, 50
"""Cells of a figure that are drawn narrower; largest over smallest number from which the axis is logarithmic."""


def draw(published: Published, judgement: Judgement) -> Figure:
    """Bars, the paper's above ours; pale where a cell calibrates."""
    cells = [cell for cell in published.cells if cell.role != "experiment"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.9 + (0.36 if len(cells) <= MANY else 0.24) * len(cells)), layout="constrained")
        axes = figure.add_subplot()
        for place, cell in enumerate(cells):
            axes.barh(place - _BAR / 2, cell.published, _BAR, color=_PAPER, label="" if place else "paper")
            reproduced = judgement.reproduced.get(cell.name)
            if reproduced is not None:
                colour = _CALIBRATED if cell.role == "calibrates" else _REPRODUCED
                axes.barh(place + _BAR / 2, reproduced, _BAR, color=colour)
        axes.barh(0, 0, color=_REPRODUCED, label="ours")
        if published.calibration:
            axes.barh(0, 0, color=_CALIBRATED, label="ours, calibrated")
        axes.set_yticks(range(len(cells)), [cell.name for cell in cells])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        sizes = [abs(cell.published) for cell in cells]
        if max(sizes) > WIDE * min(sizes):
            axes.set_xscale("log")
        axes.set_xlabel(published.unit)
        axes.set_title(published.title, loc="left", fontsize=10)
        figure.legend(loc="outside lower right", ncols=3)
    return figure


def svg(published: Published, judgement: Judgement) -> str:
    """The figure as a file: text stays text, in one line, and the same numbers give the same bytes."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": published.name}):
        draw(published, judgement).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"\s*\n\s*", " ", buffer.getvalue()).strip() + "\n"


def page(results: Sequence[Judged]) -> str:
    """The page: a row for each result, and why those differ that do."""
    verdicts = Counter(judgement.verdict for _, judgement in results)
    counts = {name: verdicts[name] for name in ("agrees", "differs", "open")}
    reasons = [
        f"- `{published.name}` {verdict_line(published, judgement)}."
        for published, judgement in results
        if judgement.verdict == "differs"
    ]
    rows = markdown(PAGE_HEAD, [page_row(*result) for result in results])
    lines = [*rows, "", *reasons]
    return HEAD.format(rule=RULE, count=len(results), **counts) + "\n".join(lines) + "\n"


def write(results: Sequence[Judged], folder: Path) -> None:
    """reproduced.md and reproduced/NAME.svg into a folder of documents."""
    figures = folder / "reproduced"
    figures.mkdir(parents=True, exist_ok=True)
    for published, judgement in results:
        if judgement.errors:
            (figures / f"{published.name}.svg").write_text(svg(published, judgement))
    (folder / "reproduced.md").write_text(page(results))


def main() -> None:
    parser = argparse.ArgumentParser(description="docs/results/reproduced.md and its figures")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("docs/results"), help="of the page (default: docs/results)"
    )
    folder = parser.parse_args().folder
    wanted = list(map(catalogue.find, catalogue.names()))
    write(catalogue.run_results(wanted, 0, say), folder)


if __name__ == "__main__":
    main()
