"""The report: one self-contained HTML file, rendered from the results document and the host facts alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulation.report import comparison_figures, figure_kit, link_sharing, page_kit, wording
from emulation.report.svg import paint
from emulation.results.results import differing, unequal_ranks
from emulation.results.speedups import DISTURBED, INVALID, VALID, resolved
from emulation.results.timeline import Span
from emulation.scenario.scenario import Scenario, canonical
from transport.group.method_name import MethodName

_CAPTIONS = {
    "topology": (
        "The network. Between switches: the rate, and how often each method must send a long array over the link, in "
        "its busier direction. Framed switches aggregate, the others only forward."
    ),
    "loads": (
        "The part of each link's rate that was used: up (↑) towards the switch and down (↓), with what else was on the "
        "link. Hosts that are only framed are those of flows and other jobs."
    ),
    "shares": (
        "What each had of the shared link that carried most, one above the other; dashed: its rate. Jain's index is 1 "
        "where the job as one and each endless flow have the same."
    ),
    "jobs": (
        "What rank 0 of each job sent over time (means of five bins), and the slots it had of the switch. Jain's index "
        "is of bytes by weight, of the jobs on hosts of their own."
    ),
    "training": (
        "Training loss (thin: every iteration; thick: mean of ten) and test accuracy, against the time spent training. "
        "Time spent evaluating is left out."
    ),
    "breakdown": (
        "Where the median iteration goes: compute, and the communication that compute did not hide. The two medians "
        "need not add up to the median iteration written beside the bar."
    ),
    "matrix": "Median communication time of each method over each link; shorter is lighter.",
    "timeline": (
        "Rank 0 in the median iteration of each method: what it computed (grey), and each transfer of gradients from "
        "its start until its sum was back, the urgent ones darker where a schedule gives priorities. All ranks and "
        "more iterations are in timeline.json: open it in https://ui.perfetto.dev."
    ),
    "iterations": "How iteration times are distributed; the dot marks the median. Warm-up iterations are left out.",
    "wire": (
        "Ethernet bytes sent and received by the busiest rank in one iteration, from interface counters; the upright "
        "line is the bound."
    ),
    "fidelity": (
        "How far the gaps between departures were off size / rate while a link was backlogged: the share of bytes in "
        "gaps with a deviation greater than x. An ideal link is a line at the left edge."
    ),
}

Row = tuple[str, list[tuple[str, str]]]
"""Label, and for each method the value and a small line below it ("" for none)."""


def write_report(
    folder: Path,
    built: dict[str, Any],
    host: dict[str, Any],
    timelines: Mapping[MethodName, Sequence[Span]] | None = None,
) -> Path:
    """Writes `report.html` and one PNG per figure into `folder`; returns the report's path.

    built: what results.json holds; host: what host.json holds; timelines: spans by method, if there are any.
    """
    drawn = comparison_figures.draw_all(built, timelines or {})
    figure_kit.write(drawn, folder)
    path = folder / "report.html"
    path.write_text(render(built, host, drawn), encoding="utf-8")
    return path


def render(built: dict[str, Any], host: dict[str, Any], drawn: dict[str, Any]) -> str:
    """The report's HTML. `drawn`: figures by name; they are inlined as SVG."""
    methods = [entry["method"] for entry in built["methods"]]
    names = wording.short_names(methods)
    measured = row_groups(built)
    measured["time"] = [*measured.pop("speed-up"), *measured["time"]]
    disturbances, stamp, sentences = wording.disturbances(built), _stamp(built), wording.findings(built)
    if stamp["kind"] == "disturbed":  # the stamp says them
        sentences = [sentence for sentence in sentences if sentence not in {text for _, text in disturbances}]
    sections = {"trust", "set-up", *(name for name, rows in measured.items() if rows)}
    sections |= {"links"} if drawn.keys() & {"loads", "shares", "jobs"} else set()
    return page_kit.render(
        "report",
        built=built,
        host=host,
        scenario=built["scenario"],
        finding=wording.finding(built),
        sentences=sentences,
        explanations=wording.explanations(built),
        names=names,
        colours={
            method: paint("background", look["color"]) for method, look in comparison_figures.looks(built).items()
        },
        groups=[(name, title) for name, title in _GROUPS.items() if name in sections],
        tables={name: _columns(list(names.values()), rows) for name, rows in measured.items()},
        facts=_facts(built, host),
        scenario_rows=_scenario_rows(built["scenario"]),
        certificates=_certificates(built),
        stamp=stamp,
        disturbances=disturbances,
        notes=_notes(built),
        figures={name: page_kit.drawn(figure, name, _CAPTIONS[name]) for name, figure in drawn.items()},
        words=wording,
        command=shlex.join(host["command"]),
    )


_GROUPS = {
    "time": "Time",
    "bytes": "Bytes",
    "links": "What else was on the links",
    "learning": "Learning",
    "trust": "Can these times be trusted?",
    "set-up": "Set-up",
}
"""Parts of the page, in its order."""


def _columns(names: Sequence[str], rows: Sequence[Row]) -> tuple[list[str], list[Row]] | None:
    """Heads and rows: a column per method, or with many methods a row each; None without rows."""
    if not rows:
        return None
    if len(names) <= COLUMNS_MOST:
        return ["", *names], list(rows)
    heads = ["Method", *(_BRIEF.get(label, label) for label, _ in rows)]
    return heads, [(name, [cells[index] for _, cells in rows]) for index, name in enumerate(names)]


def table_rows(built: dict[str, Any]) -> list[Row]:
    """The table printed in the terminal: one row per quantity, a cell per method."""
    groups = row_groups(built)
    bits = [row for row in groups["bytes"] if row[0] == BITS]
    return [
        *bits,
        *groups["time"],
        *groups["bytes"][len(bits) :],
        *groups["links"],
        *groups["learning"],
        *groups["speed-up"],
    ]


def row_groups(built: dict[str, Any]) -> dict[str, list[Row]]:
    """Rows of quantities by what they are about; no rows where there is nothing to say."""
    methods = built["methods"]
    summaries = [entry["summary"] for entry in methods]

    def times(key: str) -> list[tuple[str, str]]:
        return [
            (wording.time_text(s[key]["median"]), f"{wording.time_text(s[key]['p10'])} … {_p90(s[key])}")
            for s in summaries
        ]

    coded = any("codec" in s for s in summaries)
    link_rows = link_sharing.rows(built)
    time = [
        ("Iteration time", times("iteration_ns")),
        *_prediction_rows(methods),
        ("Compute time", times("compute_ns")),
        ("Communication time", [_with_bound(s) for s in summaries]),
        ("Exposed communication", times("exposed_communication_ns")),
        *_first_layer_rows(summaries),
        ("algbw", [(_algbw(s["algbw_bytes_per_s"]), "") for s in summaries]),
        ("busbw", [(_busbw(entry), "") for entry in methods]),
    ]
    lost = any("gradient_loss" in entry for entry in methods)
    traffic = [
        *([(BITS, [wording.codec_text(entry) for entry in methods])] if coded else []),
        ("Wire bytes per rank, sent", [_wire(s, "tx") for s in summaries]),
        ("Wire bytes per rank, received", [_wire(s, "rx") for s in summaries]),
        *_server_rows(summaries),
        *_call_path_rows(methods),
        ("Retransmissions", [(wording.count_text(entry["retransmissions"]), "") for entry in methods]),
        *([("Gradients lost", list(map(_lost, methods)))] if lost else []),
    ]
    return {
        "time": time,
        "bytes": traffic,
        "links": [row for row in link_rows if row[0] not in _SPECIAL],
        "learning": [
            *(row for row in link_rows if row[0] in _SPECIAL),
            *([] if wording.replayed(built) else _training_rows(built)),
        ],
        "speed-up": [
            ("Speed-up of an iteration", [_iteration_speedup(entry) for entry in methods]),
            ("Speed-up of communication", [_communication_speedup(entry) for entry in methods]),
        ],
    }


def _training_rows(built: dict[str, Any]) -> list[Row]:
    """What was learnt."""
    summaries, against = [entry["summary"] for entry in built["methods"]], wording.against_baseline
    of_methods = list(zip(summaries, built["methods"], strict=True))
    accuracy = [
        (wording.percent_text(s["final_accuracy"], 2), against(built, entry, "final_accuracy"))
        for s, entry in of_methods
    ]
    loss = [(wording.number_text(s["final_loss"]), against(built, entry, "final_loss")) for s, entry in of_methods]
    return [
        ("Final test accuracy", accuracy),
        ("Final test loss", loss),
        ("Final training loss", [(wording.number_text(s["final_training_loss"]), "") for s in summaries]),
        ("Parameters on all ranks", [_identical(entry) for entry in built["methods"]]),
    ]


BITS = "Bits per value"
COLUMNS_MOST = 4  # methods side by side; more become rows


def turned(names: Sequence[str], rows: Sequence[Row], *, notes: bool = True) -> tuple[list[str], list[Row]]:
    """Heads and rows of the main table: a column per method, or with many methods a row each and fewer quantities.

    notes: keep the small lines of a table with many methods.
    """
    if len(names) <= COLUMNS_MOST:
        return ["", *names], list(rows)
    brief = _BRIEF_CODED if any(label == BITS for label, _ in rows) else _BRIEF
    labels = {label for label, _ in rows}
    left_out = _LESS_TELLING if labels & _SPECIAL else set()
    chosen = [row for row in rows if row[0] in brief and row[0] not in left_out]
    heads = ["Method", *(brief[label] for label, _ in chosen)]
    return heads, [
        (name, [(cells[index][0], cells[index][1] if notes else "") for _, cells in chosen])
        for index, name in enumerate(names)
    ]


_BRIEF = {
    "Iteration time": "Iteration",
    "Iteration time by the model": "Model",
    "Compute time": "Compute",
    "Communication time": "Communication",
    "First layer: gradient ready to sum back": "First layer",
    "Wire bytes per rank, sent": "Sent per rank",
    "Retransmissions": "Resent",
    "Values lost for good": "Lost",
    "Ranks in a sum": "Ranks",
    "Time to accuracy": "To accuracy",
    "Final test accuracy": "Accuracy",
    "Speed-up of an iteration": "Iteration speed-up",
    "Speed-up of communication": "Communication speed-up",
}
"""Columns of the table of many methods: heads by row of the table of few."""

_BRIEF_CODED = {
    BITS: "Bits",
    "Iteration time": "Iteration",
    "Communication time": "Communication",
    "Wire bytes per rank, sent": "Sent per rank",
    "Wire bytes per rank, received": "Received",
    "Ranks in a sum": "Ranks",
    "Time to accuracy": "To accuracy",
    "Final test accuracy": "Accuracy",
    "Final test loss": "Test loss",
    "Speed-up of an iteration": "Speed-up",
}
"""The same where some method has a codec."""


_SPECIAL = {"Values lost for good", "Ranks in a sum", "Time to accuracy"}
_LESS_TELLING = {"Compute time", "First layer: gradient ready to sum back", "Wire bytes per rank, received"}
"""Where any of the former are there, these make the table of many methods too wide for a page."""


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


def _p90(spread: dict[str, float]) -> str:
    return wording.time_text(spread["p90"])


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
        (f"Wire bytes per server, {what}", [cell(numbers, direction) for numbers in summaries])
        for what, direction in (("sent", "tx"), ("received", "rx"))
    ]


def _call_path_rows(methods: list[dict[str, Any]]) -> list[Row]:
    """The path that PyTorch's calls took (switch, gloo, …); no row where no method counted its calls."""
    if not any("ways" in entry for entry in methods):
        return []
    return [("Calls of each rank, by path", [_call_paths(entry.get("ways", {})) for entry in methods])]


def _call_paths(ways: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[str, str]:
    calls_by_path: dict[str, list[tuple[str, int, int]]] = {}
    for kind, by_path in sorted(ways.items()):
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


def _lost(entry: dict[str, Any]) -> tuple[str, str]:
    if (lost := entry.get("gradient_loss")) is None:
        return "none", ""
    return wording.percent_text(lost["up"], 3), f"of sums on their way back {wording.percent_text(lost['down'], 3)}"


def _identical(entry: dict[str, Any]) -> tuple[str, str]:
    if unequal_ranks(entry):
        return "DIFFERENT", wording.why_different(entry)
    if not entry["summary"]["parameters_identical"]:
        return "different, as this method allows", "sums may be lost on their way back to a rank"
    if (delay := wording.gradient_delay(entry)) is None:
        return "bit-identical", ""
    most = entry["environment"]["gradient_delay_most"]
    return "the servers', in the end", f"{delay:.1f} gradients of others before one's own, at most {most}"


def _iteration_speedup(entry: dict[str, Any]) -> tuple[str, str]:
    numbers = entry["comparison"]
    if numbers is None:
        return "baseline", ""
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


def _communication_speedup(entry: dict[str, Any]) -> tuple[str, str]:
    numbers = entry["comparison"]
    if numbers is None:
        return "baseline", ""
    interval = numbers["communication_speedup_interval"]
    note = f"{_interval(interval)}; " * bool(interval)
    note += f"bound {wording.times_text(numbers['communication_speedup_bound'])}"
    if numbers["beyond_bound"]:
        note += "; beyond it, see below"
    return wording.times_text(numbers["communication_speedup"]), note


def _stamp(built: dict[str, Any]) -> dict[str, Any]:
    """The verdict over all methods: word, class and one sentence. Ranks that differ outweigh any certificate."""
    if wrong := [entry for entry in built["methods"] if unequal_ranks(entry)]:
        names = " and ".join(wording.in_text(entry["method"]) for entry in wrong)
        reasons = " and ".join(dict.fromkeys(map(wording.why_different, wrong)))
        return {
            "word": "WRONG",
            "kind": "invalid",
            "text": f"With {names} the ranks ended with different parameters: {reasons}. Nothing in this report can be "
            "used.",
        }
    if pairs := differing(built):
        names = ", ".join(f"{wording.in_text(method)} and {wording.in_text(other)}" for method, other in pairs)
        return {
            "word": "WRONG",
            "kind": "invalid",
            "text": f"By one codec in the same packets {names} ended with different parameters. Nothing in this report "
            "can be used.",
        }
    if built["verdict"] is None:
        return {
            "word": "VIRTUAL TIME",
            "kind": "virtual",
            "text": "Links are exact by construction and the run is deterministic, so there is nothing to certify.",
        }
    verdict_text = "The emulated links kept their rates within the bounds below"
    if built["verdict"] == VALID:
        return {"word": VALID, "kind": "valid", "text": f"{verdict_text}: times can be trusted."}
    if built["verdict"] == DISTURBED:
        more = f"{verdict_text}, but not the times of computing: what differs by these is no merit of a method."
        return {"word": DISTURBED, "kind": "disturbed", "text": more}
    return {
        "word": INVALID,
        "kind": "invalid",
        "text": "This machine did not emulate the links faithfully: do not use or quote the times in this report.",
    }


def _certificates(built: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per method that has a certificate; each measure beside its bound."""
    certificates = []
    for entry in built["methods"]:
        certificate = entry["certificate"]
        if certificate is None:
            continue
        certificates.append({"method": entry["method"], "rows": _measures(certificate), **certificate})
    return certificates


def _notes(built: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(heading, notes): those all methods share first, then each method's own; without empty ones."""
    shared = [
        note for note in built["methods"][0]["notes"] if all(note in entry["notes"] for entry in built["methods"])
    ]
    note_groups = [("Notes", shared)]
    for entry in built["methods"]:
        heading = f"Notes on {wording.in_text(entry['method'])}"
        note_groups.append((heading, [note for note in entry["notes"] if note not in shared]))
    return [(heading, notes) for heading, notes in note_groups if notes]


def _measures(certificate: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, measured, bound): first what has a bound, then the rest; curves are drawn instead."""
    bounds = certificate["bounds"]
    judged: list[tuple[str, str, str]] = []
    unbounded: list[tuple[str, str, str]] = []
    for name, value in certificate["measures"].items():
        if isinstance(value, list):
            continue
        limits = [
            f"{sign} {wording.measure_text(name, bounds[name + suffix])}"
            for sign, suffix in (("≤", ""), ("≥", "_least"), ("≤", "_most"))
            if name + suffix in bounds
        ]
        row = (wording.MEASURE_NAMES.get(name, name), wording.measure_text(name, value), " and ".join(limits))
        (judged if limits else unbounded).append(row)
    return judged + unbounded


def _facts(built: dict[str, Any], host: dict[str, Any]) -> list[tuple[str, str]]:
    """What ran on what."""
    packages = host["packages"]
    backend = (
        "Mininet: real kernel, real packets, real time"
        if built["backend"] == "mininet"
        else "virtual time: packet-exact simulation of the network, real training, no clock"
    )
    facts = [
        ("Backend", backend),
        ("Started", host["started"]),
        ("Machine", f"{host['cpu_model'] or host['machine']}, {host['cpus_usable']} CPUs usable"),
        ("Memory", wording.bytes_text(host["memory_bytes"])),
        ("System", f"{host['system']}, {host['kernel']}"),
        ("Python and packages", f"Python {host['python']}, " + ", ".join(f"{k} {v}" for k, v in packages.items())),
        ("Load before the run", f"{host['load_average_1_min']} (1 minute average)"),
        ("Source", host["source_revision"] or "revision unknown: no checkout that git can read"),
    ]
    facts += _planes(built, host)
    walls = host.get("wall_seconds_per_method", {})
    if walls:
        spent = ", ".join(f"{wording.name_of(method)} {seconds:.0f} s" for method, seconds in walls.items())
        facts.append(("Wall time", spent))
    return facts


def _planes(built: dict[str, Any], host: dict[str, Any]) -> list[tuple[str, str]]:
    """What the switch was made of, and why of nothing faster; what carried the workers' packets."""
    facts = []
    for entry in built["methods"]:
        environment = entry.get("environment", {})
        if "dataplane" in environment:
            passed = [f"{name} passed over: {why}" for name, why in host.get("dataplanes_passed_over", {}).items()]
            facts.append(("Data plane", "; ".join([host.get("dataplane", environment["dataplane"]), *passed])))
        cores = environment.get("worker_cores", [])
        if any(cores):
            same = len(set(cores)) == 1
            ranks = (
                f"{cores[0]} on all ranks" if same else ", ".join(f"rank {k}: {core}" for k, core in enumerate(cores))
            )
            facts.append(("Packet loops of the workers", ranks))
    core = host.get("compiled_core", {})
    if "path" in core:
        facts.append(("Compiled core", f"{core['path']}, ABI {core['abi']}"))
    return facts


_ONLY_FOR = {
    "compute_ns": " (virtual time only)",  # where ranks aren't paced
    "retry_limit": " (virtual time only)",
    "blocks": " (Mininet only)",
}
"""Keys of a scenario that the other backend has no use for."""


def _scenario_rows(scenario: Scenario) -> list[tuple[str, str]]:
    """The scenario as [table] key = value, in the file's order."""
    rows, tables = [("seed", str(scenario.seed))], canonical(scenario)
    unknown = "the profile's" if scenario.workload.profile else "measured before the run"
    only_for = {key: text for key, text in _ONLY_FOR.items() if not scenario.paced or key != "compute_ns"}
    for table in ("topology", "faults", "workload", "switch", "ps"):
        rows += [
            (f"[{table}] {key}{only_for.get(key, '')}", _value_text(value, unknown))
            for key, value in tables.get(table, {}).items()  # [ps] is there if a method reads it
        ]
    return rows


def _value_text(value: Any, unknown: str) -> str:
    if value is None:
        return unknown
    return wording.count_text(value) if isinstance(value, int) else str(value)
