"""The tables of a comparison: rows of quantities, a cell for each method, the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emulation.report import link_sharing, wording
from emulation.results.results import unequal_ranks
from emulation.results.speedups import resolved

Row = tuple[str, list[tuple[str, str]]]
"""Label, and for each method the value and a small line below it ("" for none)."""


_HEADS = {
    "Bits per value": "Bits",
    "One iteration takes": "Iteration",
    "Speed-up of an iteration": "Speed-up",
    "Iteration time by the model": "Model",
    "Waiting for communication": "Waiting",
    "Communication takes": "Communication",
    "First layer: gradient ready to sum back": "First layer",
    "Each rank sends": "Each sends",
    "Retransmissions": "Resent",
    "Values lost for good": "Lost",
    "Ranks in a sum": "Ranks",
    "Time to accuracy": "To accuracy",
    "Final test accuracy": "Accuracy",
}
"""The rows that become columns where many methods are compared, and their heads."""

COLUMNS_MOST = 4  # methods side by side; more become rows


def split_rows(built: dict[str, Any]) -> tuple[list[Row], list[Row]]:
    """The rows of the main table, on the page and in the terminal, and those of Details."""
    first, details = _first_rows(built), _details(built)
    if len(built["methods"]) <= COLUMNS_MOST:
        return first, details
    too_wide = [row for row in first if row[0] not in _HEADS]
    return [row for row in first if row[0] in _HEADS], [*too_wide, *details]


def turned(names: Sequence[str], rows: Sequence[Row]) -> tuple[list[str], list[Row]]:
    """Heads and rows of a table: a column per method, or with many methods a row each, without the small lines."""
    if len(names) <= COLUMNS_MOST:
        return ["", *names], list(rows)
    heads = ["Method", *(_HEADS.get(label, label) for label, _ in rows)]
    return heads, [(name, [(cells[index][0], "") for _, cells in rows]) for index, name in enumerate(names)]


def _first_rows(built: dict[str, Any]) -> list[Row]:
    """What every comparison has, and below it what this scenario is about: codecs, schedules, faults, other traffic."""
    methods, scenario = built["methods"], built["scenario"]
    summaries = [entry["summary"] for entry in methods]
    rows: list[Row] = [
        ("One iteration takes", _times(summaries, "iteration_ns")),
        ("Speed-up of an iteration", [_iteration_speedup(built, entry) for entry in methods]),
        ("Computing takes", _times(summaries, "compute_ns")),
        ("Waiting for communication", _times(summaries, "exposed_communication_ns")),
        ("Communication takes", [_with_bound(s) for s in summaries]),
        ("Speed-up of communication", [_communication_speedup(built, entry) for entry in methods]),
        ("Each rank sends", [_wire(s, "tx") for s in summaries]),
    ]
    if not wording.replayed(built):
        rows += [
            ("Final test accuracy", _against(built, "final_accuracy", lambda share: wording.percent_text(share, 2))),
            ("Parameters on all ranks", [_identical(entry) for entry in methods]),
        ]
    if any("codec" in s for s in summaries):
        rows.append(("Bits per value", [wording.codec_text(entry) for entry in methods]))
    if any(entry["method"].schedule for entry in methods):
        rows += [*_prediction_rows(methods), *_first_layer_rows(summaries)]
    if scenario.faults.of_packets:
        rows.append(_retransmissions(methods))
    return [*rows, *_slowdown_rows(summaries), *link_sharing.rows(built)]


def _details(built: dict[str, Any]) -> list[Row]:
    """Bandwidths as benchmarks define them, and what explains the rows above."""
    methods = built["methods"]
    summaries = [entry["summary"] for entry in methods]
    rows: list[Row] = [
        ("Each rank receives", [_wire(s, "rx") for s in summaries]),
        *_server_rows(summaries),
        ("algbw", [(_algbw(s["algbw_bytes_per_s"]), "") for s in summaries]),
        ("busbw", [(_busbw(entry), "") for entry in methods]),
        *_call_path_rows(methods),
    ]
    if not any(entry["method"].schedule for entry in methods):
        rows += _first_layer_rows(summaries)
    if not built["scenario"].faults.of_packets:
        rows.append(_retransmissions(methods))
    if not wording.replayed(built):
        rows += [
            ("Final test loss", _against(built, "final_loss", wording.number_text)),
            ("Final training loss", [(wording.number_text(s["final_training_loss"]), "") for s in summaries]),
        ]
    return rows


def _times(summaries: Sequence[dict[str, Any]], key: str) -> list[tuple[str, str]]:
    """Medians, and beside them the 10th and the 90th percentile where these differ."""
    spreads = [[wording.time_text(s[key][name]) for name in ("median", "p10", "p90")] for s in summaries]
    return [(middle, f"{low} … {high}" if low != high else "") for middle, low, high in spreads]


def _against(built: dict[str, Any], key: str, text: Callable[[float | None], str]) -> list[tuple[str, str]]:
    """What was learnt, beside the baseline."""
    return [(text(entry["summary"][key]), wording.against_baseline(built, entry, key)) for entry in built["methods"]]


def _retransmissions(methods: list[dict[str, Any]]) -> Row:
    return "Retransmissions", [(wording.count_text(entry["retransmissions"]), "") for entry in methods]


def _prediction_rows(methods: list[dict[str, Any]]) -> list[Row]:
    """What the model of schedules predicts, beside what was measured; none without a schedule."""
    predictions = [entry.get("environment", {}).get("predicted_iteration_ns") for entry in methods]
    if not any(predictions):
        return []
    cells = [
        (
            wording.time_text(predicted),
            f"measured {wording.percent_text(entry['summary']['iteration_ns']['median'] / predicted, 0)} of it",
        )
        if predicted
        else ("–", "")  # noqa: RUF001
        for predicted, entry in zip(predictions, methods, strict=True)
    ]
    return [("Iteration time by the model", cells)]


def _slowdown_rows(summaries: list[dict[str, Any]]) -> list[Row]:
    """How much longer the same ranks compute while they exchange; none where none computed without exchange."""
    if not any("compute_slowdown" in numbers for numbers in summaries):
        return []
    cells = [
        (
            wording.times_text(numbers["compute_slowdown"]),
            f"{wording.time_text(numbers['compute_alone_ns']['median'])} without exchange",
        )
        if "compute_slowdown" in numbers
        else ("–", "")  # noqa: RUF001
        for numbers in summaries
    ]
    return [("Computing slowed by", cells)]


def _first_layer_rows(summaries: list[dict[str, Any]]) -> list[Row]:
    """How long the first layer waited for its sum, which the next forward pass begins with; none if it isn't known."""
    spreads = [numbers.get("first_layer_ns") for numbers in summaries]
    if not any(spreads):
        return []
    waits = [numbers.get("first_layer_wait_ns") for numbers in summaries]
    cells = [
        (wording.time_text(span["median"]), f"of it in queues {wording.time_text(wait['median'])}")
        if span and wait
        else ("–", "")  # noqa: RUF001
        for span, wait in zip(spreads, waits, strict=True)
    ]
    return [("First layer: gradient ready to sum back", cells)]


def _with_bound(numbers: dict[str, Any]) -> tuple[str, str]:
    least = wording.time_text(numbers["bound"]["communication_ns"])
    share = wording.percent_text(numbers["share_of_bound"], 0)
    by = f" by {link}" if (link := wording.busiest_link(numbers)) else ""
    return wording.time_text(numbers["communication_ns"]["median"]), f"bound {least}{by}, {share} of it reached"


def _wire(numbers: dict[str, Any], direction: str) -> tuple[str, str]:
    measured = wording.bytes_text(numbers[f"wire_{direction}_bytes_per_rank_iteration"])
    both = numbers["bound"]["wire_bytes_per_rank"]
    return measured, f"bound {wording.bytes_text(numbers['bound'].get(f'wire_{direction}_bytes_per_rank', both))}"


def _server_rows(summaries: list[dict[str, Any]]) -> list[Row]:
    """What the busiest parameter server's link carried; none where no server has a link of its own."""
    if not any("bound_wire_bytes_per_server" in numbers for numbers in summaries):
        return []

    def cell(numbers: dict[str, Any], direction: str) -> tuple[str, str]:
        measured = numbers.get(f"wire_{direction}_bytes_per_server_iteration")
        both = numbers.get("bound_wire_bytes_per_server")
        least = numbers.get(f"bound_wire_{direction}_bytes_per_server", both)
        return wording.bytes_text(measured), f"bound {wording.bytes_text(least)}" if least else ""

    return [
        (f"Each server {what}", [cell(numbers, direction) for numbers in summaries])
        for what, direction in (("sends", "tx"), ("receives", "rx"))
    ]


def _call_path_rows(methods: list[dict[str, Any]]) -> list[Row]:
    """The path that PyTorch's calls took (switch, gloo, …); no row where no method counted its calls."""
    if not any("call_paths" in entry for entry in methods):
        return []
    return [("Calls of each rank, by path", [_call_paths(entry.get("call_paths", {})) for entry in methods])]


def _call_paths(paths_by_kind: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[str, str]:
    calls_by_path: dict[str, list[tuple[str, int, int]]] = {}
    for kind, by_path in sorted(paths_by_kind.items()):
        for path, count in by_path.items():
            calls_by_path.setdefault(path, []).append((kind, count["calls"], count["bytes"]))
    shares = [f"{path} {wording.bytes_text(sum(size for *_, size in kinds))}" for path, kinds in calls_by_path.items()]
    calls = [
        f"{path}: " + ", ".join(f"{calls} {kind}" for kind, calls, _ in kinds) for path, kinds in calls_by_path.items()
    ]
    return ", ".join(shares) or "–", "; ".join(calls)  # noqa: RUF001


def _algbw(bytes_per_s: float | None) -> str:
    return "–" if bytes_per_s is None else f"{wording.bytes_text(bytes_per_s)}/s"  # noqa: RUF001


def _busbw(entry: dict[str, Any]) -> str:
    """Only host methods have one: in-network reduction moves fewer bytes than busbw assumes."""
    algbw = entry["summary"]["algbw_bytes_per_s"]
    if entry["method"].is_switch or algbw is None:
        return "not defined"
    return _algbw(algbw * entry["summary"]["bound"]["traffic_factor"])


def _identical(entry: dict[str, Any]) -> tuple[str, str]:
    if unequal_ranks(entry):
        return "DIFFERENT", wording.why_different(entry)
    if not entry["summary"]["parameters_identical"]:
        return "different, as this method allows", "sums may be lost on their way back to a rank"
    if (delay := wording.gradient_delay(entry)) is None:
        return "bit-identical", ""
    most = entry["environment"]["gradient_delay_most"]
    return "the servers', in the end", f"{delay:.1f} gradients of others before one's own, at most {most}"


def _iteration_speedup(built: dict[str, Any], entry: dict[str, Any]) -> tuple[str, str]:
    numbers = entry["comparison"]
    if numbers is None:
        return "baseline" if entry["method"] == built["baseline"] else "–", ""  # noqa: RUF001
    quoted = numbers["headline"]
    value, limit = wording.times_text(quoted["speedup"]), f"limit {wording.times_text(quoted['limit'])}"
    if quoted["speedup"] is None and quoted["at_equal_compute"]:
        return value, "compute differed by more than half"
    if quoted["at_equal_compute"]:
        value += " at equal compute"
        limit = f"{wording.times_text(numbers['iteration_speedup'])} as measured; {limit}"
    if not numbers.get("same_wait", True):
        limit = "waits for fewer ranks"
    return value, "; ".join(filter(None, (_interval(quoted["interval"]), limit)))


def _interval(interval: Sequence[float] | None) -> str:
    return wording.interval_text(interval) + ", no difference beyond noise" * (not resolved(interval))


def _communication_speedup(built: dict[str, Any], entry: dict[str, Any]) -> tuple[str, str]:
    numbers = entry["comparison"]
    if numbers is None:
        return "baseline" if entry["method"] == built["baseline"] else "–", ""  # noqa: RUF001
    interval = numbers["communication_speedup_interval"]
    note = f"{_interval(interval)}; " * bool(interval)
    note += f"bound {wording.times_text(numbers['communication_speedup_bound'])}"
    if numbers["beyond_bound"]:
        note += "; beyond it, see below"
    return wording.times_text(numbers["communication_speedup"]), note
