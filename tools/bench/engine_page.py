"""The page of `python -m tools.bench engine --docs`: time and memory against events, and all numbers as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from emulation.experiments.bench.document import machine
from emulation.report import figure_kit, page_kit
from tools.bench import packet_engine

PAGE = "engine.md"


def write(part: dict[str, Any], docs: Path) -> list[Path]:
    """Puts both into a folder with a page that has a place for them. Raises RunFailed, OSError."""
    facts, table = machine(), packet_engine.lines(part)
    text = [
        "![Time and memory against events, 4 to 1,024 workers](engine.png)",
        "",
        f"On {facts['cpu_model']}; one core, but for the rows of two threads. {_slopes(part)}",
        "",
        "```",
        *table[table.index("") + 1 :],
        "```",
        "",
    ]
    page_kit.insert_results(docs / PAGE, "python -m tools.bench engine --docs", "\n".join(text))
    return [docs / PAGE, *figure_kit.write(figure_kit.draw({"engine": lambda: figure(part)}), docs)]


def _slopes(part: dict[str, Any]) -> str:
    sentences = []
    for method, rows in _by_method(part).items():
        time, memory = (packet_engine.exponent(rows, name) for name in ("whole_cpu_ns", "memory_bytes"))
        if time is not None and memory is not None:
            sentences.append(f"`{method}`: time grows with events to the power of {time:.2f}, memory {memory:.2f}.")
    return " ".join(sentences)


def _by_method(part: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    rows_by_method: dict[str, list[dict[str, Any]]] = {}
    for row in part["scale"]:
        rows_by_method.setdefault(row["method"], []).append(row)
    return rows_by_method


def figure(part: dict[str, Any]) -> Figure:
    """CPU time and memory of an allreduce of one size against its events, a point for each number of workers."""
    drawn = Figure(figsize=(10, 4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for (method, rows), marker in zip(_by_method(part).items(), "os^D", strict=False):
        events = [row["events"] for row in rows]
        for axes, name, unit in ((left, "whole_cpu_ns", 1e9), (right, "memory_bytes", 1e6)):
            values = [row[name] / unit for row in rows]
            slope = packet_engine.exponent(rows, name)
            label = method if slope is None else f"{method}: events to the power of {slope:.2f}"
            axes.plot(events, values, marker=marker, label=label)
            for row, value in zip(rows, values, strict=True):
                axes.annotate(f" {row['workers']}", (row["events"], value), fontsize=8, va="top")
    for axes, title in ((left, "CPU time of one core, s"), (right, "Memory of the process, MB")):
        axes.set(xscale="log", yscale="log", xlabel="events", title=title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.legend()
    return drawn
