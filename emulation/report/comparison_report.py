"""The report: one self-contained HTML file, rendered from the results document and the host facts alone."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from emulation.report import comparison_figures, figure_kit, page_kit, wording
from emulation.report.comparison_rows import split_rows, turned
from emulation.report.page_kit import Section, part, text
from emulation.report.svg import paint
from emulation.report.table_kit import Row
from emulation.report.topology_figure import up_links
from emulation.results.results import differing, unequal_ranks
from emulation.results.speedups import DISTURBED, INVALID, VALID
from emulation.results.timeline import Span
from emulation.results.whole_file import write_text
from emulation.scenario.scenario import Scenario, canonical
from transport.group.method_name import MethodName

_WORDS = tomllib.loads((page_kit.TEMPLATES / "report.toml").read_text(encoding="utf-8"))
"""`captions` of figures, and `definitions` of numbers."""

LINES_MOST = 4  # of a list that isn't folded


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
    path = folder / "report.html"
    with figure_kit.written_beside(drawn, folder):
        write_text(path, render(built, host, drawn))
    return path


class _Page:
    """The parts of a report. figures: by name; they are inlined as SVG."""

    def __init__(self, built: dict[str, Any], host: dict[str, Any], figures: Mapping[str, Figure]) -> None:
        self.built, self.host, self.figures = built, host, figures
        self.scenario: Scenario = built["scenario"]
        self.methods: list[dict[str, Any]] = built["methods"]
        self.names = wording.short_names([entry["method"] for entry in self.methods])
        self.in_turn = "blocks" in self.methods[0]
        self.looks = comparison_figures.looks(built)
        self.stamp = _stamp(built)

    def figure(self, *names: str) -> list[Markup]:
        """Those of the figures that there are."""
        return [
            page_kit.figure(self.figures[name], name, _WORDS["captions"][name])
            for name in names
            if name in self.figures
        ]

    def key(self, method: MethodName) -> Markup:
        """A square of the method's colour."""
        return Markup('<span class="key" style="{}"></span>').format(paint("background", self.looks[method]["color"]))

    def header(self) -> list[Markup]:
        """What was compared, what came out, and whether to trust it. What is invalid says so before any finding."""
        findings, kind, lines = wording.findings(self.built), self.stamp["kind"], []
        for entry in self.methods if kind == "invalid" else ():
            name, certificate = self.names[entry["method"]], entry["certificate"] or {"reasons": []}
            lines += [f"{name}: {reason}" for reason in certificate["reasons"]]
            if rate_bps := certificate.get("valid_rate_bps"):
                advice = f"{wording.rate_text(rate_bps)} is a rate this machine is likely to keep"
                lines.append(f"{name}: {advice}: --set topology.rate_bps={rate_bps}")
        if kind == "disturbed":  # the stamp says them
            disturbances = wording.disturbances(self.built)
            lines = [f"{self.names[method]}: {sentence}" for method, sentence in disturbances]
            findings = [sentence for sentence in findings if sentence not in {words for _, words in disturbances}]
        title, compared = self.scenario.title, [text(wording.what_was_compared(self.built))]
        trust = [part("stamp", kind, self.stamp["word"], self.stamp["text"], lines)]
        if kind == "invalid":
            outcome = [text(f"What was measured nevertheless: {' '.join(findings)}", "soft")]
            return page_kit.opening(title, compared=compared, trust=trust, outcome=outcome)
        outcome = [
            part("number", wording.finding(self.built), wording.finding_about(self.built)),
            text(findings[0], "lead"),
            *map(text, findings[1:]),
            *self.figure("breakdown"),
        ]
        return page_kit.opening(title, compared=compared, outcome=outcome, trust=trust)

    def sections(self) -> list[Section]:
        """All but those about nothing, in the page's order."""
        names, (rows, details) = list(self.names.values()), split_rows(self.built)
        parts = {
            "numbers": self._numbers(_table("The numbers of each method", turned(names, rows))),
            "time": self.figure("timeline", "iterations", "matrix"),
            "network": self.figure("wire", "loads", "shares", "jobs"),
            "learning": self.figure("training"),
            "trust": self._trust(),
            "set-up": self._set_up(),
            "details": self._details(_table("Further numbers of each method", turned(names, details))),
        }
        return [Section(_SECTIONS[name], section, name) for name, section in parts.items() if section]

    def _numbers(self, table: Markup) -> list[Markup]:
        counted, warm_up = self.methods[0]["summary"]["counted_iterations"], self.scenario.workload.warmup_iterations
        note = (
            f"Times are medians over {counted} iterations, with the 10th and the 90th percentile; warm-up "
            f"({warm_up} in all) isn't counted{', nor is the first iteration after each turn' * self.in_turn}. "
            "Details defines each number."
        )
        explained = list(map(text, wording.explanations(self.built)))
        consists = [part("details", "What the speed-up consists of", explained, len(self.methods) <= 2)]
        invalid = self.figure("breakdown") if self.stamp["kind"] == "invalid" else []
        return [*invalid, table, text(note, "small"), *(consists if explained else [])]

    def _trust(self) -> list[Markup]:
        certified = [entry for entry in self.methods if entry["certificate"] is not None]
        if not certified:
            measured = "measured once before the run"
            if self.scenario.workload.compute_ns is not None:
                measured = "given by the scenario"
            elif wording.replayed(self.built):
                measured = "the profile's"
            computed = f"Compute time is {measured}; everything on the network is computed packet by packet."
            return [text(f"{self.stamp['text']} {computed}")]
        watched = (
            "Real time on shared CPUs can distort an emulated network. While a method ran, its links were watched: a "
            "backlogged link must send a packet every size / rate, no process may starve, no timer may be late."
        )
        parts = [text(watched), *self.figure("fidelity")]
        for entry in certified:
            certificate, name = entry["certificate"], self.names[entry["method"]]
            verdict = "VALID" if certificate["valid"] else "INVALID"
            summary = self.key(entry["method"]) + f"{name}: {verdict}, measures and bounds"
            heads = ("measure", "measured", "bound")
            measures = part("plain_table", heads, _measures(certificate), f"certificate of {name}")
            reasons = map(text, certificate["reasons"])
            parts.append(part("details", summary, [*reasons, measures], not certificate["valid"]))
        return parts

    def _set_up(self) -> list[Markup]:
        methods = [
            self.key(entry["method"])
            + Markup("<strong>{}</strong>: {}").format(
                self.names[entry["method"]], wording.description(entry, self.scenario)
            )
            for entry in self.methods
        ]
        parts = [part("items", methods, "methods"), text(self._what_ran())]
        if "topology" in self.figures:
            parts += [text(wording.topology_text(self.built)), *self.figure("topology")]
            lines, summary = up_links(self.scenario, self.built), "Links between switches, and what crosses them"
            parts += [part("details", summary, [part("items", lines)], len(lines) <= LINES_MOST)] if lines else []
        shared, single = self._notes()
        parts += [text("Notes", tag="h3"), part("items", shared)] if shared else []
        parts += [part("details", "Notes on single methods", [part("items", single)])] if single else []
        parts += [
            text("How to repeat it", tag="h3"),
            text(shlex.join(self.host["command"]), tag="pre"),
            text(self._how_it_repeats()),
        ]
        return parts

    def _details(self, table: Markup) -> list[Markup]:
        """What is folded on the screen, and open in print but for what results.json has word for word."""
        scenario = part("plain_table", [], _scenario_rows(self.scenario), "scenario")
        folded = {
            "Further numbers: algbw, busbw, …": table,
            "How each number is defined": part("facts", self._definitions()),
            "What ran on what": part("facts", _facts(self.built, self.host)),
            "The scenario, with every default filled in": scenario,
        }
        parts = [part("details", summary, [content]) for summary, content in folded.items()]
        raw = []
        for entry in self.methods:
            keys = [key for key in ("environment", "switch_counters") if entry[key]]
            raw += [text(self.names[entry["method"]], tag="h3")] if keys else []
            raw += [text(json.dumps(entry[key], indent=1, sort_keys=True), tag="pre") for key in keys]
        return [*parts, part("details", "Links and settings as read back, and counters", raw, False, "screen")]

    def _notes(self) -> tuple[list[str], list[str]]:
        """Those that all methods share, and each method's own under its name."""
        shared = [note for note in self.methods[0]["notes"] if all(note in entry["notes"] for entry in self.methods)]
        single = [
            f"{self.names[entry['method']]}: {note}"
            for entry in self.methods
            for note in entry["notes"]
            if note not in shared
        ]
        return shared, single

    def _what_ran(self) -> str:
        workload, first = self.scenario.workload, self.methods[0]
        what = "Each method trained from the same start on the same data"
        if wording.replayed(self.built):
            what = "Each method moved what one profile says"
        return (
            f"{what}: {wording.bytes_text(first['gradient_bytes'])} of gradients per iteration, {workload.iterations} "
            f"iterations, batch {workload.batch_per_worker} on each of {self.scenario.topology.workers} workers"
            f"{', in turn, block by block' if self.in_turn else ', one method after the other'}."
        )

    def _how_it_repeats(self) -> Markup:
        results = Markup("<code>results.json</code>")
        repeats = Markup(
            "In virtual time the same scenario and seed give the same {}, byte by byte, with the same package versions."
        )
        if self.built["backend"] != "sim":
            repeats = Markup(
                "In real time the parameters of the switch method repeat bit by bit, the times within their spread."
            )
        files = Markup(
            "{} beside this file holds every number of this report, <code>host.json</code> the facts of this machine."
        )
        return Markup("Seed {}. {} {}").format(self.scenario.seed, repeats.format(results), files.format(results))

    def _definitions(self) -> list[tuple[str, str]]:
        framings = ", ".join(
            f"{self.names[entry['method']]} {wording.percent_text(entry['summary']['bound']['framing_efficiency'])}"
            for entry in self.methods
        )
        definitions = dict(_WORDS["definitions"])
        definitions["Bound"] = definitions["Bound"].format(framings=framings)
        if self.in_turn:
            definitions["Interval"] = definitions["Interval"].format(blocks=len(self.methods[0]["blocks"]))
        else:
            del definitions["Interval"]
        return list(definitions.items())


def render(built: dict[str, Any], host: dict[str, Any], drawn: Mapping[str, Figure]) -> str:
    """The report's HTML. `drawn`: figures by name."""
    page = _Page(built, host, drawn)
    sections = page.sections()
    header = [*page.header(), part("nav", sections)]
    return page_kit.render(page.scenario.title, header, sections, crossed=page.stamp["kind"] == "invalid")


_SECTIONS = {
    "numbers": "The numbers",
    "time": "Where the time goes",
    "network": "What the links carried",
    "learning": "What was learned",
    "trust": "How the times were checked",
    "set-up": "Set-up",
    "details": "Details",
}
"""Parts of the page, in its order."""


def _table(label: str, heads_and_rows: tuple[list[str], list[Row]]) -> Markup:
    heads, rows = heads_and_rows
    return part("table", heads, rows, label, "" if heads[0] == "" else "many")


def _stamp(built: dict[str, Any]) -> dict[str, Any]:
    """The verdict over all methods: word, class and one sentence. Ranks that differ outweigh any certificate."""
    if wrong := [entry for entry in built["methods"] if unequal_ranks(entry)]:
        names = " and ".join(wording.in_text(entry["method"]) for entry in wrong)
        reasons = " and ".join(dict.fromkeys(map(wording.why_different, wrong)))
        text = f"With {names} the ranks ended with different parameters: {reasons}."
    elif pairs := differing(built):
        names = ", ".join(f"{wording.in_text(method)} and {wording.in_text(other)}" for method, other in pairs)
        text = f"By one codec in the same packets {names} ended with different parameters."
    else:
        return verdict_stamp(built["verdict"])
    return {"word": "WRONG", "kind": "invalid", "text": f"{text} Nothing in this report can be used."}


def verdict_stamp(verdict: str | None) -> dict[str, Any]:
    """The same from a verdict alone; None: in virtual time."""
    kept_rates = "The emulated links kept their rates while each method ran"
    texts = {
        None: "The network is simulated: no busy machine can disturb these times, and a second run repeats them.",
        VALID: f"{kept_rates}: these times can be trusted.",
        DISTURBED: f"{kept_rates}, but computing was disturbed, so iteration times are not the methods' alone. End "
        "other programs, or use fewer workers, and run again.",
        INVALID: "This machine did not emulate the links faithfully: do not use or quote the times in this report. The "
        "usual causes are a rate that is too high for this machine, and other programs that kept its CPUs busy.",
    }
    return {"word": verdict or "VIRTUAL TIME", "kind": (verdict or "virtual").lower(), "text": texts[verdict]}


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
