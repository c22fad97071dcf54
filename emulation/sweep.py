"""A sweep: one scenario run with several values of one number; sweep.json, a page and a figure over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from emulation.compare import Comparison
from emulation.errors import RunFailed
from emulation.report import figures, wording
from emulation.results import ratio, write_json
from emulation.scenario import Scenario
from transport.group.method_name import MethodName

SCHEMA = "switchagg-sweep-1"

Row = tuple[str, list[tuple[str, str]]]


def value_of(key: str, scenario: dict[str, Any]) -> int | float:
    """The swept number of a scenario as plain values."""
    table, _, name = key.partition(".")
    value: int | float = scenario[table][name]
    return value


def folders(whole: Scenario, variants: Sequence[Scenario]) -> list[str]:
    """A folder's name per run, like `rate_bps-1000000000`."""
    from emulation.scenario import canonical

    name = whole.sweep.key.partition(".")[2]
    return [f"{name}-{value_of(whole.sweep.key, canonical(variant))}" for variant in variants]


def label(whole: Scenario, variant: Scenario) -> str:
    from emulation.scenario import canonical

    key = whole.sweep.key
    return f"{key} = {value_text(key, value_of(key, canonical(variant)))}"


def values_text(whole: Scenario) -> str:
    return ", ".join(value_text(whole.sweep.key, value) for value in whole.sweep.values)


def value_text(key: str, value: float) -> str:
    """A value with its unit, by the end of its key's name."""
    if key.endswith("_bps"):
        return wording.rate_text(value)
    if key.endswith("_ns"):
        return wording.time_text(value)
    return wording.bytes_text(value) if key.endswith("_bytes") else f"{value:g}"


def own_fifo(method: MethodName, methods: Sequence[MethodName]) -> MethodName | None:
    """What a scheduled method is compared with: itself sending first come, first served (`wfbp`), or as DDP does."""
    if not method.schedule or method.policy == "wfbp":
        return None
    others = (replace(method, schedule=schedule) for schedule in ("wfbp", ""))
    return next((other for other in others if other in methods), None)


def build(whole: Scenario, runs: Sequence[Comparison]) -> dict[str, Any]:
    """What sweep.json holds: per run, per method, the summary and the speed-ups. Pure."""
    built = []
    for done in runs:
        document = done.document
        summaries = {entry["method"]: entry["summary"] for entry in document["methods"]}
        methods = {}
        for entry in document["methods"]:
            fifo = own_fifo(entry["method"], list(summaries))
            iteration = entry["summary"]["iteration_ns"]["median"]
            methods[entry["method"]] = {
                "summary": entry["summary"],
                "comparison": entry["comparison"],
                "fifo": fifo,
                "speedup_over_fifo": ratio(summaries[fifo]["iteration_ns"]["median"], iteration) if fifo else None,
            }
        value = value_of(whole.sweep.key, document["scenario"])
        built.append({"value": value, "folder": done.folder.name, "valid": document["valid"], "methods": methods})
    first = runs[0].document
    return {
        "schema": SCHEMA,
        "name": whole.name,
        "title": whole.title,
        "backend": first["backend"],
        "baseline": first["baseline"],
        "key": whole.sweep.key,
        "methods": [entry["method"] for entry in first["methods"]],
        "runs": built,
    }


def write(whole: Scenario, runs: Sequence[Comparison], folder: Path) -> tuple[dict[str, Any], Path]:
    """Writes sweep.json, sweep.html and a PNG per figure; returns the document and the page's path."""
    document = build(whole, runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "sweep.json", document)
        drawn = draw(document)
        for name, figure in drawn.items():
            figures.save_png(figure, folder / f"{name}.png")
        page = folder / "sweep.html"
        page.write_text(_render(document, drawn), encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error
    return document, page


def table(document: dict[str, Any]) -> tuple[list[str], list[Row]]:
    """Heads, and a row per method: the median iteration at each value, and its speed-ups below."""
    runs = document["runs"]
    heads = ["Iteration time", *(value_text(document["key"], run["value"]) for run in runs)]
    names = wording.short_names(document["methods"])
    rows = [
        (names[method], [_cell(run["methods"][method], method == document["baseline"]) for run in runs])
        for method in document["methods"]
    ]
    return heads, rows


def _cell(entry: dict[str, Any], is_baseline: bool) -> tuple[str, str]:
    time = wording.time_text(entry["summary"]["iteration_ns"]["median"])
    notes = []
    if entry["comparison"] is not None:
        notes.append(wording.times_text(entry["comparison"]["iteration_speedup"]))
    elif is_baseline:
        notes.append("baseline")
    if entry["speedup_over_fifo"] is not None:
        notes.append(f"{wording.times_text(entry['speedup_over_fifo'])} over FIFO")
    return time, ", ".join(notes)


def headline(document: dict[str, Any]) -> str:
    """The largest speed-up over the baseline, and the largest of a schedule over the same method without it."""
    key = document["key"]
    text = []
    compared = [
        (entry["comparison"]["iteration_speedup"], method, run["value"])
        for run in document["runs"]
        for method, entry in run["methods"].items()
        if entry["comparison"] is not None and entry["comparison"]["iteration_speedup"] is not None
    ]
    if compared:
        speedup, method, value = max(compared, key=_order)
        baseline = wording.in_text(document["baseline"])
        text.append(
            f"The largest speed-up of an iteration over {baseline} was {speedup:.2f}×, with {wording.in_text(method)} "  # noqa: RUF001
            f"at {key} = {value_text(key, value)}."
        )
    scheduled = [
        (entry["speedup_over_fifo"], method, entry["fifo"], run["value"])
        for run in document["runs"]
        for method, entry in run["methods"].items()
        if entry["speedup_over_fifo"] is not None
    ]
    if scheduled:
        speedup, method, fifo, value = max(scheduled, key=_order)
        text.append(
            f"The largest gain of a schedule was {speedup:.2f}×: {wording.in_text(method)} over "  # noqa: RUF001
            f"{wording.in_text(fifo)} at {key} = {value_text(key, value)}."
        )
    return " ".join(text) or f"{len(document['runs'])} runs of {document['title']}."


def _order(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """By speed-up; among equals always the same."""
    return (found[0], *map(str, found[1:-1]), found[-1])


def draw(document: dict[str, Any]) -> dict[str, Figure]:
    """`sweep`: median iteration and speed-up over the baseline against the swept number."""
    with matplotlib.rc_context(figures.STYLE):
        return {"sweep": _figure(document)}


def _figure(document: dict[str, Any]) -> Figure:
    runs, key, baseline = document["runs"], document["key"], document["baseline"]
    figure = Figure(figsize=(9, 3.6 + 0.16 * len(document["methods"])), layout="constrained")
    left, right = figure.subplots(1, 2)
    values = [run["value"] for run in runs]
    looks = figures.looks({"methods": [{"method": method} for method in document["methods"]]})
    for method in document["methods"]:
        spreads = [run["methods"][method]["summary"]["iteration_ns"] for run in runs]
        medians = [spread["median"] / 1e6 for spread in spreads]
        left.plot(values, medians, marker="o", markersize=3.5, linewidth=1.6, **looks[method])
        if document["backend"] == "mininet":  # virtual time has no spread worth the name
            low, high = ([spread[name] / 1e6 for spread in spreads] for name in ("p10", "p90"))
            left.fill_between(values, low, high, color=looks[method]["color"], alpha=0.10, linewidth=0)
        if baseline is not None:
            base = [run["methods"][baseline]["summary"]["iteration_ns"]["median"] / 1e6 for run in runs]
            ratios = [low / high for low, high in zip(base, medians, strict=True)]
            right.plot(values, ratios, marker="o", markersize=3.5, linewidth=1.6, **looks[method])
    left.set(ylabel="ms", title="Median iteration")
    left.set_yscale("log")
    right.set(ylabel="speed-up of an iteration", title=f"Over {wording.in_text(baseline)}" if baseline else "")
    for axes in (left, right):
        axes.set_xscale("log" if min(values) > 0 else "linear")
        axes.set_xticks(values)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: value_text(key, value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", labelrotation=30)
        axes.set_xlabel(key)
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _render(document: dict[str, Any], drawn: dict[str, Figure]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "report" / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    heads, rows = table(document)
    svgs = {name: Markup(figures.inline_svg(figure, name)) for name, figure in drawn.items()}
    return environment.get_template("sweep.html.j2").render(
        sweep=document, heads=heads, rows=rows, headline=headline(document), figures=svgs, words=wording
    )
