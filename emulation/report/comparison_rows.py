"""The tables of a comparison: rows of quantities, a cell for each method, the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emulation.report import link_sharing, wording
from emulation.report.table_kit import Row, row_of_some
from emulation.results.results import unequal_ranks
from emulation.results.speedups import resolved

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
        rows += row_of_some("Iteration time by the model", methods, _predicted) + _first_layer_rows(summaries)
    if scenario.faults.of_packets:
        rows.append(_retransmissions(methods))
    return [*rows, *row_of_some("Computing slowed by", summaries, _slowed), *link_sharing.rows(built)]


def _details(built: dict[str, Any]) -> list[Row]:
    """Bandwidths as benchmarks define them, and what explains the rows above."""
    methods = built["methods"]
    summaries = [entry["summary"] for entry in methods]
    rows: list[Row] = [
        ("Each rank receives", [_wire(s, "rx") for s in summaries]),
        *_server_rows(summaries),
        ("algbw", [(_algbw(s["algbw_bytes_per_s"]), "") for s in summaries]),
        ("busbw", [(_busbw(entry), "") for entry in methods]),
        *row_of_some("Calls of each rank, by path", methods, _call_paths),
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


def _predicted(entry: dict[str, Any]) -> tuple[str, str] | None:
    """What the model of schedules predicts, beside what was measured; None without a schedule."""
    if not (predicted := entry.get("environment", {}).get("predicted_iteration_ns")):
        return None
    share = wording.percent_text(entry["summary"]["iteration_ns"]["median"] / predicted, 0)
    return wording.time_text(predicted), f"measured {share} of it"


def _slowed(numbers: dict[str, Any]) -> tuple[str, str] | None:
    """How much longer the same ranks compute while they exchange; None where none computed without exchange."""
    if "compute_slowdown" not in numbers:
        return None
    alone = wording.time_text(numbers["compute_alone_ns"]["median"])
    return wording.times_text(numbers["compute_slowdown"]), f"{alone} without exchange"


def _first_layer_rows(summaries: list[dict[str, Any]]) -> list[Row]:
    """How long the first layer waited for its sum, which the next forward pass begins with; none if it isn't known."""

    def cell(numbers: dict[str, Any]) -> tuple[str, str] | None:
        span, wait = numbers.get("first_layer_ns"), numbers.get("first_layer_wait_ns")
        text = wording.time_text
        return (text(span["median"]), f"of it in queues {text(wait['median'])}") if span and wait else None

    return row_of_some("First layer: gradient ready to sum back", summaries, cell)


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

    def of(direction: str) -> Callable[[dict[str, Any]], tuple[str, str] | None]:
        def cell(numbers: dict[str, Any]) -> tuple[str, str] | None:
            if (both := numbers.get("bound_wire_bytes_per_server")) is None:
                return None
            least = numbers.get(f"bound_wire_{direction}_bytes_per_server", both)
            measured = numbers[f"wire_{direction}_bytes_per_server_iteration"]
            return wording.bytes_text(measured), f"bound {wording.bytes_text(least)}"

        return cell

    of_sending = row_of_some("Each server sends", summaries, of("tx"))
    return [*of_sending, *row_of_some("Each server receives", summaries, of("rx"))]


def _call_paths(entry: dict[str, Any]) -> tuple[str, str] | None:
    """The path that PyTorch's calls took (switch, gloo, …); None where they weren't counted."""
    calls_by_path: dict[str, list[tuple[str, int, int]]] = {}
    for kind, by_path in sorted(entry.get("call_paths", {}).items()):
        for path, count in by_path.items():
            calls_by_path.setdefault(path, []).append((kind, count["calls"], count["bytes"]))
    shares = [f"{path} {wording.bytes_text(sum(size for *_, size in kinds))}" for path, kinds in calls_by_path.items()]
    calls = [
        f"{path}: " + ", ".join(f"{calls} {kind}" for kind, calls, _ in kinds) for path, kinds in calls_by_path.items()
    ]
    return (", ".join(shares), "; ".join(calls)) if calls else None


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
