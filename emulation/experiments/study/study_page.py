"""A study for people: a page, its tables in Markdown, and a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from emulation.experiments.study.study_figures import CLOSE, bits, places, short
from emulation.experiments.study.study_plan import FLOAT32, is_method
from emulation.report import page_kit
from emulation.report.page_kit import Section, part, text
from emulation.report.table_kit import columns, markdown
from emulation.report.wording import facts
from emulation.testbed.certificate.fidelity import rate_text

CAPTIONS = {
    "accuracy": "Wrong answers in the end, against bits per value in a link's busier direction: lower left is better.",
    "curves": "Accuracy over training, the mean of seeds.",
    "error": "Squared error over training: above of a worker's codes, below of the sum.",
    "time": "Seconds to the accuracy of 16 bits by a model: computing, coding and the link, one after the other.",
}
SEEDS_LEAST = 3
HEADS = (
    "codec",
    "accuracy",
    "points",
    "bits up",
    "bits down",
    "rounds",
    "error, worker",
    "error, sum",
    "clipped",
    "R, GB/s",
    "gains below",
)


def _tables(document: dict[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A title, heads and rows for each workload and number of workers."""
    heads = [*HEADS, *(f"time, {rate_text(rate)}" for rate in document["line_rates_bps"])]
    for (workload, workers), rows in places(document):
        first = rows[0]
        title = (
            f"{workload}, {workers} workers: {first['parameters']:,} parameters, {first['iterations']} iterations, "
            f"{(seeds := min(row['seeds'] for row in rows))} seed{'s' * (seeds > 1)}"
        )
        yield title, heads, [_cells(document, row) for row in rows]


def tables(document: dict[str, Any]) -> list[str]:
    """One table in Markdown: points off float32 by codec and place, bits of the busier direction; the page has all."""
    heads, rows = ["codec", "bits", "gains below, Gb/s"], dict[str, list[str]]()
    for (workload, workers), compared in places(document):
        heads.append(f"{workload}, n = {workers}")
        for row in compared:
            name, accuracy, points, *_ = _cells(document, row)
            bits, gbps = max(row["up_bits"], row["down_bits"]), (row["vanishes_bps"] or 0) / 1e9
            cells = rows.setdefault(row["codec"], [f"`{name}`", f"{bits:.3g}", f"{gbps:.2g}" if gbps else "-"])
            cells += [""] * (len(heads) - 1 - len(cells))
            cells.append(f"{accuracy} %" if row["codec"] == FLOAT32 else points)
    return markdown(heads, [[*cells, *[""] * (len(heads) - len(cells))] for cells in rows.values()])


def page(document: dict[str, Any], figures: Mapping[str, Figure]) -> str:
    """The page's HTML. figures: by name."""
    sections = [Section(title, [part("plain_table", heads, rows, title)]) for title, heads, rows in _tables(document)]
    sections += [Section("Machine", [part("facts", facts(document["facts"]))])]
    first, *more = [page_kit.figure(drawing, name, CAPTIONS[name]) for name, drawing in figures.items()] or [Markup()]
    seeds = min(row["seeds"] for row in document["rows"])
    codecs = len({row["codec"] for row in document["rows"]})
    title = "Codecs beside float32 and 16 bits"
    trained = ", and ".join(f"{workload} with {workers} workers" for (workload, workers), _ in places(document))
    noise = f"± and the marks of each codec are of {seeds} seeds."
    if seeds < SEEDS_LEAST:
        noise = f"Each codec has only {seeds} seed{'s' * (seeds > 1)}, so small differences may be chance."
    header = page_kit.opening(
        title,
        compared=[text(f"{codecs} codecs trained {trained}.")],
        outcome=[*(text(sentence, "lead") for sentence in outcome(document)), first],
        trust=[text(f"{noise} Accuracy was trained and measured; times are a model: computing, coding and the link.")],
    )
    return page_kit.render(title, [*header, *more], sections)


def outcome(document: dict[str, Any]) -> Iterator[str]:
    """For each workload and number of workers, the codec with the fewest bits that learned as much as float32."""
    for (workload, workers), rows in places(document):
        alike = [
            row for row in rows if row["points"] is not None and row["points"] >= -CLOSE and row["codec"] != FLOAT32
        ]
        of = f"on {workload} with {workers} workers"
        if not alike:
            yield f"No codec ends within {CLOSE:g} points of float32 {of}."
            continue
        best = min(alike, key=bits)
        yield (
            f"Of the codecs that end within {CLOSE:g} points of float32 {of}, {short(best['codec'])} needs the fewest "
            f"bits: {bits(best):.3g} for a value, headers included."
        )


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The same for people at a terminal, without the times."""
    for (workload, workers), rows in places(document):
        yield f"{workload}, n = {workers}"
        yield from columns(HEADS, [_cells(document, row)[: len(HEADS)] for row in rows])
        yield ""
    carried = sum(row["carried"] for row in document["rows"])
    unlike = [row for row in document["rows"] if not row["ranks_alike"]]
    yield f"lanes that overflowed: {carried}; rows whose ranks ended with different parameters: {len(unlike)}"
    off = max(
        (
            abs(measured[direction] / measured[f"counted_{direction}"] - 1)
            for measured in document["measured"].values()
            for direction in ("up", "down")
        ),
        default=None,
    )
    if off is not None:
        yield f"bytes in virtual time, off what was counted: {100 * off:.2f} % at most"


def _cells(document: dict[str, Any], row: dict[str, Any]) -> list[str]:
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.1f}"
    points = "-" if row["points"] is None or row["codec"] == FLOAT32 else f"{row['points']:+.1f}"
    if row["points_spread"] is not None and points != "-":
        points += f" ± {row['points_spread']:.1f}"
    rate, vanishes, method = row["codec_rate"], row["vanishes_bps"], is_method(row["codec"])
    return [
        row["codec"] if not row["diverged"] else f"{row['codec']} ({row['diverged']} of {row['seeds']} diverged)",
        f"{100 * row['accuracy']:.1f}{spread}",
        points,
        f"{row['up_bits']:.3g}",
        f"{row['down_bits']:.3g}",
        f"{row['rounds']:.3g}",
        _number(row["own_error"]),
        _number(row["mean_error"]),
        "-" if row["clipped"] is None else f"{100 * row['clipped']:.2g} %",
        "-" if rate is None else f"{rate / 1e9:.2g}",
        "-" if not vanishes else rate_text(float(f"{vanishes:.2g}")),
        *("-" if method else _time(row["time_s"].get(str(line))) for line in document["line_rates_bps"]),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _time(seconds: float | None) -> str:
    return "not reached" if seconds is None else f"{seconds:.3g} s"
