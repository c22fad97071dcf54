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
from emulation.experiments.bench.bench_figures import FIGURES, BenchFigure
from emulation.experiments.bench.document import failures
from emulation.report import page_kit, wording
from emulation.report.page_kit import Section, part, text
from emulation.results.whole_file import write_text


def write_page(
    built: dict[str, Any], drawn: Mapping[str, Figure], path: Path, figures: Mapping[str, BenchFigure] = FIGURES
) -> None:
    """The figures stand in the page as SVG. drawn: by their names in `figures`. Raises OSError."""
    parts = built["parts"]
    networks = {
        name: [
            "\n".join([*text_table.heading(network), *map(text_table.line, network["rows"])])
            for network in parts[name]
            if network["rows"]
        ]
        for name, part_of_document in parts.items()
        if isinstance(part_of_document, list)
    }
    title = "switchagg benchmark" + ", quick run" * built["quick"]
    first = answer(built)
    header = [text(title, "title", "h1")]
    if first is not None:
        stamp = first["stamp"]
        header = page_kit.opening(
            title,
            compared=[text(first["what"])],
            outcome=[part("number", first["number"], first["bound"]), *map(text, first["sentences"])],
            trust=[part("stamp", stamp["kind"], stamp["word"], stamp["text"])],
        )
    sections = [
        Section(figures[name].title, [page_kit.figure(drawing, name, figures[name].caption, figures[name].title)])
        for name, drawing in drawn.items()
    ]
    if first is None:
        header.append(text(sections[0].title if sections else "Nothing was measured", tag="h2"))
        sections[:1] = [replace(section, title="") for section in sections[:1]]
    if rows := summary(built):
        longest = "The longest arrays, with bound and baseline"
        sections.append(Section(longest, [part("plain_table", SUMMARY_HEADS, rows, longest)]))
    if missing := [*itertools.chain(*failures(parts, tuple(parts)))]:
        sections.append(Section("Not measured", [part("items", missing)]))
    defined = "Columns, bounds and conditions are defined in emulation/experiments/bench/README.md."
    numbers = [
        part(
            "details",
            figures[name].title if name in figures else name.title(),
            [text(table, "columns", "pre") for table in tables],
        )
        for name, tables in networks.items()
    ]
    facts = wording.facts({**built["machine"], **built["load"]})
    sections += [
        Section("Numbers", [text(defined, "soft"), *numbers]),
        Section("Machine, and its load during the run", [part("facts", facts)]),
    ]
    write_text(path, page_kit.render(title, header, sections))
