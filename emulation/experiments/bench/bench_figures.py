"""Figures of a benchmark, drawn from its document alone, in the style of `emulation/report/comparison_figures.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator, PercentFormatter

from emulation.experiments.bench.allreduce.answer import bound, over_gloo, shaped
from emulation.experiments.bench.allreduce.bench_methods import cut
from emulation.report import figure_kit
from emulation.report.svg import INK, WIDTH, tip, tips
from emulation.testbed.certificate.fidelity import rate_text
from switchagg.dataplane.plane_kinds import DATAPLANES
from transport.group.method_name import METHODS, SECRET, traffic
from transport.links.link_kinds import LINKS

PLANE_MARKERS = dict(zip(DATAPLANES, itertools.cycle("osxD^v"), strict=False))
CONTROL_LINES = {"cubic": "--", "bbr": ":", "reno": "-."}
_DASHES = ("--", (0, (4, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)), (0, (8, 2)), (0, (3, 1, 1, 1)))
LINK_LINES = {"": "-", **dict(zip(LINKS, itertools.cycle(_DASHES), strict=False))}
_BOUND = INK
_PANELS_ABREAST = 2  # more are too narrow for a small screen

Row = dict[str, Any]


def allreduce(networks: Sequence[dict[str, Any]]) -> Figure | None:
    """Share of the payload limit against size: a panel for each rate and number of workers."""
    limited = shaped(networks)
    if not limited:
        return None
    limited.sort(key=lambda network: (topology_of(network)["rate_bps"], topology_of(network)["workers"]))
    columns = min(_PANELS_ABREAST, len(limited))
    lines = -(-len(limited) // columns)
    figure, grid = figure_kit.grid(WIDTH, 1.4 + 2.1 * lines, lines, columns, sharex=True, sharey=True)
    names: dict[str, Any] = {}
    # small arrays may go beyond the limit, by the burst of the shaper
    top = 1.06 * max(1.0, *(row["share_of_payload_limit"] for network in limited for row in network["rows"]))
    for axes, network in zip(grid.flat, limited, strict=False):
        topology = topology_of(network)
        axes.set_title(network["title"], fontsize=10)
        for name, rows in by_name(network["rows"]).items():
            points = [(row["size_bytes"], row["share_of_payload_limit"]) for row in rows]
            names[label_of(name)] = axes.plot(*zip(*points, strict=True), **look_of(name))[0]
            tips(axes, points, [f"{label_of(name)}, {size_text(size)}: {share:.1%}" for size, share in points])
        most = 1 / traffic("ring", topology["workers"])
        names["bound of host methods"] = axes.axhline(most, color=_BOUND, linewidth=1, linestyle=":")
        sizes_below(axes)
        axes.set_ylim(0, top)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in grid.flat:
        axes.set_visible(bool(axes.lines))
    figure.supylabel("algbw / (link rate × payload share)", fontsize=10)  # noqa: RUF001
    figure.supxlabel("size of the array on each worker", fontsize=10)
    figure_kit.legend_above(figure, list(names.values()), list(names))
    return figure


def speedups(networks: Sequence[dict[str, Any]]) -> Figure | None:
    """How much faster than Gloo, against size, by rate; the bound against an ideal ring as a line."""
    limited = shaped(networks)
    workers = sorted({topology_of(network)["workers"] for network in limited})
    if not any(row["method"] == "gloo" for network in limited for row in network["rows"]):
        return None
    columns = min(_PANELS_ABREAST, len(workers))
    lines = -(-len(workers) // columns)
    figure, grid = figure_kit.grid(WIDTH, 0.6 + 3.0 * lines, lines, columns, sharey=True)
    for axes in grid.flat[len(workers) :]:
        axes.set_visible(False)
    for axes, count in zip(grid.flat, workers, strict=False):
        here = sorted(
            (network for network in limited if topology_of(network)["workers"] == count),
            key=lambda network: int(topology_of(network)["rate_bps"]),
        )
        for place, network in enumerate(here):
            shade = matplotlib.colormaps["viridis"](0.1 + 0.75 * place / max(1, len(here) - 1))
            if points := sorted(over_gloo(network).items()):
                rate = rate_text(topology_of(network)["rate_bps"])
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=shade, label=rate)
                tips(axes, points, [f"n = {count}, {rate}, {size_text(size)}: {times:.2f}×" for size, times in points])  # noqa: RUF001
        most = bound(here[0])
        axes.axhline(most, color=_BOUND, linestyle=":", label=f"bound: {most:.3g}")
        axes.axhline(1.0, color="#BBBBBB", linewidth=1)
        axes.set_title(f"n = {count}", fontsize=10)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))  # noqa: RUF001
        axes.yaxis.set_minor_locator(NullLocator())
        sizes_below(axes)
        axes.legend(fontsize=9)
    figure.supylabel("speed-up over Gloo", fontsize=10)
    figure.supxlabel("size of the array on each worker", fontsize=10)
    return figure


def planes(part: dict[str, Any]) -> Figure | None:
    """Nanoseconds per packet in memory, by E."""
    rows = part["rows"]
    if not rows:
        return None
    workers = sorted({row["workers"] for row in rows})
    figure, (panels,) = figure_kit.grid(WIDTH, 3.4, columns=len(workers), sharey=True)
    for axes, count in zip(panels, workers, strict=True):
        for name in dict.fromkeys(row["plane"] for row in rows):
            colour = DATAPLANES[name].colour
            here = [row for row in rows if row["plane"] == name and row["workers"] == count]
            if not here:
                continue
            x = [row["elements"] for row in here]
            points = [(row["elements"], row["ns_per_packet"]["median"]) for row in here]
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
            tips(axes, points, [f"{name}, {elements} elements: {ns:.0f} ns per packet" for elements, ns in points])
            low, high = ([row["ns_per_packet"][key] for row in here] for key in ("p25", "p75"))
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(title=f"{count} workers", xlabel="elements per packet")
    panels[0].set_ylabel("ns per packet, one core, in memory")
    figure_kit.legend_above(figure, *panels[-1].get_legend_handles_labels())
    return figure


def numbers(part: dict[str, Any]) -> Figure | None:
    """Codecs beside memcpy."""
    if not part["rows"]:
        return None
    sizes = sorted({row["size_bytes"] for row in part["rows"]})
    by_size = [[row for row in part["rows"] if row["size_bytes"] == size] for size in sizes]
    figure, panels = figure_kit.stacked([0.8 + 0.24 * len(here) for here in by_size], WIDTH)
    for axes, size, here in zip(panels, sizes, by_size, strict=True):
        colours = {"numpy": "#BBBBBB", "python": "#009E73", "native": "#0072B2"}
        for place, row in enumerate(here):
            speed = row["bytes_per_s"] / 1e9
            bars = axes.barh(place, speed, height=0.6, color=colours[row["implementation"]])
            tip(bars[0], f"{_what(row)}, {size_text(size)}: {speed:.2f} GB/s, {row['share_of_memcpy']:.0%} of memcpy")
            axes.text(speed, place, f" {speed:.2f} GB/s, {row['share_of_memcpy']:.0%}", va="center", fontsize=9)
        copy = next(row["bytes_per_s"] for row in here if row["what"] == "memcpy") / 1e9
        axes.axvline(copy / 2, color=_BOUND, linestyle=":")
        axes.set_yticks(range(len(here)), [_what(row) for row in here])
        axes.grid(axis="y", visible=False)
        axes.margins(y=0.01)
        axes.set_xlim(0, 1.75 * max(row["bytes_per_s"] for row in here) / 1e9)
        axes.set(title=size_text(size), xlabel="GB/s of float32; dotted: half of memcpy")
        axes.invert_yaxis()
    return figure


def topology_of(network: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = network["scenario"]["topology"]
    return table


def _what(row: Row) -> str:
    return "memcpy" if row["what"] == "memcpy" else f"{row['what']}, {row['implementation']}"


def by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each method, by size; our own first."""
    rows_by_name: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["method"] != "switch", row["name"], row["size_bytes"])):
        rows_by_name.setdefault(row["name"], []).append(row)
    return rows_by_name


def look_of(name: str) -> dict[str, Any]:
    base, variant = cut(name)
    method, _, link = base.removesuffix(SECRET).partition("~")[0].partition("@")
    look = METHODS[method].look
    colour, marker, line = look.colour, look.marker, CONTROL_LINES.get(variant, LINK_LINES.get(link, ":"))
    if method == "switch":
        colour, marker, line = DATAPLANES[variant].colour, PLANE_MARKERS.get(variant, "x"), LINK_LINES.get(link, ":")
    filled = "none" if base.endswith(SECRET) else "full"
    return {"color": colour, "marker": marker, "markersize": 4.5, "linestyle": line, "fillstyle": filled}


def label_of(name: str) -> str:
    base, variant = cut(name)
    words = {"gloo": "Gloo", "ring": "TCP ring"}.get(base, base.replace("_", " "))
    return f"{words}, {variant}" if variant else words


def sizes_below(axes: Axes) -> None:
    axes.set_xscale("log", base=4)
    axes.set_xticks([4096, 65_536, 1_048_576, 16_777_216], ["4 K", "64 K", "1 M", "16 M"], fontsize=9)
    axes.minorticks_off()


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.3g} MB" if size_bytes >= 100_000 else f"{size_bytes / 1e3:.3g} kB"


class BenchFigure(NamedTuple):
    """A figure of a part of the document. make: None where the part has no numbers for it."""

    part: str
    make: Callable[[Any], Figure | None]
    title: str
    caption: str


FIGURES = {
    "speedup": BenchFigure(
        "allreduce",
        speedups,
        "Against Gloo",
        "The speed-up of the switch over Gloo, with the better of cubic and bbr. Below the grey line the switch is "
        "slower; the dotted line is the bound. A small array saves round trips, and so can go beyond the bound.",
    ),
    "allreduce": BenchFigure(
        "allreduce",
        allreduce,
        "Allreduce on shaped links",
        "What share of the link each method uses for gradients, by the size of the array. No host method can be above "
        "the dotted line.",
    ),
    "planes": BenchFigure(
        "planes", planes, "Data planes in memory", "How long the switch alone takes for a packet, without a network."
    ),
    "numbers": BenchFigure(
        "numbers",
        numbers,
        "Codecs in memory",
        "How fast each codec turns gradients into integers and back, beside a plain copy.",
    ),
}


def draw_all(built: dict[str, Any], figures: Mapping[str, BenchFigure] = FIGURES) -> dict[str, Figure]:
    """Figures by name: those the document has numbers for."""
    parts = built["parts"]
    return figure_kit.draw(
        {name: partial(entry.make, parts[entry.part]) for name, entry in figures.items() if parts.get(entry.part)}
    )
