"""Figures of a study, drawn from its document alone, in the style of `emulation/report/comparison_figures.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log10
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from emulation.experiments.study.study_plan import FLOAT32
from emulation.report import figure_kit
from emulation.report.figure_kit import LINESTYLES
from emulation.report.svg import WIDTH
from emulation.testbed.certificate.fidelity import rate_text

Row = dict[str, Any]
Place = tuple[str, int]
"""Workload and number of workers."""

LABEL_INCHES = 0.16
CLOSE = 0.5
"""Points of accuracy."""

PARTS = {"compute": "#BBBBBB", "codec": "#E69F00", "link": "#0072B2"}
"""Parts of an iteration's time, and their colours."""


def draw_all(document: dict[str, Any]) -> dict[str, Figure]:
    """Those the document has numbers for, by name."""
    makers = {"accuracy": accuracy, "curves": curves, "error": error, "time": time_to_accuracy}
    return figure_kit.draw({name: partial(make, document) for name, make in makers.items()})


def places(document: dict[str, Any]) -> Iterator[tuple[Place, list[Row]]]:
    """Rows that are compared with each other, the workloads as they were studied."""
    rows_of: dict[Place, list[Row]] = {}
    for row in document["rows"]:
        rows_of.setdefault((row["workload"], row["workers"]), []).append(row)
    yield from rows_of.items()


def short(codec: str) -> str:
    """A codec's text without its options, as a label."""
    name, _, options = codec.partition(":")
    return name + ("+" + options.partition("+")[2] if "+" in options else "")


def accuracy(document: dict[str, Any]) -> Figure | None:
    """Final error, 1 less the accuracy, against bits per value on the busier direction of a link: all seeds, and their
    mean."""
    every = list(places(document))
    heights = [2.8 + 0.25 * len(rows) for _, rows in every]
    figure, panels = figure_kit.stacked(heights, WIDTH)
    for axes, height, ((workload, workers), rows) in zip(panels, heights, every, strict=True):
        plain = next((row for row in rows if row["codec"] == FLOAT32), None)
        if plain is not None:
            errors = _final_errors(plain)
            axes.axhspan(min(errors), max(errors), color="#DDDDDD", label="seeds of float32")
        ended = [row for row in rows if not row["diverged"]]
        for colour, row in zip(_colours(ended), ended, strict=True):
            axes.plot([bits(row)] * row["seeds"], _final_errors(row), "_", color=colour, markersize=9)
            axes.plot([bits(row)], [_error(row["accuracy"])], "o", color=colour, markersize=5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _labels(axes, [(bits(row), _error(row["accuracy"]), short(row["codec"])) for row in ended], height - 1)
        figure_kit.decimal_ticks(axes.xaxis)
        for place in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            place(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.tick_params(axis="y", which="minor", labelsize=9)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * 1.6)
        axes.set(title=f"{workload}, n = {workers}", ylabel="wrong answers in the end")
        axes.set_xlabel("bits per value, headers and scales included")
        axes.legend(loc="upper right")
    return figure


def _error(accuracy: float) -> float:
    """The share of wrong answers, at least what a logarithmic axis can show."""
    return max(1 - accuracy, 1e-4)


def _final_errors(row: Row) -> list[float]:
    return [_error(accuracy) for accuracy in row["accuracies"]]


def _labels(axes: Axes, points: Sequence[tuple[float, float, str]], inches: float) -> None:
    """Names beside points of logarithmic axes, moved apart where they would overlap. inches: of their height."""
    low, high = map(log10, axes.get_ylim())
    step = (high - low) * LABEL_INCHES / inches
    placed: list[tuple[float, float]] = []
    for bits, value, name in sorted(points, key=lambda point: (-point[1], point[0])):
        at = log10(value)
        while any(abs(at - other) < step and 0.4 < bits / where < 2.5 for where, other in placed):
            at -= step / 4
        placed.append((bits, at))
        axes.annotate(
            name,
            (bits, value),
            (bits * 1.06, 10**at),
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.6} if at < log10(value) - step else None,
        )
    axes.set_ylim(10 ** min([low, *(at - step for _, at in placed)]), 10**high)


def curves(document: dict[str, Any]) -> Figure | None:
    """Accuracy over training, the mean of seeds: of those that end as high as float32 does, and of the others."""
    chosen_place = _first(document, lambda row: bool(row["curve"]))
    if chosen_place is None:
        return None
    (workload, workers), rows = chosen_place
    figure, panels = figure_kit.stacked([2.8, 2.8 + 0.1 * len(rows)], WIDTH, sharex=True)
    plain = [row for row in rows if row["codec"] == FLOAT32]
    within = [row for row in rows if row["points"] is not None and row["points"] >= -CLOSE and row not in plain]
    beyond = [row for row in rows if row not in within and row not in plain]
    titles = (f"within {CLOSE:g} points of float32", f"more than {CLOSE:g} points below")
    for axes, chosen, title in zip(panels, (within, beyond), titles, strict=True):
        for row in plain:
            at, low, high = _columns(row["curve"], 0, 2, 3)
            axes.fill_between(at, low, high, color="#DDDDDD", label="seeds of float32")
        for row in chosen:
            number = rows.index(row)
            colour, style = _colours(rows)[number], LINESTYLES[number % len(LINESTYLES)]
            points = _columns(row["curve"], 0, 1)
            axes.plot(*points, color=colour, linestyle=style, linewidth=1.5, label=short(row["codec"]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(ylabel="held-out accuracy", title=f"{title}: {workload}, n = {workers}")
    panels[-1].set_xlabel("iteration")
    _legend(figure, panels)
    return figure


def _columns(points: Sequence[Sequence[float]], *columns: int) -> list[list[float]]:
    return [[point[column] for point in points] for column in columns]


def error(document: dict[str, Any]) -> Figure | None:
    """Relative squared error over training: of a worker, and of the mean."""
    with_errors = [
        (place, [row for row in rows if any(point[2] for point in row["errors"])]) for place, rows in places(document)
    ]
    with_errors = [(place, rows) for place, rows in with_errors if rows]
    if not with_errors:
        return None
    (workload, workers), rows = with_errors[0]
    figure, (left, right) = figure_kit.stacked([2.8, 2.8 + 0.1 * len(rows)], WIDTH, sharex=True)
    for number, (colour, row) in enumerate(zip(_colours(rows), rows, strict=True)):
        for axes, place in ((left, 1), (right, 2)):
            points = [(point[0], point[place]) for point in row["errors"] if point[place]]
            if points:
                look = {
                    "color": colour,
                    "linestyle": LINESTYLES[number % len(LINESTYLES)],
                    "label": short(row["codec"]),
                }
                axes.plot(*zip(*points, strict=True), linewidth=1.5, **look)
    for axes, title in ((left, "of a worker's codes"), (right, "of the sum")):
        axes.set(yscale="log", ylabel="relative squared error", title=f"{title}: {workload}, n = {workers}")
    right.set_xlabel("iteration")
    _legend(figure, (left, right))
    return figure


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One of all panels."""
    names = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure_kit.legend_above(figure, list(names.values()), list(names))


def time_to_accuracy(document: dict[str, Any]) -> Figure | None:
    """Bars by codec, fastest first; a panel for each line rate."""
    chosen_place = _first(document, lambda row: bool(row["time_s"]))
    if chosen_place is None:
        return None
    (workload, workers), rows = chosen_place
    rates = document["line_rates_bps"]
    figure, panels = figure_kit.stacked([0.8 + 0.27 * len(rows)] * len(rates), WIDTH)
    for axes, line in zip(panels, rates, strict=True):
        timed = sorted(rows, key=lambda row: -float(row["time_s"][str(line)]))
        left = [0.0] * len(timed)
        for name, colour in PARTS.items():
            values = [row["time_parts"][str(line)][name] for row in timed]
            axes.barh([short(row["codec"]) for row in timed], values, left=left, color=colour, label=name)
            left = [low + value for low, value in zip(left, values, strict=True)]
        axes.set(title=f"{workload}, n = {workers}, {rate_text(line)}")
        axes.tick_params(axis="y", labelsize=9)
    panels[-1].set_xlabel("seconds to the 16-bit accuracy (model)")
    _legend(figure, panels[-1:])
    return figure


def _first(document: dict[str, Any], wanted: Callable[[Row], bool]) -> tuple[Place, list[Row]] | None:
    """The first place that has such rows, and those."""
    chosen = ((place, [row for row in rows if wanted(row)]) for place, rows in places(document))
    return next((choice for choice in chosen if choice[1]), None)


def _colours(rows: Sequence[Row]) -> list[Any]:
    palette = colormaps["tab20"]
    return [palette(index % 20) for index in range(len(rows))]


def bits(row: Row) -> float:
    return float(max(row["up_bits"], row["down_bits"]))
