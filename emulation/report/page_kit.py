"""Pages: one HTML file each that needs nothing else, all from the same base, style sheet and parts (`templates/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from emulation.report.svg import inline_svg


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


def drawn(figure: Any, name: str, caption: str = "", title: str = "") -> dict[str, Any]:
    """A figure as templates take it. title: "" if its caption says what it is."""
    return {"svg": inline_svg(figure, name, title or caption or name), "caption": caption, "title": title}
