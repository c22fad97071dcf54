"""Virtual time held to Mininet: the same scenarios in both, each method over each link, predicted beside measured.

Runs of the two backends are cells of a sweep (`experiments/sweep/`), kept by content: a cell that is there isn't run
again. Figures and tables are made of all cells that are there. Virtual time models no link kinds, so that a method is
run once, whatever carries it; a link's framing is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from emulation.experiments.bench.calibration import path_of
from emulation.experiments.bench.document import machine
from emulation.experiments.cells import chosen, failures, values_text
from emulation.experiments.progress_text import Log
from emulation.experiments.sweep import sweep_run as sweeping
from emulation.experiments.sweep.sweep_run import entry_of
from emulation.report import figure_kit, page_kit, wording
from emulation.report.table_kit import markdown
from emulation.results.results import write_json
from emulation.results.speedups import ratio
from emulation.results.whole_file import write_text
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import HostOptions, Methods
from emulation.scenario.sweep_axes import Point
from transport.group.method_name import METHODS, MethodName, links_of

SCHEMA = "switchagg-fidelity-1"
SCENARIO, RATES_BPS = "transports", (100_000_000, 200_000_000)
BAND = 0.05
"""A difference of more than this share of the measured time is explained."""
APART = 0.02
"""Predictions closer than this don't order two methods."""
TELLING = 0.01
"""A factor of a difference that is worth a word."""

Pair = dict[str, Any]


def every() -> list[str]:
    """The methods, each over all links that may carry it in real time."""
    names = [name for name in METHODS if not METHODS[name].virtual and name != "auto"]  # it takes one of the others
    return [str(MethodName(name, link)) for name in names for link in links_of(name) or ("",)]


def twin(method: MethodName) -> MethodName:
    """The method in virtual time."""
    return replace(method, link=next(iter(links_of(method.method)), ""))


@dataclass(frozen=True)
class FidelityPlan:
    """predicted, measured: the sweeps of the two backends, of the same points in the same order. calibrated: as
    predicted, with the costs of each path of `calibration`, by its name: of the methods that it carries."""

    predicted: sweeping.SweepRun
    measured: sweeping.SweepRun
    calibrated: Mapping[str, sweeping.SweepRun] = field(default_factory=dict)


def planned(
    scenario: Scenario,
    variants: Sequence[tuple[Point, Scenario]],
    out: Path,
    tables: Mapping[str, HostOptions] | None = None,
) -> FidelityPlan:
    """The plan of the methods that the scenario has for Mininet. tables: of `calibration.load`. Raises ScenarioError,
    RunFailed."""
    methods = scenario.methods.mininet
    both = Methods(mininet=methods, sim=tuple(dict.fromkeys(map(twin, methods))))
    pairs = [(point, replace(variant, methods=both)) for point, variant in variants]
    base = replace(scenario, methods=both)
    predicted, measured = (sweeping.planned(base, pairs, backend, out) for backend in ("sim", "mininet"))
    calibrated = {}
    for path, hosts in (tables or {}).items():
        carried = Methods(
            mininet=(), sim=tuple(dict.fromkeys(twin(method) for method in methods if path_of(method) == path))
        )
        costly = [(point, replace(variant, methods=carried, hosts=hosts)) for point, variant in variants]
        if carried.sim:
            part = replace(scenario, methods=carried, hosts=hosts)
            calibrated[path] = sweeping.planned(part, costly, "sim", out / path)
    return FidelityPlan(predicted, measured, calibrated)


def run(plan: FidelityPlan, only: str, again: bool, jobs: int, log: Log) -> None:
    """Run what isn't there: virtual time on all cores first, then Mininet, with nothing beside it.

    only: text in a cell's title, like "ring@udp, topology.rate_bps = 200 Mb/s". again: also those in Mininet whose
    certificate was INVALID. Raises RunFailed, OSError.
    """
    wanted = {(cell.scenario, cell.method) for cell in chosen(plan.measured.cells, only)}
    twins = {(scenario, twin(method)) for scenario, method in wanted}
    parts = [(plan.predicted, twins)]
    for path, costly in plan.calibrated.items():
        carried, hosts = costly.scenario.methods, costly.scenario.hosts
        parts.append(
            (
                costly,
                {
                    (replace(scenario, methods=carried, hosts=hosts), twin(method))
                    for scenario, method in wanted
                    if path_of(method) == path
                },
            )
        )
    for sweep, names in (*parts, (plan.measured, wanted)):
        runs = [
            replace(point, cells=tuple(cell for cell in point.cells if (cell.scenario, cell.method) in names))
            for point in sweep.runs
        ]
        part = replace(sweep, runs=runs)
        for cell in part.cells if again and part.backend == "mininet" else ():
            record = part.store.find(cell)
            if record is not None and not record["entry"]["certificate"]["valid"]:
                part.store.forget(cell)
        sweeping.run(part, jobs, False, log)
        for line in failures(part.failed, len(part.cells)):
            log(line)


# ---- pairs


def document(plan: FidelityPlan) -> dict[str, Any]:
    """The document fidelity.json: all pairs that are there, and their summary."""
    store, pairs = plan.measured.store, []
    for at, (virtual, real) in enumerate(zip(plan.predicted.runs, plan.measured.runs, strict=True)):
        predicted = {cell.method: cell for cell in virtual.cells}
        for cell in real.cells:
            records = store.find(cell), store.find(predicted[twin(cell.method)])
            if records[0] is not None and records[1] is not None:
                entry = entry_of(records[0], "mininet")
                pairs.append(_pair(real.point, entry, records[1]["entry"]) | _calibrated(plan, at, entry))
    if not pairs:
        raise RunFailed(f"{store.folder}: no pair of runs has finished")
    return {
        "schema": SCHEMA,
        "scenario": plan.measured.scenario.name,
        "machine": machine(),
        "planned": len(plan.measured.cells),
        "pairs": pairs,
        "summary": summary(pairs),
    }


def _calibrated(plan: FidelityPlan, at: int, entry: dict[str, Any]) -> dict[str, float | None]:
    """What is predicted with the costs of the method's path, and how far the measured time is from it."""
    method = entry["method"]
    sweep = plan.calibrated.get(path_of(method))
    cells = {cell.method: cell for cell in sweep.runs[at].cells} if sweep is not None else {}
    record = sweep.store.find(cells[twin(method)]) if sweep is not None else None
    if record is None:
        return {}
    costly = compared(record["entry"]["summary"], entry["summary"])
    return {"calibrated_ns": costly["predicted_ns"], "calibrated_difference": costly["difference"]}


def _pair(point: Point, entry: dict[str, Any], predicted: dict[str, Any]) -> Pair:
    return {
        "point": point,
        "method": entry["method"],
        **compared(predicted["summary"], entry["summary"]),
        "retransmissions": entry["retransmissions"],
        "valid": entry["certificate"]["valid"],
        "reasons": entry["certificate"]["reasons"],
        "cpu_idle_share": entry["certificate"]["measures"].get("cpu_idle_share"),
    }


def compared(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """The comparison of two summaries. What is predicted is virtual time's, by the ratio of the bounds, which differ by
    the links' headers and packet sizes. difference: of the measured time from the predicted, `bytes` (of the rank that
    sends most) times `pace` (time for each), less 1; None where virtual time predicts that nothing is sent."""
    framing = ratio(*(side["bound"]["communication_ns"] for side in (measured, predicted))) or 1.0
    times = [predicted["communication_ns"]["median"] * framing, measured["communication_ns"]["median"]]
    sent_bytes = [
        side["wire_tx_bytes_per_rank_iteration"] * share for side, share in ((predicted, framing), (measured, 1))
    ]
    difference, more = ratio(times[1], times[0]), ratio(sent_bytes[1], sent_bytes[0])
    return {
        "predicted_ns": times[0],
        "measured_ns": measured["communication_ns"],
        "difference": None if difference is None else difference - 1,
        "bytes": more,
        "pace": ratio(difference, more) if difference is not None and more is not None else None,
        "compute_ns": [summary_of_run["compute_ns"]["median"] for summary_of_run in (predicted, measured)],
    }


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The summary of VALID pairs: the median and the largest difference, how many are within BAND, and pairs of methods
    at one point in the wrong order: by more than the noise of both measurements, which is half of what lies between
    their 10th and 90th percentiles; of these, those over the same link; and those within that noise."""
    valid = [pair for pair in pairs if pair["valid"] and pair["difference"] is not None]
    sizes = [abs(pair["difference"]) for pair in valid]
    ordered, swapped, close = 0, [], 0
    for first, second in combinations(valid, 2):
        low, high = sorted((first, second), key=lambda pair: pair["predicted_ns"])
        if first["point"] != second["point"] or high["predicted_ns"] <= low["predicted_ns"] * (1 + APART):
            continue
        ordered += 1
        noise = sum(pair["measured_ns"]["p90"] - pair["measured_ns"]["p10"] for pair in (low, high)) / 2
        later_ns = low["measured_ns"]["median"] - high["measured_ns"]["median"]
        if later_ns > noise:
            swapped.append([low["point"], low["method"], high["method"]])
        elif later_ns > 0:
            close += 1
    return {
        "pairs": len(pairs),
        "valid": len(valid),
        "median_difference": median(sizes) if sizes else None,
        "largest_difference": max(sizes, default=None),
        "within_band": sum(size <= BAND for size in sizes),
        "ordered": ordered,
        "swapped": swapped,
        "swapped_within_noise": close,
        "swapped_over_one_link": sum(_link(low) == _link(high) for _, low, high in swapped),
    }


def _link(method: MethodName) -> str:
    return method.link or "tcp"  # Gloo names no link


def why(pair: Pair) -> str:
    """The parts of a difference that is to be explained; "" of a smaller one."""
    if pair["difference"] is None or abs(pair["difference"]) <= BAND:
        return ""
    reasons = []
    if pair["bytes"] is not None and abs(pair["bytes"] - 1) >= TELLING:
        resent = f", {pair['retransmissions']} packets sent again" if pair["retransmissions"] else ""
        reasons.append(f"{_signed(pair['bytes'] - 1)} bytes on the wire{resent}")
    if pair["pace"] is not None and abs(pair["pace"] - 1) >= TELLING:
        idle = pair["cpu_idle_share"]
        cpus = "" if idle is None else f", CPUs {wording.percent_text(idle, 0)} idle"
        reasons.append(f"{_signed(pair['pace'] - 1)} time for each byte{cpus}")
    return "; ".join(reasons)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "\N{MINUS SIGN}")


# ---- what is shown


def write(built: dict[str, Any], out: Path, docs: Path | None) -> list[Path]:
    """fidelity.json, a figure and a table in `out`; the figure and a short table also in a folder with a page
    fidelity.md that has a place for them. Raises RunFailed, OSError."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "fidelity.json", out / "fidelity.png", out / "fidelity.md"]
    write_json(paths[0], built)
    figure_kit.write(figure_kit.draw({"fidelity": lambda: figure(built)}), out)
    text = "\n".join([*lines(built), "", *table(built)]) + "\n"
    write_text(paths[2], text)
    if docs is not None:
        guide = docs / "fidelity.md"
        image = "![Measured against predicted time, and the differences by method](fidelity.png)"
        short = "\n".join([image, "", *lines(built), "", *table(apart(built))]) + "\n"
        page_kit.insert_results(guide, "switchagg bench fidelity --docs", short)
        (docs / "fidelity.png").write_bytes(paths[1].read_bytes())
        paths += [guide, docs / "fidelity.png"]
    return paths


def lines(built: dict[str, Any]) -> list[str]:
    """Sentences about all of it."""
    totals, facts = built["summary"], built["machine"]
    sentences = [
        f"{totals['pairs']} of {built['planned']} pairs of runs; {totals['valid']} of them VALID, on "
        f"{facts['cpu_model']}, {facts['cpus_usable']} cores."
    ]
    if totals["median_difference"] is not None:
        sentences.append(
            f"Median difference of the VALID ones: {wording.percent_text(totals['median_difference'])}; "
            f"{totals['within_band']} of {totals['valid']} differ by at most {100 * BAND:g} %, the most by "
            f"{wording.percent_text(totals['largest_difference'])}."
        )
    sizes = (pair.get("calibrated_difference") for pair in built["pairs"] if pair["valid"])
    costly = [abs(size) for size in sizes if size is not None]
    if costly:
        within = sum(size <= BAND for size in costly)
        sentences.append(
            f"With this machine's costs of packets: median {wording.percent_text(median(costly))}, worst "
            f"{wording.percent_text(max(costly))}; {within} of {len(costly)} differ by at most {100 * BAND:g} %."
        )
    if totals["ordered"]:
        wrong = len(totals["swapped"])
        named = "; ".join(f"{low} and {high} ({values_text(point)})" for point, low, high in totals["swapped"][:5])
        sentences.append(
            f"Of {totals['ordered']} pairs of methods whose predictions are more than {100 * APART:g} % apart, {wrong} "
            f"were measured in the other order by more than the noise of both{f': {named}' if wrong else ''}"
            f"{', …' if wrong > 5 else ''}; {totals['swapped_within_noise']} within it."
        )
    return sentences


def table(built: dict[str, Any]) -> list[str]:
    """Markdown: VALID ones, then the others with their reasons."""
    text = []
    for valid, last in ((True, "what a difference of more than 5 % consists of"), (False, "why INVALID")):
        pairs = [pair for pair in built["pairs"] if pair["valid"] is valid]
        if not pairs:
            continue
        if not valid:
            text += ["", "INVALID, so that these times say nothing:", ""]
        costly = any("calibrated_ns" in pair for pair in pairs)
        rows = [
            [
                values_text(pair["point"]),
                f"`{pair['method']}`",
                wording.time_text(pair["predicted_ns"]),
                wording.time_text(pair["measured_ns"]["median"]),
                "" if pair["difference"] is None else _signed(pair["difference"]),
                *(_with_costs(pair) if costly else ()),
                why(pair) if valid else " ".join(pair["reasons"]).replace("|", "/"),
            ]
            for pair in pairs
        ]
        more = ("predicted with costs", "difference") if costly else ()
        text += markdown(("at", "method", "predicted", "measured", "difference", *more, last), rows)
    return text


def apart(built: dict[str, Any]) -> dict[str, Any]:
    """Those pairs alone that differ by more than BAND or are INVALID, without the costs of packets."""
    pairs = [pair for pair in built["pairs"] if not pair["valid"] or abs(pair["difference"] or 0) > BAND]
    return {"pairs": [{key: pair[key] for key in pair if not key.startswith("calibrated")} for pair in pairs]}


def _with_costs(pair: Pair) -> tuple[str, str]:
    if pair.get("calibrated_difference") is None:
        return "", ""
    return wording.time_text(pair["calibrated_ns"]), _signed(pair["calibrated_difference"])


def figure(built: dict[str, Any]) -> Figure:
    """Measured against predicted time, and the differences by method; INVALID ones hollow and grey."""
    pairs = [pair for pair in built["pairs"] if pair["difference"] is not None]
    names = list(dict.fromkeys(str(pair["method"]) for pair in pairs))
    drawn, ((left, right),) = figure_kit.grid(10, max(4.5, 1.2 + 0.2 * len(names)), columns=2)
    markers = dict(zip(dict.fromkeys(values_text(pair["point"]) for pair in pairs), "os^Dv<>", strict=False))
    for pair in pairs:
        at, colour = values_text(pair["point"]), pair["method"].look.colour if pair["valid"] else "#BBBBBB"
        look = {"marker": markers.get(at, "o"), "markersize": 5, "color": colour, "linestyle": "none"}
        look |= {} if pair["valid"] else {"markerfacecolor": "none"}
        left.plot([pair["predicted_ns"] / 1e6], [pair["measured_ns"]["median"] / 1e6], **look)
        right.plot([pair["difference"]], [names.index(str(pair["method"]))], **look)
    ends = [time for pair in pairs for time in (pair["predicted_ns"] / 1e6, pair["measured_ns"]["median"] / 1e6)]
    line = [min(ends) * 0.9, max(ends) * 1.1]
    left.plot(line, line, color="#222222", linewidth=0.8)
    left.fill_between(
        line, *([(1 + sign * BAND) * end for end in line] for sign in (-1, 1)), color="#DDDDDD", linewidth=0
    )
    left.set(xscale="log", yscale="log", xlabel="predicted in virtual time, ms", ylabel="measured in Mininet, ms")
    figure_kit.decimal_ticks(left.xaxis)
    figure_kit.decimal_ticks(left.yaxis)
    left.set_title("Communication in an iteration")
    right.axvspan(-BAND, BAND, color="#DDDDDD", linewidth=0)
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.invert_yaxis()
    right.set_xscale("symlog", linthresh=0.1)
    right.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    right.set(xlabel="measured against predicted", title="Differences (band: 5 %)")
    for at, marker in markers.items():
        left.plot([], [], marker=marker, color="#666666", linestyle="none", label=at)
    left.plot([], [], marker="o", color="#BBBBBB", markerfacecolor="none", linestyle="none", label="INVALID")
    left.legend(loc="upper left", fontsize=8)
    return drawn
