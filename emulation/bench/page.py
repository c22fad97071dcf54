"""The benchmark as one HTML page that needs nothing else: targets, figures, tables, the machine."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from emulation.bench import collectives, table
from emulation.bench.document import failures
from emulation.bench.figures import draw_all
from emulation.bench.links import one_way as links
from emulation.bench.planes import p4, packet_engine
from emulation.bench.targets import cells, judged
from emulation.report.figures import inline_svg

TITLES = {
    "allreduce": "Allreduce on shaped links",
    "speedup": "Against Gloo",
    "unshaped": "Without a rate limit",
    "loss": "Loss",
    "racks": "Racks",
    "planes": "Data planes in memory",
    "codecs": "Allreduce with codecs",
    "numbers": "Codecs in memory",
    "links": "Links one way",
    "p4": "P4 engine",
    "engine": "Packet engines of virtual time",
    "collectives": "Host collectives in virtual time",
}
NETWORKS = ("allreduce", "unshaped", "codecs", "loss", "racks")


def write_page(built: dict[str, Any], path: Path) -> None:
    """Draws the figures again, as SVG. Raises OSError."""
    environment = Environment(loader=PackageLoader("emulation.report"), autoescape=True, undefined=StrictUndefined)
    parts = built["parts"]
    networks = {
        name: [
            "\n".join([*table.heading(network), *map(table.line, network["rows"])])
            for network in parts[name]
            if network["rows"]
        ]
        for name in NETWORKS
        if parts.get(name)
    }
    for name, module in (("links", links), ("collectives", collectives), ("p4", p4), ("engine", packet_engine)):
        if parts.get(name, {}).get("rows"):
            networks[name] = ["\n".join(module.lines(parts[name]))]
    text = environment.get_template("bench.html.j2").render(
        built=built,
        targets=[cells(verdict) for verdict in judged(built)],
        failures=[*itertools.chain(*failures(parts, tuple(parts)))],
        figures={name: Markup(inline_svg(figure, name)) for name, figure in draw_all(built).items()},
        titles=TITLES,
        networks=networks,
        facts=[(name.replace("_", " "), value) for name, value in {**built["machine"], **built["load"]}.items()],
    )
    path.write_text(text, encoding="utf-8")
