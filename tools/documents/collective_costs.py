"""What each collective takes in virtual time, beside the cost model: docs/results/collectives.md and its figure.

`python -m tools.documents.collective_costs [FOLDER]` writes both in two minutes.
Deterministic: the same on every machine.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from emulation.report.figure_kit import STYLE
from emulation.report.page_kit import insert_results
from emulation.report.table_kit import markdown
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from transport.collectives.collective import LinkCost
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.cost import predict, switch_seconds, textbook
from transport.group.method_name import METHODS as ALL
from transport.group.method_name import host_methods, traffic

RATE_BPS = 1_000_000_000
WORKERS = 8
DELAYS_NS = (1_000_000, 20_000)
SIZES = tuple(256 * 4**step for step in range(9))  # 256 B … 16 MB
FLOATS = "switch, float32"
"""Beside the integers that all others sum: of floats, but for few, a switch agrees on exponents first."""
METHODS = ("switch", FLOATS, *host_methods())
SMALL_BYTES = 4 * 1440
LONG_BYTES = 1 << 20  # beyond, only what sends no more bytes than the ring
ROUTE_WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class CostPoint:
    """One allreduce: seconds measured in virtual time, and predicted."""

    method: str
    workers: int
    size_bytes: int
    delay_ns: int
    measured_s: float
    model_s: float


def point(method: str, workers: int, size_bytes: int, delay_ns: int) -> CostPoint:
    """Measure one: one of METHODS."""
    config = SimulationConfig(workers, LinkConfig(RATE_BPS, delay_ns))
    name, dtype = ("switch", "float32") if method == FLOATS else (method, "int32")
    timing = time_allreduce(config, name, size_bytes, dtype)
    assert timing.wrong_elements == 0
    return CostPoint(
        method, workers, size_bytes, delay_ns, timing.duration_ns / 1e9, model_s(config, method, size_bytes)
    )


def link_cost(config: SimulationConfig) -> LinkCost:
    """α and β of a star of host methods: two links, the last frame once more on the second, TCP's framing."""
    frame_s = 1514 * 8 / config.link.rate_bps
    framing = (1514 + 66 / 2) / (1448 * (1 - HEAD_BYTES / config.message_bytes))
    return LinkCost(
        (2 * config.link.delay_ns + config.switch_latency_ns) / 1e9 + frame_s, 8 / config.link.rate_bps * framing
    )


def model_s(config: SimulationConfig, method: str, size_bytes: int) -> float:
    """What the model predicts."""
    if method in ("switch", FLOATS):
        frame = LinkCost((2 * config.link.delay_ns) / 1e9 + 1502 * 8 / RATE_BPS, 8 / RATE_BPS)
        if method == FLOATS and size_bytes <= SMALL_BYTES:  # in two words, with a head, in one round trip (W16)
            return switch_seconds(2 * size_bytes + 1440, frame, 1502 / 1440)
        exponents_s = switch_seconds(1440, frame, 1502 / 1440) if method == FLOATS else 0.0  # later ones go beside data
        return exponents_s + switch_seconds(size_bytes, frame, 1502 / 1440)
    return predict(method, config.workers, size_bytes, link_cost(config))


def sweep(delay_ns: int) -> list[CostPoint]:
    """All methods over all sizes."""
    return [
        point(method, WORKERS, size_bytes, delay_ns)
        for method in METHODS
        for size_bytes in SIZES
        if size_bytes <= LONG_BYTES or method == FLOATS or traffic(method, WORKERS) <= traffic("ring", WORKERS)
    ]


def routes(delay_ns: int) -> list[tuple[int, float, float]]:
    """(workers, ring over halving–doubling as measured, by the textbook) of 64 KiB."""
    rows = []
    for workers in ROUTE_WORKERS:
        ring, halving = (point(method, workers, 65_536, delay_ns) for method in ("ring", "halving_doubling"))
        link = link_cost(SimulationConfig(workers, LinkConfig(RATE_BPS, delay_ns)))
        book = [textbook(method, workers, 65_536).seconds(link) for method in ("ring", "halving_doubling")]
        rows.append((workers, ring.measured_s / halving.measured_s, book[0] / book[1]))
    return rows


def draw(sweeps: Sequence[Sequence[CostPoint]], ratios: Sequence[tuple[int, float, float]]) -> Figure:
    """Time over size for each delay, and what halving–doubling gains over the ring by the number of workers."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.6, 4.4), layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, points in zip(panels, sweeps, strict=False):
            _times(axes, points)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
        _ratios(panels[2], ratios)
    return figure


def _times(axes: Axes, points: Sequence[CostPoint]) -> None:
    for method in METHODS:
        method_points = [point for point in points if point.method == method]
        look = ALL["switch" if method == FLOATS else method].look
        colour, marker = look.colour, "x" if method == FLOATS else look.marker
        sizes = [point.size_bytes for point in method_points]
        axes.plot(sizes, [1e3 * point.model_s for point in method_points], color=colour, linewidth=1)
        axes.plot(
            sizes, [1e3 * point.measured_s for point in method_points], marker, color=colour, markersize=5, label=method
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([256, 4096, 65_536, 1 << 20, 1 << 24])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    delay = points[0].delay_ns / 1e6
    axes.set_title(f"{WORKERS} workers, 1 Gb/s, {delay:g} ms per link")
    axes.set_xlabel("size of the array")
    axes.set_ylabel("time of an allreduce (ms)")


def _ratios(axes: Axes, ratios: Sequence[tuple[int, float, float]]) -> None:
    workers = [row[0] for row in ratios]
    axes.plot(workers, [row[2] for row in ratios], color="#222222", linewidth=1, label="textbook")
    axes.plot(workers, [row[1] for row in ratios], "s", color=ALL["halving_doubling"].look.colour, label="virtual time")
    axes.axhline(1, color="#999999", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2, 4, 8, 16, 32, 64])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title("64 KiB, 1 ms: ring ÷ halving-doubling")
    axes.set_xlabel("workers")
    axes.set_ylabel("times faster")
    axes.legend(fontsize=8, frameon=False)


def size_text(size_bytes: int) -> str:
    for unit, value in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= value:
            return f"{size_bytes / value:g} {unit}"
    return f"{size_bytes} B"


def table(sweeps: Sequence[Sequence[CostPoint]]) -> list[str]:
    """Milliseconds by method, delay and size, and how far the model is from them at most, as Markdown."""
    sizes_bytes = (1024, 65_536, 1 << 20)
    heads = [
        f"{points[0].delay_ns / 1e6:g} ms: {size_text(size_bytes)}" for points in sweeps for size_bytes in sizes_bytes
    ]
    rows = []
    for method in METHODS:
        by_place = {
            (each.delay_ns, each.size_bytes): each for each in itertools.chain(*sweeps) if each.method == method
        }
        shown = [by_place.get((delay_ns, size_bytes)) for delay_ns in DELAYS_NS for size_bytes in sizes_bytes]
        most = max(abs(each.measured_s / each.model_s - 1) for each in shown if each is not None)
        name, comma, dtype = method.partition(",")
        cells = ["-" if each is None else f"{1e3 * each.measured_s:.3g}" for each in shown]
        rows.append([f"`{name}`{comma}{dtype}", *cells, f"{100 * most:.0f} %"])
    return markdown(("method", *heads, "model off by"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="The figure and the table of docs/results/collectives.md")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"), help="(default: docs/results)")
    folder = parser.parse_args().folder
    sweeps = [sweep(delay_ns) for delay_ns in DELAYS_NS]
    draw(sweeps, routes(DELAYS_NS[0])).savefig(folder / "collectives.png", dpi=110)
    text = ["![Time by size at two delays, and ring over halving-doubling by workers](collectives.png)", ""]
    text += table(sweeps)
    insert_results(folder / "collectives.md", "python -m tools.documents.collective_costs", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
