"""Pages: one HTML file each that needs nothing else, all from the same base, style sheet and parts (`templates/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from emulation.report.svg import inline_svg
from emulation.scenario.errors import RunFailed


def render(template: str, **values: Any) -> str:
    """A page's HTML. template: its name, without the ending."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.html.j2").render(**values)


def insert_results(page: Path, command: str, text: str) -> None:
    """Replace what stands on a page of docs/ between the lines that name this command and the end of its results.

    Raises RunFailed for a page without these lines, OSError.
    """
    begin, end = f"<!-- measured: written by `{command}` -->", "<!-- end -->"
    before, begins, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise RunFailed(f"{page}: has no place for the results: lines '{begin}' and '{end}'")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def drawn(figure: Any, name: str, caption: str = "", title: str = "") -> dict[str, Any]:
    """A figure as templates take it. title: "" if its caption says what it is."""
    return {"svg": inline_svg(figure, name, title or caption or name), "caption": caption, "title": title}
