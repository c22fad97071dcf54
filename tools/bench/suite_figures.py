"""Figures of those parts of `make bench` that a user's benchmark doesn't have, drawn from the document alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from emulation.experiments.bench import bench_figures
from emulation.experiments.bench.bench_figures import (
    BenchFigure,
    Row,
    by_name,
    label_of,
    look_of,
    size_text,
    sizes_below,
    topology_of,
)
from emulation.report import figure_kit
from emulation.report.svg import INK, WIDTH, tip, tips
from emulation.testbed.certificate.fidelity import rate_text
from emulation.testbed.mininet.launch import BY_SWITCH

IN_SWITCH = ", lost in the switch"


def unshaped(networks: Sequence[dict[str, Any]]) -> Figure | None:
    """Without a rate limit: what the machine carries, and the CPU time of a packet."""
    drawn_networks = [network for network in networks if network["rows"]]
    if not drawn_networks:
        return None
    heights = [height for network in drawn_networks for height in (2.2, 1.0 + 0.25 * len(by_name(network["rows"])))]
    figure, panels = figure_kit.stacked(heights, WIDTH)
    names: dict[str, Any] = {}
    for axes, bars, network in zip(panels[::2], panels[1::2], drawn_networks, strict=True):
        axes.set_title(network["title"], fontsize=10)
        for name, rows in by_name(network["rows"]).items():
            points = [(row["size_bytes"], row["algbw_bytes_per_s"] * 8e-9) for row in rows]
            names[label_of(name)] = axes.plot(*zip(*points, strict=True), **look_of(name))[0]
            tips(axes, points, [f"{label_of(name)}, {size_text(size)}: {gbps:.2f} Gb/s" for size, gbps in points])
        sizes_below(axes)
        axes.set(ylim=(0, None), ylabel="algbw, Gb/s per worker")
        largest = [max(rows, key=lambda row: row["size_bytes"]) for rows in by_name(network["rows"]).values()]
        for place, row in enumerate(largest):
            worker, both = (row["worker_cpu_ns_per_packet"] or 0) / 1e3, _cpu_us(row)
            look = look_of(row["name"])
            bars.barh(place, worker, height=0.6, color=look["color"])
            bars.barh(place, both - worker, left=worker, height=0.6, color=look["color"], alpha=0.45, hatch="//")
            for bar in bars.patches[-2:]:
                tip(bar, f"{label_of(row['name'])}: {worker:.2f} µs in the worker, {both - worker:.2f} in the switch")
            idle = "" if row["cpu_idle_share"] is None else f", {row['cpu_idle_share']:.0%} idle"
            bars.text(both, place, f" {both:.2f} µs{idle}", va="center", fontsize=9)
        figure_kit.bar_labels(bars, (label_of(row["name"]) for row in largest))
        bars.set_xlim(0, 1.6 * max(map(_cpu_us, largest)) + 0.05)
        bars.set_xlabel(f"CPU µs per packet sent (hatched: switch), {size_text(largest[0]['size_bytes'])}")
    figure_kit.legend_above(figure, list(names.values()), list(names))
    return figure


def codecs(networks: Sequence[dict[str, Any]]) -> Figure | None:
    """Elements per second of each method, and its own bound; arrays of all types have as many elements."""
    panels: dict[str, list[Row]] = {}
    for network in networks:
        panels.setdefault(network["title"], []).extend(network["rows"])
    panels = {title: rows for title, rows in panels.items() if rows}
    if not panels:
        return None
    figure, every = figure_kit.stacked([1.1 + 0.34 * len(rows) for rows in panels.values()], WIDTH)
    for axes, (title, rows) in zip(every, panels.items(), strict=True):
        for place, row in enumerate(rows):
            speed, most = (row[name] and row[name] / 4e6 for name in ("algbw_bytes_per_s", "bound_bytes_per_s"))
            bars = axes.barh(place, speed, height=0.6, color=look_of(row["name"])["color"])
            of_bound = f", bound {most:.3g}" if most else ""
            tip(bars[0], f"{label_of(row['name'])}, {row['type']}: {speed:.3g} million elements per second{of_bound}")
            if most:
                axes.plot([most], [place], marker="|", markersize=14, color=INK)
            axes.text(max(speed, most or 0), place, f"  {speed:.3g}, {row['limited_by']}", va="center", fontsize=9)
        figure_kit.bar_labels(axes, (f"{label_of(row['name'])}, {row['type']}" for row in rows))
        axes.set_xlim(0, 1.45 * axes.dataLim.x1)
        axes.set(title=title, xlabel="million elements per second; |: bound")
    return figure


def loss(networks: Sequence[dict[str, Any]]) -> Figure | None:
    """Goodput against loss, as a share of the same method's without."""
    shares = loss_shares(networks)
    if not shares:
        return None
    figure, ((axes,),) = figure_kit.grid(WIDTH, 3.8)
    free = 2e-5  # where "no loss" stands on the logarithmic axis
    for name, by_loss in shares.items():
        points = [(share or free, value) for share, value in by_loss.items()]
        plain = name.removesuffix(IN_SWITCH)
        look = look_of(plain) | ({"linestyle": ":", "markerfacecolor": "white"} if plain != name else {})
        label = label_of(plain) + name.removeprefix(plain)
        axes.plot(*zip(*points, strict=True), label=label, **look)
        texts = [f"{label}, {100 * rate:g} % lost: {share:.1%} of its goodput" for rate, share in by_loss.items()]
        tips(axes, points, texts)
    axes.set_xscale("log")
    ticks = [free, 1e-4, 1e-3, 1e-2, 5e-2]
    axes.set_xticks(ticks, ["none", "0.01 %", "0.1 %", "1 %", "5 %"])
    axes.minorticks_off()
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    topology = next(topology_of(network) for network in networks if network["rows"])
    axes.set(
        xlabel="packets lost on each link, in each direction",
        ylabel="goodput / goodput without loss",
        title=f"n = {topology['workers']}, {rate_text(topology['rate_bps'])}",
    )
    figure_kit.legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def loss_shares(networks: Sequence[dict[str, Any]]) -> dict[str, dict[float, float]]:
    """Method name -> loss -> algbw as a share of the same method's without loss, on the same kind of links.

    Loss in the switch itself stands under the method's name and IN_SWITCH.
    """
    speeds: dict[str, dict[float, float]] = {}
    for network in networks:
        for row in network["rows"]:
            name = row["name"] + (IN_SWITCH if network["loss_by"] == BY_SWITCH else "")
            speeds.setdefault(name, {})[network["scenario"]["faults"]["loss"]] = float(row["algbw_bytes_per_s"])
    return {
        name: {loss: speed / by_loss[0.0] for loss, speed in sorted(by_loss.items())}
        for name, by_loss in speeds.items()
        if by_loss.get(0.0)
    }


def _cpu_us(row: Row) -> float:
    """CPU time of a packet that a worker sends: the worker's, and the switch process's share."""
    return ((row["worker_cpu_ns_per_packet"] or 0) + (row["switch_cpu_ns_per_packet"] or 0)) / 1e3


FIGURES = {
    "speedup": bench_figures.FIGURES["speedup"],
    "allreduce": bench_figures.FIGURES["allreduce"],
    "unshaped": BenchFigure(
        "unshaped",
        unshaped,
        "Without a rate limit",
        "What this machine carries where no link limits it, and the CPU time of a packet.",
    ),
    "codecs": BenchFigure(
        "codecs", codecs, "Allreduce with codecs", "As many elements in each; the mark is the method's own bound."
    ),
    "loss": BenchFigure("loss", loss, "Loss", "What is left of each method's own goodput."),
    "planes": bench_figures.FIGURES["planes"],
    "numbers": bench_figures.FIGURES["numbers"],
}
"""In the page's order."""
