"""A study as text: tables in Markdown for a page, and a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emulation.experiments.study.study_figures import places
from emulation.experiments.study.study_plan import FLOAT32, is_method
from emulation.report.table_kit import columns, markdown
from emulation.testbed.certificate.fidelity import rate_text

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


def tables(document: dict[str, Any]) -> list[str]:
    """Markdown: a table for each workload and number of workers, and what the columns are."""
    lines: list[str] = []
    for (workload, workers), rows in places(document):
        first = rows[0]
        lines += [
            f"### {workload}, {workers} workers: {first['parameters']:,} parameters, {first['iterations']} iterations, "
            f"{min(row['seeds'] for row in rows)} seeds",
            "",
        ]
        rates = [rate_text(line) for line in document["line_rates_bps"]]
        heads = [*HEADS, *(f"time, {rate}" for rate in rates)]
        lines += [*markdown(heads, [_cells(document, row) for row in rows]), ""]
    return lines


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
