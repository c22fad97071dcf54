"""The output of a sweep: sweep.json, sweep.html and a figure, drawn from one document.

The first axis runs along a table's columns and a figure's x axis; for each combination of the others there is a table
and a pair of plots of their own. Seeds are no axis here: medians are over them, bands from the least to the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from emulation.experiments.cells import point_text, value_text, values_text
from emulation.report import comparison_figures, figure_kit, wording
from emulation.report.comparison_report import verdict_stamp
from emulation.report.page_kit import Section, opening, part, render, text
from emulation.report.page_kit import figure as figure_part
from emulation.report.svg import WIDTH, tips
from emulation.report.table_kit import Row
from emulation.results.results import write_json
from emulation.results.speedups import VALID, ratio, resolved, worst
from emulation.results.whole_file import write_text
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.scenario.sweep_axes import SEED, Point, Value
from transport.group.method_name import MethodName

SCHEMA = "switchagg-sweep-3"
PANELS_MOST = 12
"""Pairs of plots; tables have all."""


def own_fifo(method: MethodName, methods: Sequence[MethodName]) -> MethodName | None:
    """The method with which a scheduled method is compared: the same method that sends first come, first served
    (`wfbp`), or as DDP does."""
    if not method.schedule or method.policy == "wfbp":
        return None
    candidates = (replace(method, schedule=schedule) for schedule in ("wfbp", ""))
    return next((other for other in candidates if other in methods), None)


def of_run(point: Point, built: dict[str, Any], folder: str) -> dict[str, Any]:
    """A run's part of the document. built: what its results.json holds; folder: of its report, "" without."""
    summaries = {entry["method"]: entry["summary"] for entry in built["methods"]}
    methods = {}
    for entry in built["methods"]:
        fifo = own_fifo(entry["method"], list(summaries))
        iteration = entry["summary"]["iteration_ns"]["median"]
        methods[entry["method"]] = {
            "summary": entry["summary"],
            "comparison": entry["comparison"],
            "fifo": fifo,
            "speedup_over_fifo": ratio(summaries[fifo]["iteration_ns"]["median"], iteration) if fifo else None,
        }
    return {
        "point": point,
        "folder": folder,
        "verdict": built["verdict"],
        "finding": built["finding"],
        "methods": methods,
    }


def build(scenario: Scenario, backend: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of sweep.json: the axes, and per run, per method, the summary and the speed-ups. Pure."""
    return {
        "schema": SCHEMA,
        "name": scenario.name,
        "title": scenario.title,
        "backend": backend,
        "baseline": scenario.baseline_for(backend),
        "axes": scenario.sweep.groups,
        "methods": list(scenario.methods_for(backend)),
        "runs": list(runs),
    }


def write(document: dict[str, Any], folder: Path) -> Path:
    """Writes sweep.json, sweep.html and a PNG per figure; returns the page's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "sweep.json", document)
        drawn = figure_kit.draw({"sweep": lambda: figure(document)})
        figure_kit.write(drawn, folder)
        page = folder / "sweep.html"
        write_text(page, _render(document, drawn))
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error
    return page


# ---- runs of several seeds as one


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in the seed alone. x: its point of the first axis."""

    x: Point
    runs: list[dict[str, Any]]

    def of(self, method: MethodName) -> list[dict[str, Any]]:
        """A method's part of each run that has it."""
        return [run["methods"][method] for run in self.runs if method in run["methods"]]

    def iterations_ns(self, method: MethodName) -> tuple[float, float, float] | None:
        """Median, least and most of the seeds' medians; of a single seed the 10th and 90th percentile."""
        spreads = [entry["summary"]["iteration_ns"] for entry in self.of(method)]
        if not spreads:
            return None
        if len(spreads) == 1:
            return spreads[0]["median"], spreads[0]["p10"], spreads[0]["p90"]
        medians = [spread["median"] for spread in spreads]
        return median(medians), min(medians), max(medians)

    def speedup(self, method: MethodName) -> float | None:
        """The speed-up of an iteration over the baseline, as it may be quoted."""
        return _median(entry["comparison"] and entry["comparison"]["headline"]["speedup"] for entry in self.of(method))

    @property
    def limit(self) -> float | None:
        """The limit of every method's speed-up of an iteration over the baseline: communication is free."""
        comparisons = [
            entry["comparison"] for run in self.runs for entry in run["methods"].values() if entry["comparison"]
        ]
        return _median(entry["headline"]["limit"] for entry in comparisons)

    @property
    def finding(self) -> tuple[float, MethodName, MethodName, float | None] | None:
        """The speed-up of the runs' finding, its method, what that is over, its limit; None if all are within noise."""
        findings = [run["finding"] for run in self.runs if run["finding"]]
        pairs = [(finding["method"], finding["over"]) for finding in findings]
        headlines = [finding["comparison"]["headline"] for finding in findings]
        quoted = [headline for headline, pair in zip(headlines, pairs, strict=True) if pair == pairs[0]]
        speedup = _median(headline["speedup"] for headline in quoted)
        if speedup is None or not any(resolved(headline["interval"]) for headline in quoted):
            return None
        return speedup, *pairs[0], _median(headline["limit"] for headline in quoted)

    def unresolved(self, method: MethodName) -> bool:
        """Whether no run's speed-up differs from 1 beyond noise."""
        compared = [entry["comparison"]["headline"] for entry in self.of(method) if entry["comparison"]]
        return not any(resolved(quoted["interval"]) for quoted in compared)

    def over_fifo(self, method: MethodName) -> tuple[float, MethodName] | None:
        """The speed-up over the same method that sends first come, first served, and that."""
        entries = self.of(method)
        speedup = _median(entry["speedup_over_fifo"] for entry in entries)
        return None if speedup is None else (speedup, entries[0]["fifo"])


def _median(values: Any) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def facets(document: dict[str, Any]) -> list[tuple[Point, list[SeedGroup]]]:
    """For each combination of all axes but the first, its point and the places along the first."""
    axes = [group for group in document["axes"] if list(group[0]) != [SEED]]
    first = list(axes[0][0]) if axes else []
    groups: dict[str, tuple[Point, dict[str, SeedGroup]]] = {}
    for run in document["runs"]:
        x = {key: run["point"][key] for key in first}
        rest = {key: value for key, value in run["point"].items() if key not in first and key != SEED}
        _, places = groups.setdefault(repr(rest), (rest, {}))
        places.setdefault(repr(x), SeedGroup(x, [])).runs.append(run)
    return [(rest, list(places.values())) for rest, places in groups.values()]


def tables(document: dict[str, Any]) -> list[tuple[str, list[str], list[Row], list[SeedGroup]]]:
    """Per facet: its title ("" of a single one), heads, a row per method, and the places: the median iteration at each,
    and its speed-ups below."""
    names = wording.short_names(document["methods"])
    return [
        (
            point_text(point),
            ["Iteration time", *(values_text(place.x) for place in places)],
            [
                (names[method], [_cell(place, method, method == document["baseline"]) for place in places])
                for method in document["methods"]
            ],
            places,
        )
        for point, places in facets(document)
    ]


def _cell(place: SeedGroup, method: MethodName, is_baseline: bool) -> tuple[str, str]:
    times = place.iterations_ns(method)
    if times is None:
        return "", "failed"
    notes = ["baseline"] if is_baseline else []
    if is_baseline and (limit := place.limit) is not None:
        notes.append(f"limit {wording.times_text(limit)}")
    if (speedup := place.speedup(method)) is not None:
        notes.append(wording.times_text(speedup))
        notes += ["no difference beyond noise"] if place.unresolved(method) else []
    elif not is_baseline and any(entry["comparison"] for entry in place.of(method)):
        notes.append("speed-up unclear")
    if (over := place.over_fifo(method)) is not None:
        notes.append(f"{wording.times_text(over[0])} over FIFO")
    low, high = (wording.time_text(time) for time in times[1:])
    if len(place.runs) > 1 and low != high:
        notes.append(f"{low} … {high}")
    return wording.time_text(times[0]), ", ".join(notes)


def headline(document: dict[str, Any]) -> str:
    """The largest speed-up of all runs' findings, and the largest of a schedule over the same method without it."""
    gains = [
        (place, method, point_text({**place.x, **rest}))
        for rest, places in facets(document)
        for place in places
        for method in document["methods"]
    ]
    text = []
    findings = [
        (*finding, at, place.speedup(method))
        for place, method, at in gains
        if (finding := place.finding) is not None and method == finding[1]
    ]
    if findings:
        speedup, method, best, limit, at, over_baseline = max(findings, key=_order)
        baseline = wording.in_text(document["baseline"])
        without = ", the fastest method without a switch there," * (best != document["baseline"])
        text.append(
            f"The largest speed-up of an iteration over {wording.in_text(best)}{without} was {speedup:.2f}×, with "  # noqa: RUF001
            f"{wording.in_text(method)} at {at}."
        )
        text[0] = text[0].replace(" at .", ".")
        text += [f"Its limit there, if communication were free, is {limit:.2f}×."] if limit else []  # noqa: RUF001
        text += [f"Over {baseline} it was {wording.times_text(over_baseline)}."] if without else []
    scheduled = [(*over, method, at) for place, method, at in gains if (over := place.over_fifo(method)) is not None]
    if scheduled:
        speedup, fifo, method, at = max(scheduled, key=_order)
        text.append(
            f"The largest gain of a schedule was {speedup:.2f}×: {wording.in_text(method)} over "  # noqa: RUF001
            f"{wording.in_text(fifo)} at {at}."
        )
    return " ".join(text).replace(" at .", ".") or f"{len(document['runs'])} runs of {document['title']}."


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """By speed-up; among equals always the same."""
    return (key[0], *map(str, key[1:]))


# ---- figures and HTML


def figure(document: dict[str, Any]) -> Figure:
    """Median iteration and speed-up over the baseline along the first axis, a row of plots for each facet."""
    panels = facets(document)[:PANELS_MOST]
    legend = 0.16 * len(document["methods"])
    drawn, rows = figure_kit.grid(WIDTH, 0.8 + 2.8 * len(panels) + legend, len(panels), 2, sharex=True, sharey="col")
    looks = comparison_figures.looks({"methods": [{"method": method} for method in document["methods"]]})
    for (rest, places), (left, right) in zip(panels, rows, strict=True):
        marks = [next(iter(place.x.items()), ("", "")) for place in places]
        _axis(marks, (left, right))
        at = [mark if _numeric(marks) else number for number, (_, mark) in enumerate(marks)]
        for method in document["methods"]:
            _lines(document, places, at, method, looks[method], (left, right))
        where = f": {point_text(rest)}" if rest else ""
        left.set(ylabel="ms", title=f"Median iteration{where}")
        baseline = document["baseline"]
        right.set(ylabel="speed-up of an iteration", title=f"Over {wording.in_text(baseline)}" if baseline else "")
        left.set_yscale("log")
        figure_kit.decimal_ticks(left.yaxis)
    for axes in rows[-1]:
        axes.set_xlabel(", ".join(panels[0][1][0].x))
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure_kit.legend_above(drawn, handles, labels)
    return drawn


def _numeric(marks: Sequence[tuple[str, Value]]) -> bool:
    return not any(isinstance(value, str) for _, value in marks)


def _axis(marks: Sequence[tuple[str, Value]], panels: Sequence[Any]) -> None:
    """The x axis of both plots: words stand side by side, numbers where they belong."""
    values: list[Any] = [value for _, value in marks]
    for axes in panels:
        axes.tick_params(axis="x", labelrotation=30)
        if not _numeric(marks):
            axes.set_xticks(range(len(values)), values)
            continue
        axes.set_xscale("log" if min(values) > 0 else "linear")
        axes.set_xticks(values)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: value_text(marks[0][0], value)))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _lines(
    document: dict[str, Any],
    places: Sequence[SeedGroup],
    at: Sequence[Any],
    method: MethodName,
    look: dict[str, Any],
    panels: tuple[Any, Any],
) -> None:
    """A method in both plots of a facet."""
    times = [
        (x, iteration_ns) for x, place in zip(at, places, strict=True) if (iteration_ns := place.iterations_ns(method))
    ]
    if not times:
        return
    xs, line = [x for x, _ in times], {"marker": "o", "markersize": 3.5, "linewidth": 1.6, **look}
    middle, low, high = (
        [time / 1e6 for time in column] for column in zip(*(iteration_ns for _, iteration_ns in times), strict=True)
    )
    panels[0].plot(xs, middle, **line)
    names = {x: values_text(place.x) for x, place in zip(at, places, strict=True)}
    tips(
        panels[0],
        zip(xs, middle, strict=True),
        [f"{look['label']}, {names[x]}: {wording.time_text(1e6 * ms)}" for x, ms in zip(xs, middle, strict=True)],
    )
    if document["backend"] == "mininet" or any(len(place.runs) > 1 for place in places):
        # a single run in virtual time has no spread worth the name
        panels[0].fill_between(xs, low, high, color=look["color"], alpha=0.10, linewidth=0)
    if document["baseline"] is not None:
        is_baseline = method == document["baseline"]
        ratios = [(x, 1.0 if is_baseline else place.speedup(method)) for x, place in zip(at, places, strict=True)]
        known = [(x, value) for x, value in ratios if value is not None]
        panels[1].plot(*zip(*known, strict=True), **line)
        tips(panels[1], known, [f"{look['label']}, {names[x]}: {wording.times_text(value)}" for x, value in known])


def _render(document: dict[str, Any], drawn: dict[str, Figure]) -> str:
    panels = tables(document)
    caption = (
        "The left plot has the median time of an iteration, the right one its speed-up. results.csv has every run."
    )
    if len(panels) > PANELS_MOST:
        caption += f" {len(panels) - PANELS_MOST} more combinations are in the tables below."
    parts = []
    for title, heads, rows, places in panels:
        parts += [text(title, tag="h3")] if title else []
        reports = [Markup("<br>").join(map(_report_link, place.runs)) for place in places]
        parts.append(part("table", heads, rows, title or "Iteration time", last=["Report", *reports]))
    baseline = wording.in_text(document["baseline"]) if document["baseline"] else "no baseline"
    note = (
        f"Times are medians over the iterations after the warm-up. Below them stand speed-ups of an iteration over "
        f"{baseline}; the limit is the speed-up if communication were free. A schedule is also compared with the same "
        "method that sends first come, first served (FIFO)."
    )
    stamp = verdict_stamp(worst(run["verdict"] for run in document["runs"]))
    figures = [figure_part(drawing, name, caption) for name, drawing in drawn.items()]
    return render(
        document["title"],
        opening(
            document["title"],
            compared=[text(_compared(document))],
            outcome=[text(headline(document), "lead"), *figures],
            trust=[part("stamp", stamp["kind"], stamp["word"], stamp["text"])],
        ),
        [Section("The numbers", [*parts, text(note, "small")])],
    )


def _compared(document: dict[str, Any]) -> str:
    """Methods and what varies, as a sentence."""
    names = [wording.in_text(method) for method in document["methods"]]
    who = f"{len(names)} methods" if names[4:] else " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    where = "in Mininet, in real time" if document["backend"] == "mininet" else "in virtual time"
    varied = "; ".join(f"{', '.join(group[0])}: {', '.join(map(values_text, group))}" for group in document["axes"])
    return f"{who[0].upper()}{who[1:]} ran {where}, each with every combination of {varied}."


def _report_link(run: dict[str, Any]) -> Markup:
    """Where the report of a run is, and its verdict, unless that is VALID."""
    link = Markup('<a href="{0}/report.html">{0}</a>').format(run["folder"]) if run["folder"] else Markup("–")  # noqa: RUF001
    verdict = run["verdict"]
    return link + Markup(" <strong>{}</strong>").format(verdict) if verdict not in (None, VALID) else link
