"""The page docs/results/reproduced.md and its figures: papers' numbers and ours beside each other, cell by cell.

`python -m tools.documents.reproduced [FOLDER]` runs all results, a minute, and writes reproduced.md and its figures.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from emulation.experiments.reproduce import catalogue
from emulation.experiments.reproduce.published import RULE, Judgement, Published
from emulation.experiments.reproduce.reproduced_page import (
    SUMMARY_HEAD,
    Judged,
    cell_rows,
    summary_rows,
    verdict_line,
)
from emulation.report.figure_kit import STYLE
from emulation.report.table_kit import markdown

HEAD = """# Published results, run again

Written by `python -m tools.documents.reproduced`: change `emulation/experiments/reproduce/results/`, not this page.
Each result has the paper's own numbers, with their source and conditions, and ours, which are made from the paper's
inputs alone: nothing is fitted on a cell that is judged, and cells that fix a constant say so.

{rule}

Errors are of ours against the paper's number. Order is Kendall's tau over the pairs of cells that the paper separates,
within each series of a result: 1 is the paper's order throughout.

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
    if judgement.errors:
        lines += [f"![{published.title}: the paper's numbers and ours](reproduced/{published.name}.svg)", ""]
    return "\n".join(lines)


def write(results: Sequence[Judged], folder: Path) -> None:
    """reproduced.md and reproduced/NAME.svg into a folder of documents."""
    figures = folder / "reproduced"
    figures.mkdir(parents=True, exist_ok=True)
    parts = [HEAD.format(rule=RULE) + "\n".join(markdown(SUMMARY_HEAD, summary_rows(results))) + "\n"]
    for published, judgement in results:
        parts.append(section(published, judgement))
        if judgement.errors:
            (figures / f"{published.name}.svg").write_text(svg(published, judgement))
    (folder / "reproduced.md").write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="docs/results/reproduced.md and its figures")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("docs/results"), help="of the page (default: docs/results)"
    )
    folder = parser.parse_args().folder
    wanted = list(map(catalogue.find, catalogue.names()))
    write(catalogue.run_results(wanted, 0, lambda text: print(text, file=sys.stderr)), folder)


if __name__ == "__main__":
    main()
