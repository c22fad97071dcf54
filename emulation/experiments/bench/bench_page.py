"""The benchmark as one HTML page that needs nothing else: the answer, figures, baselines, tables, the machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from emulation.experiments.bench import text_table
from emulation.experiments.bench.allreduce.answer import SUMMARY_HEADS, answer, summary
from emulation.experiments.bench.document import failures
from emulation.report import page_kit
from emulation.report.page_kit import Section, part, text

TITLES = {
    "allreduce": "Allreduce on shaped links",
    "speedup": "Against Gloo",
    "unshaped": "Without a rate limit",
    "loss": "Loss",
    "racks": "Racks",
    "planes": "Data planes in memory",
    "codecs": "Allreduce with codecs",
    "numbers": "Codecs in memory",
}
CAPTIONS = {
    "allreduce": "What each method moves, against size; dotted: what no host method can exceed.",
    "speedup": "The switch against Gloo, with the better of cubic and bbr. Below the grey line it does not pay; the "
    "dotted one is the bound. A small array gains round trips, not bytes, and so goes beyond it.",
    "unshaped": "What this machine carries where no link limits it, and the CPU time of a packet.",
    "codecs": "As many elements in each; the mark is the method's own bound.",
    "loss": "What is left of each method's own goodput.",
    "planes": "The switch alone, without a network.",
    "numbers": "What it costs to make gradients integers and back, beside a copy.",
}
NETWORKS = ("allreduce", "unshaped", "codecs", "loss", "racks")


def write_page(built: dict[str, Any], figures: Mapping[str, Figure], path: Path) -> None:
    """The figures stand in the page as SVG. Raises OSError."""
    parts = built["parts"]
    networks = {
        name: [
            "\n".join([*text_table.heading(network), *map(text_table.line, network["rows"])])
            for network in parts[name]
            if network["rows"]
        ]
        for name in NETWORKS
        if parts.get(name)
    }
    title = "switchagg benchmark" + ", quick run" * built["quick"]
    first = answer(built)
    header = [text(title, "title")]
    if first is not None:
        header += [
            part("number", first["number"], first["bound"]),
            text(first["what"], "lead"),
            part("stamp", first["stamp"]["kind"], first["stamp"]["word"], first["stamp"]["text"]),
            *map(text, first["sentences"]),
        ]
    sections = [
        Section(TITLES[name], [page_kit.figure(drawing, name, CAPTIONS[name], TITLES[name])])
        for name, drawing in figures.items()
    ]
    if first is None:
        header.append(text(sections[0].title if sections else "Nothing was measured", tag="h1"))
        sections[:1] = [replace(section, title="") for section in sections[:1]]
    if rows := summary(built):
        longest = "The longest arrays, with bound and baseline"
        sections.append(Section(longest, [part("plain_table", SUMMARY_HEADS, rows, longest)]))
    if missing := [*itertools.chain(*failures(parts, tuple(parts)))]:
        sections.append(Section("Not measured", [part("items", missing)]))
    defined = "Columns, bounds and conditions are defined in emulation/experiments/bench/README.md."
    numbers = [
        part("details", TITLES[name], [text(table, "columns", "pre") for table in tables])
        for name, tables in networks.items()
    ]
    facts = [(name.replace("_", " "), value) for name, value in {**built["machine"], **built["load"]}.items()]
    sections += [
        Section("Numbers", [text(defined, "soft"), *numbers]),
        Section("Machine, and its load during the run", [part("facts", facts)]),
    ]
    path.write_text(page_kit.render("benchmark", header, sections), encoding="utf-8")
