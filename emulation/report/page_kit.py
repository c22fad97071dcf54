"""Pages: one HTML file each that needs nothing else: a list of sections, all with the parts and style of `templates/`.

A part is HTML: `text`, `number`, `stamp`, `items`, `details`, `nav`, `figure`, `table`, `plain_table`, `facts` of
`parts.html.j2`, made by `part`. Words are escaped, unless they are Markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from emulation.report.svg import inline_svg
from emulation.results.whole_file import write_text
from emulation.scenario.errors import RunFailed

TEMPLATES = Path(__file__).parent / "templates"


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["joined"] = lambda words: (
    words if isinstance(words, Markup) else re.sub(r"(?<=\d) (?=[A-Za-zµ%]|\d{3}\b)", "\u00a0", str(words))
)
"""A number and its unit in one line."""
_PAGE = _ENVIRONMENT.get_template("page.html.j2")
_PARTS = _ENVIRONMENT.get_template("parts.html.j2").module


_STEPS = {"compared": "What was compared", "outcome": "What came out", "trust": "Whether to trust it"}


@dataclass(frozen=True)
class Section:
    """name: what links to it point to; "" if there are none."""

    title: str
    parts: Sequence[Markup]
    name: str = ""


def part(kind: str, *values: Any, **options: Any) -> Markup:
    """A part of a page. kind, values: as `parts.html.j2` has it."""
    return Markup(getattr(_PARTS, kind)(*values, **options))


def text(words: str, kind: str = "", tag: str = "p") -> Markup:
    """A paragraph, or a heading."""
    return part("text", words, kind, tag)


def figure(drawing: Figure, name: str, caption: str = "", title: str = "") -> Markup:
    """A figure as SVG, with its caption. title: what it shows, where the caption doesn't say it."""
    return part("figure", inline_svg(drawing, name, title or caption or name), caption)


def opening(title: str, **steps: Sequence[Markup]) -> list[Markup]:
    """What a reader with ten seconds needs. steps: by their names in `_STEPS`, in the order of the page."""
    parts = [text(title, "title", "h1")]
    for name, step in steps.items():
        parts += [text(_STEPS[name], "step", "h2"), *step]
    return parts


def render(title: str, header: Sequence[Markup], sections: Sequence[Section], *, crossed: bool = False) -> str:
    """A page's HTML. header: what stands above the first section. crossed: nothing in it can be used."""
    return _PAGE.render(title=title, header=header, sections=sections, crossed=crossed)


def insert_results(page: Path, command: str, text: str) -> None:
    """Replace what stands on a page of docs/ between the lines that name this command and the end of its results.

    Raises RunFailed for a page without these lines, OSError.
    """
    begin, end = f"<!-- measured: written by `{command}` -->", "<!-- end -->"
    before, begins, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise RunFailed(f"{page}: has no place for the results: lines '{begin}' and '{end}'")
    write_text(page, f"{before}{begin}\n\n{text}\n{end}{after}")
