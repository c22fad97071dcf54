"""The benchmark as one HTML page that needs nothing else: the answer, figures, baselines, tables, the machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from emulation.experiments.bench import text_table
from emulation.experiments.bench.allreduce.answer import SUMMARY_HEADS, answer, summary
from emulation.experiments.bench.document import failures
from emulation.report import page_kit

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
    text = page_kit.render(
        "bench",
        built=built,
        answer=answer(built),
        summary_heads=SUMMARY_HEADS,
        summary=summary(built),
        failures=[*itertools.chain(*failures(parts, tuple(parts)))],
        figures=[page_kit.drawn(figure, name, CAPTIONS[name], TITLES[name]) for name, figure in figures.items()],
        titles=TITLES,
        networks=networks,
        facts=[(name.replace("_", " "), value) for name, value in {**built["machine"], **built["load"]}.items()],
    )
    path.write_text(text, encoding="utf-8")
