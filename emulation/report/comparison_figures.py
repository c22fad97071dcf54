"""Figures of a comparison, drawn from the results document alone.

Each method has one colour in every figure (Okabe and Ito's palette first, told apart with any colour vision) and one
line style, so that a black-and-white print can be read too. A method that runs over several links or with several
schedules keeps its colour and changes its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, PercentFormatter

from emulation.report import figure_kit, link_sharing, wording
from emulation.report.figure_kit import LINESTYLES
from emulation.report.svg import INK, ON_DARK, ON_LIGHT, PAPER, QUIET, WIDTH, tip, tips
from emulation.report.topology_figure import topology_figure
from emulation.report.wording import bytes_text, name_of, percent_text, short_names, time_text
from emulation.results.results import percentile
from emulation.results.timeline import COMPUTE, NETWORK, WAITS, Span, nearest_median, of_one_iteration
from emulation.scenario.scenario import Scenario
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES
from transport.group.method_name import METHODS, MethodName

LINES_MOST = 8  # methods in one plot of lines, panels in a timeline: the fastest
TIPS_MOST = 32  # of a line
_COMPUTE_COLOUR = QUIET
_BOUND_COLOUR = INK


def draw_all(built: dict[str, Any], timelines: Mapping[MethodName, Sequence[Span]] | None = None) -> dict[str, Figure]:
    """Figures by name, in the order of the report. `fidelity` only where certificates hold gap measurements.

    timelines: spans by method; `timeline` is drawn if there are any.
    """
    return figure_kit.draw(
        {
            "topology": lambda: topology(built),
            "loads": lambda: link_sharing.loads(built),
            "shares": lambda: link_sharing.shares(built),
            "jobs": lambda: link_sharing.jobs(built),
            "training": lambda: training(built),
            "breakdown": lambda: breakdown(built),
            "matrix": lambda: matrix(built),
            "timeline": lambda: timeline(built, timelines or {}),
            "iterations": lambda: iterations(built),
            "wire": lambda: wire(built),
            "fidelity": lambda: fidelity(built),
        }
    )


def looks(built: dict[str, Any]) -> dict[MethodName, dict[str, Any]]:
    """Colour, line style and label of each method of a document. Host methods without a twin are dashed."""
    seen: dict[str, int] = {}
    styles = {}
    names = short_names([entry["method"] for entry in built["methods"]])
    for entry in built["methods"]:
        method = entry["method"]
        base = method.method
        turn = seen.get(base, 0)
        seen[base] = turn + 1
        style = LINESTYLES[(turn + (base in ("gloo", "ring"))) % len(LINESTYLES)]
        styles[method] = {"color": method.look.colour, "linestyle": style, "label": names[method]}
    return styles


def _smooth(values: list[float | None], span: int) -> list[float]:
    """Mean over the last `span` values that exist."""
    smoothed = []
    for end in range(1, len(values) + 1):
        present = [value for value in values[max(0, end - span) : end] if value is not None]
        smoothed.append(sum(present) / len(present) if present else float("nan"))
    return smoothed


def topology(built: dict[str, Any]) -> Figure | None:
    """Nodes and links; none for the usual topology."""
    scenario: Scenario = built["scenario"]
    return topology_figure(scenario, built) if TOPOLOGIES[scenario.topology.kind].summary else None


def training(built: dict[str, Any]) -> Figure | None:
    """Training loss and test accuracy against time; none where nothing is trained."""
    if wording.replayed(built):
        return None
    figure, (left, right) = figure_kit.stacked([2.4, 2.4], WIDTH, sharex=True)
    styles = looks(built)
    last_ns = max(entry["summary"]["training_ns"] for entry in built["methods"])
    size, unit = (1e9, "s") if last_ns >= 1e9 else (1e6, "ms")
    for entry in fastest(built):
        method = entry["method"]
        look = styles[method]
        times = [(record["start_ns"] + record["duration_ns"]) / size for record in entry["iterations"]]
        losses = [record["loss"] for record in entry["iterations"]]
        left.plot(times, losses, color=look["color"], alpha=0.25, linewidth=0.8)
        smooth = _smooth(losses, 10)
        left.plot(times, smooth, linewidth=1.8, **look)
        marks = range(0, len(times), 1 + len(times) // TIPS_MOST)
        tips(
            left,
            [(times[at], smooth[at]) for at in marks],
            [f"{look['label']}, {times[at]:.3g} {unit}, iteration {at}: loss {smooth[at]:.3g}" for at in marks],
        )
        points = [(e["time_ns"] / size, e["accuracy"]) for e in entry["evaluations"] if e["accuracy"] is not None]
        if points:
            right.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.8, **look)
            tips(right, points, [f"{look['label']}, {at:.3g} {unit}: {percent_text(share, 2)}" for at, share in points])
    left.set(ylabel="training loss", xlim=(0, None), ylim=(0, None))
    right.set(xlabel=f"training time ({unit})", ylabel="test accuracy")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure_kit.legend_above(figure, *left.get_legend_handles_labels())
    return figure


def fastest(built: dict[str, Any]) -> list[dict[str, Any]]:
    """The methods that fit a plot of lines, in their order: all, or the baseline and the fastest."""
    entries = built["methods"]
    if len(entries) <= LINES_MOST:
        return list(entries)
    ranked = sorted(entries, key=lambda e: (e["method"] != built["baseline"], e["summary"]["iteration_ns"]["median"]))
    chosen = [entry["method"] for entry in ranked[:LINES_MOST]]
    return [entry for entry in entries if entry["method"] in chosen]


def counted(built: dict[str, Any], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """A method's iterations after the warm-up."""
    warmup = built["scenario"].workload.warmup_iterations
    return [record for record in entry["iterations"] if record["iteration"] >= warmup]


def matrix(built: dict[str, Any]) -> Figure | None:
    """Median communication of each method (rows) over each link (columns), where several links were compared."""
    cells: dict[tuple[str, str], float] = {}
    for entry in built["methods"]:
        name: MethodName = entry["method"]
        row = name_of(replace(name, link=METHODS[name.method].link))
        cells[row, name.link or "its own TCP"] = entry["summary"]["communication_ns"]["median"]
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    if built["backend"] == "sim" or len(columns) < 3 or len(cells) == len(rows):
        return None
    figure, ((axes,),) = figure_kit.grid(WIDTH, 1.2 + 0.42 * len(rows))
    low, high = min(cells.values()), max(cells.values())
    for (row, column), time_ns in cells.items():
        share = (time_ns - low) / (high - low) if high > low else 0.0
        place = (columns.index(column), rows.index(row))
        cell = axes.add_patch(
            Rectangle(place, 1, 1, facecolor=colormaps["YlGnBu"](0.08 + 0.72 * share), edgecolor=PAPER)
        )
        tip(cell, f"{row}, {column}: {time_text(time_ns)}")
        colour = ON_DARK if share > 0.6 else ON_LIGHT
        axes.text(place[0] + 0.5, place[1] + 0.5, time_text(time_ns), ha="center", va="center", color=colour)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([place + 0.5 for place in range(len(columns))], columns)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    return figure


def breakdown(built: dict[str, Any]) -> Figure:
    """Median iteration: computing, then waiting for the communication that computing did not hide."""
    methods = built["methods"]
    names = short_names([entry["method"] for entry in methods])
    figure, ((axes,),) = figure_kit.grid(WIDTH, 0.9 + 0.55 * len(methods))
    longest = max(entry["summary"]["iteration_ns"]["median"] for entry in methods)
    size, unit = (1e9, "s") if longest >= 2e9 else (1e6, "ms")
    for row, entry in enumerate(methods):
        numbers = entry["summary"]
        compute = numbers["compute_ns"]["median"] / size
        exposed = numbers["exposed_communication_ns"]["median"] / size
        colour = entry["method"].look.colour
        parts = (
            *axes.barh(row, compute, height=0.6, color=_COMPUTE_COLOUR, label="computing" if row == 0 else None),
            *axes.barh(row, exposed, left=compute, height=0.6, color=colour, hatch="//", edgecolor=PAPER, linewidth=0),
        )
        of_parts = (("computing", "compute_ns"), ("waiting for communication", "exposed_communication_ns"))
        for part, (what, key) in zip(parts, of_parts, strict=True):
            tip(part, f"{names[entry['method']]}: {what} {time_text(numbers[key]['median'])}")
        total = time_text(numbers["iteration_ns"]["median"])
        axes.text(compute + exposed, row, f"  {total}", va="center", ha="left")
    axes.barh(0, 0, color=PAPER, hatch="////", edgecolor="#555555", label="waiting for communication")
    figure_kit.bar_labels(axes, names.values())
    axes.set_xlim(0, longest / size * 1.14)
    axes.set(xlabel=f"one iteration, median ({unit})")
    figure_kit.legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def iterations(built: dict[str, Any]) -> Figure:
    """Share of iterations that took at most so long; warm-up left out."""
    figure, ((axes,),) = figure_kit.grid(WIDTH, 3.0 + 0.12 * len(built["methods"]))
    styles = looks(built)
    durations = {
        entry["method"]: sorted(record["duration_ns"] for record in counted(built, entry)) for entry in fastest(built)
    }
    size, unit = (1e9, "s") if max(values[-1] for values in durations.values()) >= 2e9 else (1e6, "ms")
    for method, values in durations.items():
        times = [value / size for value in values]
        shares = [(index + 1) / len(times) for index in range(len(times))]
        median = percentile(times, 0.5)
        axes.step(
            [times[0], *times],
            [0.0, *shares],
            where="post",
            linewidth=1.8,
            **{**styles[method], "label": f"{styles[method]['label']} (median {time_text(median * size)})"},
        )
        axes.plot([median], [0.5], marker="o", markersize=5, color=styles[method]["color"])
        marks = [(percentile(times, share), share) for share in (0.1, 0.5, 0.9)]
        label = styles[method]["label"]
        tips(axes, marks, [f"{label}: {share:.0%} of iterations within {time_text(at * size)}" for at, share in marks])
    axes.set_ylim(0, 1.02)
    axes.set(xlabel=f"iteration time ({unit})", ylabel="share of iterations")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure_kit.legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def timeline(built: dict[str, Any], timelines: Mapping[MethodName, Sequence[Span]]) -> Figure | None:
    """Rank 0 in each method's median iteration, a panel per method on one scale of time: what it computes, and its
    transfers below. The median is of times on the slowest rank, after the warm-up."""
    names = short_names([entry["method"] for entry in built["methods"]])
    chosen, titles = {}, {}
    for entry in fastest(built):
        method, spans = entry["method"], timelines.get(entry["method"], [])
        numbers = {record["iteration"]: record["duration_ns"] for record in counted(built, entry)}
        number = nearest_median(numbers, {span.iteration for span in spans if span.rank == 0})
        if number is not None:
            chosen[method] = of_one_iteration(spans, number)
            middle = time_text(entry["summary"]["iteration_ns"]["median"])
            titles[method] = f"{names[method]}: iteration {number}, {time_text(numbers[number])} (median {middle})"
    if not chosen:
        return None
    panel_methods = list(chosen)
    figure, panels = figure_kit.stacked([1.25 + 0.6 / len(chosen)] * len(chosen), WIDTH, sharex=True)
    longest = max((span.end_ns for spans in chosen.values() for span in spans), default=1)
    size, unit = (1e9, "s") if longest >= 2e9 else (1e6, "ms")
    for axes, method in zip(panels, panel_methods, strict=True):
        _panel(axes, chosen[method], method.look.colour, size, longest / size)
        axes.set_title(titles[method], loc="left", fontsize=9)
        axes.set_yticks([])
        axes.set_xlim(0, longest / size * 1.02)
    panels[-1].set_xlabel(f"time since the iteration began ({unit})")
    return figure


def _panel(axes: Axes, spans: Sequence[Span], colour: str, size: float, width: float) -> None:
    """Transfers lie in as many rows as overlap, computing above. size: of a unit, in ns; width: in units."""
    transfers = sorted((span for span in spans if span.track == NETWORK), key=lambda span: span.start_ns)
    priorities = sorted({span.priority for span in transfers if span.priority is not None})
    rows: list[int] = []  # when each row is free
    for span in transfers:
        row = next((row for row, free_ns in enumerate(rows) if free_ns <= span.start_ns), len(rows))
        rows[row:] = [span.end_ns, *rows[row + 1 :]]
        alpha = 0.85
        if span.priority is not None and len(priorities) > 1:
            alpha = 1.0 - 0.75 * priorities.index(span.priority) / (len(priorities) - 1)
        bars = axes.barh(row + 0.5, (span.end_ns - span.start_ns) / size, left=span.start_ns / size, height=0.86,
                         color=colour, alpha=alpha, edgecolor=PAPER, linewidth=0.3)  # fmt: skip
        size_text = f", {bytes_text(span.size_bytes)}" if span.size_bytes else ""
        tip(bars[0], f"{_span_text(span)}{size_text}")
    height = max(1.0, 0.25 * len(rows))
    for span in (span for span in spans if span.track == COMPUTE):
        begin, length = span.start_ns / size, (span.end_ns - span.start_ns) / size
        waits = span.name.startswith(WAITS)
        look: dict[str, Any] = {"color": "#F4F4F4", "hatch": "////"} if waits else {"color": QUIET}
        bars = axes.barh(-0.6 * height, length, left=begin, height=0.9 * height, edgecolor=QUIET if waits else PAPER,
                         linewidth=0 if waits else 0.6, **look)  # fmt: skip
        tip(bars[0], _span_text(span))
        if length > 0.1 * width and not waits:
            axes.text(begin + length / 2, -0.6 * height, span.name, ha="center", va="center", fontsize=9)
    axes.set_ylim(len(rows) + 0.2, -1.2 * height)
    axes.grid(axis="y", visible=False)


def _span_text(span: Span) -> str:
    length, start = time_text(span.end_ns - span.start_ns), time_text(span.start_ns)
    return f"{span.name}: {length}, from {start} on"


def wire(built: dict[str, Any]) -> Figure:
    """Bytes sent and received per rank and iteration, against the bound."""
    methods = built["methods"]
    names = short_names([entry["method"] for entry in methods])
    figure, ((axes,),) = figure_kit.grid(WIDTH, 1.2 + 0.75 * len(methods))
    largest = 0.0
    for row, entry in enumerate(methods):
        numbers = entry["summary"]
        name = names[entry["method"]]
        tx, rx = numbers["wire_tx_bytes_per_rank_iteration"], numbers["wire_rx_bytes_per_rank_iteration"]
        least = numbers["bound"]["wire_bytes_per_rank"]
        least_received = numbers["bound"].get("wire_rx_bytes_per_rank", least)
        largest = max(largest, tx, rx, least, least_received)
        for offset, value, what, alpha in ((-0.2, tx, "sent", 1.0), (0.2, rx, "received", 0.55)):
            bars = axes.barh(row + offset, value / 1e6, height=0.36, color=entry["method"].look.colour, alpha=alpha)
            bound = bytes_text(least if what == "sent" else least_received)
            tip(bars[0], f"{name}: {what} {bytes_text(value)}, bound {bound}")
            axes.text(value / 1e6, row + offset, f"   {what} {bytes_text(value)}", va="center", ha="left")
        label = "bound: the least that the method must move" if row == 0 else ""
        ends = ([row - 0.45, row], [row, row + 0.45])
        axes.vlines([least / 1e6, least_received / 1e6], *ends, color=_BOUND_COLOUR, linewidth=2, label=label)
    figure_kit.bar_labels(axes, names.values())
    axes.set_xlim(0, max(largest, 1.0) / 1e6 * 1.32)
    axes.set(xlabel="MB per rank and iteration")
    figure_kit.legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def fidelity(built: dict[str, Any]) -> Figure | None:
    """How far departure gaps were off the ideal link: complementary distribution, each method, and the bounds."""
    figure, ((axes,),) = figure_kit.grid(WIDTH, 3.0)
    styles = looks(built)
    limits: set[tuple[float, float]] = set()
    for entry in fastest(built):
        certificate = entry["certificate"] or {"measures": {}, "bounds": {}}
        points = [(x, y) for x, y in certificate["measures"].get("gap_deviation_curve", []) if y > 0]
        if not points:
            continue
        method = entry["method"]
        look = styles[method]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.8, **look)
        tips(axes, points, [f"{look['label']}: {y:.2%} of bytes off by more than {x:.1%}" for x, y in points])
        for name, share in (("gap_deviation_median", 0.5), ("gap_deviation_p90", 0.1)):
            if name in certificate["bounds"]:
                limits.add((certificate["bounds"][name], share))
    if not axes.lines:
        return None
    for index, (deviation, share) in enumerate(sorted(limits)):
        label = "bound: the line must pass to the left" if index == 0 else None
        axes.plot([deviation], [share], marker="X", markersize=9, linestyle="", color=_BOUND_COLOUR, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-5, 1.5)
    axes.set(xlabel="deviation of a departure gap from size / rate", ylabel="share of bytes above")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    axes.legend(loc="lower left")
    return figure
