"""Figures of all pages: one style, one way to draw those that a document has numbers for, and the axes they share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from emulation.report.svg import GRID, INK, PAPER
from emulation.results.whole_file import whole_file

LINESTYLES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def draw(makers: Mapping[str, Callable[[], Figure | None]]) -> dict[str, Figure]:
    """Figures by name, in order, of those makers that have something to draw."""
    with matplotlib.rc_context(STYLE):
        figures = {name: figure for name, make in makers.items() if (figure := make()) is not None}
        for figure in figures.values():
            if (layout := figure.get_layout_engine()) is not None:
                layout.execute(figure)
                figure.set_layout_engine(None)  # else each file that is written would lay it out anew
        return figures


def write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """A PNG for each figure, named after it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        with whole_file(path) as partial:
            figure.savefig(partial, format="png", dpi=150, metadata={"Software": None})
    return paths


@contextlib.contextmanager
def written_beside(figures: Mapping[str, Figure], folder: Path) -> Iterator[None]:
    """As `write`, in a process of its own while the block runs. Raises OSError when that has ended."""
    if not (child := os.fork()):
        try:
            write(figures, folder)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        status = os.waitpid(child, 0)[1]
    if status:
        write(figures, folder)  # which says what is wrong


def grid(width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """A figure of so many inches, and its panels, (rows, columns). shared: as matplotlib's `subplots` has it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def stacked(heights: Sequence[float], width: float, *, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with panels of these heights, in inches, below each other."""
    figure, panels = grid(width, sum(heights), len(heights), sharex=sharex, height_ratios=heights)
    return figure, list(panels[:, 0])


def legend_above(figure: Figure, handles: Sequence[Any], labels: Sequence[str], chars_most: int = 52) -> None:
    """A legend above all panels, in as many columns as have room in the figure's width."""
    columns = max(1, min(len(labels), chars_most // (5 + max(map(len, labels), default=0))))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=9)


def decimal_ticks(axis: Axis) -> None:
    """Numbers of a logarithmic axis as people write them: 1, 2, 5, 10."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))


def bar_labels(axes: Axes, names: Iterable[str]) -> None:
    """Names beside horizontal bars at 0, 1, 2 …, the first on top."""
    texts = list(names)
    axes.set_yticks(range(len(texts)), texts, fontsize=9)
    axes.grid(axis="y", visible=False)
    axes.invert_yaxis()
