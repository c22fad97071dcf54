"""Runs put together: a row for each workload, number of workers and codec. The module is pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from emulation.experiments.study.costs import vanishes_at_bps
from emulation.experiments.study.study_plan import BASELINES, FLOAT32, TUNING_SEED, is_method
from emulation.results.results import percentile

SCHEMA = "switchagg-study-1"
LINE_RATES = (1_000_000_000, 10_000_000_000)
MARGIN = 0.01
"""Below the 16-bit baseline's mean final accuracy lies the accuracy to be reached: single scores differ by as much."""


def build(
    runs: Sequence[dict[str, Any]],
    rates: Mapping[str, float],
    compute_ns: Mapping[str, int],
    measured: Mapping[str, dict[str, Any]],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The document of a study.

    rates: of codecs, bytes of float32 per second. compute_ns: of a rank's iteration, by workload. measured: bytes in
    virtual time, by codec.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        cell = run["cell"]
        if cell["seed"] != TUNING_SEED:
            groups[cell["workload"], cell["workers"], cell["codec"]].append(run)
    rows = [_row(*key, _alike(group), rates.get(key[2])) for key, group in groups.items()]
    for row in rows:
        place = [other for other in rows if (other["workload"], other["workers"]) == (row["workload"], row["workers"])]
        _compare(row, {other["codec"]: other for other in place}, compute_ns.get(row["workload"]))
    return {
        "schema": SCHEMA,
        "facts": dict(facts),
        "line_rates_bps": list(LINE_RATES),
        "compute_ns": dict(compute_ns),
        "measured": dict(measured),
        "rows": rows,
    }


def _alike(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs with the last one's cell, but for the seed: rates and lengths may have changed since the first run."""
    last = runs[-1]["cell"]
    return [run for run in runs if {**run["cell"], "seed": 0} == {**last, "seed": 0}]


def _row(workload: str, workers: int, codec: str, runs: Sequence[dict[str, Any]], rate: float | None) -> dict[str, Any]:
    ended = [run["accuracy"] for run in runs]
    values = runs[0]["parameters"]
    bits = {direction: mean(run[f"{direction}_bytes"] for run in runs) * 8 / values for direction in ("up", "down")}
    errors = [error for run in runs for error in run["errors"]]
    return {
        "workload": workload,
        "workers": workers,
        "codec": codec,
        "rate": runs[0]["cell"]["rate"],
        "iterations": runs[0]["cell"]["iterations"],
        "parameters": values,
        "seeds": len(runs),
        "of_seed": {str(run["cell"]["seed"]): run["accuracy"] for run in runs},
        "accuracies": ended,
        "accuracy": mean(ended),
        "spread": stdev(ended) if len(ended) > 1 else None,
        "diverged": sum(run["diverged"] for run in runs),
        "ranks_alike": all(run["ranks_alike"] for run in runs),
        "up_bits": bits["up"],
        "down_bits": bits["down"],
        "rounds": mean(run["rounds"] for run in runs),
        "own_error": _median(errors, "own"),
        "mean_error": _median(errors, "mean"),
        "clipped": _median(errors, "clipped"),
        "residual": _median(errors, "residual"),
        "carried": sum(error["carried"] or 0 for error in errors),
        "curve": _mean_curve([run["curve"] for run in runs]),
        "errors": _mean_errors([run["errors"] for run in runs]),
        "codec_rate": rate,
    }


def _median(errors: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [error[name] for error in errors if error[name] is not None]
    return percentile(values, 0.5) if values else None


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """[iteration, mean accuracy, lowest, highest], as far as all runs came."""
    return [
        [
            points[0][0],
            mean(point[1] for point in points),
            min(point[1] for point in points),
            max(point[1] for point in points),
        ]
        for points in zip(*curves, strict=False)
    ]


def _mean_errors(runs: Sequence[Sequence[dict[str, Any]]]) -> list[list[float | None]]:
    """[iteration, error of a worker, error of the mean]."""
    return [
        [points[0]["iteration"], *(_average([error[name] for error in points]) for name in ("own", "mean"))]
        for points in zip(*runs, strict=False)
    ]


def _average(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return mean(numbers) if numbers else None


def _compare(row: dict[str, Any], place: Mapping[str, dict[str, Any]], compute_ns: int | None) -> None:
    """Add comparisons with the other rows of a workload: points off float32, ratio, line rate, time to accuracy."""
    plain = place.get(FLOAT32)
    baseline = next((place[name] for name in BASELINES if name in place), None)
    both = [] if plain is None else [seed for seed in row["of_seed"] if seed in plain["of_seed"]]
    points = [100 * (row["of_seed"][seed] - plain["of_seed"][seed]) for seed in both] if plain else []
    row["points"] = mean(points) if points else None  # the same seeds have the same batches
    row["points_spread"] = stdev(points) if len(points) > 1 else None
    widest = max(row["up_bits"], row["down_bits"])
    ratio = None if plain is None else plain["up_bits"] / widest
    row["ratio"] = ratio
    rate = row["codec_rate"]
    row["vanishes_bps"] = None if ratio is None or rate is None else vanishes_at_bps(rate, ratio)
    row["wanted"] = None if baseline is None else baseline["accuracy"] - MARGIN
    reached = [point[0] for point in row["curve"] if row["wanted"] is not None and point[1] >= row["wanted"]]
    row["iterations_needed"] = reached[0] if reached else None
    row["time_s"], row["time_parts"] = {}, {}
    if compute_ns is not None and reached and not is_method(row["codec"]):  # a method's link and compute overlap
        codec_s = 4 * row["parameters"] / rate if rate else 0.0
        for line in LINE_RATES:
            parts = {"compute": compute_ns / 1e9, "codec": codec_s, "link": widest * row["parameters"] / line}
            row["time_parts"][str(line)] = {name: reached[0] * part for name, part in parts.items()}
            row["time_s"][str(line)] = sum(row["time_parts"][str(line)].values())
