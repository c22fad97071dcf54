"""One result's figure: a paper's numbers and ours beside each other, cell by cell."""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib.figure import Figure

from emulation.experiments.reproduce.published import Judgement, Published
from emulation.report.figure_kit import STYLE

_PAPER, _REPRODUCED, _CALIBRATED = "#999999", "#0072B2", "#A6CEE3"  # grey, and two blues of which both print
_BAR = 0.38


def draw(published: Published, judgement: Judgement) -> Figure:
    """Bars, the paper's above ours; pale where a cell calibrates."""
    cells = published.cells
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.36 * len(cells)), layout="constrained")
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
