"""Figures as SVG within a page: text stays text, colours follow light and dark, values are told on hover.

What a mark stands for travels with the figure itself, as the id of its artist (`tip`, `tips`).
"""

from __future__ import annotations

import html
import io
import itertools
import re
from collections.abc import Iterable
from math import isnan
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

INK, PAPER, GRID, QUIET = "#1b1f24", "#ffffff", "#e4e4e4", "#bbbbbb"
ON_LIGHT, ON_DARK = "#101418", "#fdfdfd"
"""Text on a coloured field, which is the same in light and dark."""

DARK_PAPER = "#15191e"
WIDTH = 5.4
"""Of a figure, in inches: a screen of 400 px shows all of it, with text of 10 points at 9.5 px."""
CONTRAST_LEAST = 3.0  # WCAG's, of graphics

_THEME = {
    INK: "ink", PAPER: "paper", GRID: "line", QUIET: "quiet", "#000000": "ink", "#222222": "ink", "#555555": "soft",
    "#dddddd": "host", "#f4f4f4": "wash",
}  # fmt: skip
"""Colours that are the page's own in its style sheet, by its names."""

_TIP, _BETWEEN = "tip:", " ¦ "
_COLOUR = re.compile(r"\b(fill|stroke): ?(#[0-9a-f]{6})")
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_MARKED = re.compile(rf"""<g id=(["']){_TIP}(.*?)\1>""")
_FONT = re.compile(r" ?font-family: [^;\"]*;?")
_USE = re.compile(r"(<use [^>]*?) ?/>")


def tip(artist: Artist, text: str) -> None:
    """What a mark says when it is pointed at."""
    artist.set_gid(_TIP + text)


def tips(axes: Axes, points: Iterable[tuple[float, float]], texts: Iterable[str]) -> None:
    """What points of a line say: targets that aren't seen, wide enough for a finger."""
    chosen = [(point, text) for point, text in zip(points, texts, strict=True) if not isnan(point[1])]
    if chosen:
        xs, ys = zip(*(point for point, _ in chosen), strict=True)
        words = _TIP + _BETWEEN.join(text for _, text in chosen)
        axes.scatter(xs, ys, s=170, color=INK, alpha=0, linewidths=0, zorder=9, gid=words)


def contrast(colour: str, other: str) -> float:
    """WCAG's ratio of luminances, 1 to 21."""
    low, high = sorted(map(_luminance, (colour, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def on_dark(colour: str) -> str:
    """The colour itself, or as much lighter as a dark page needs."""
    for step in range(20):
        red, green, blue = (part + (1 - part) * step / 20 for part in to_rgb(colour))
        lifted = to_hex((red, green, blue))
        if contrast(lifted, DARK_PAPER) >= CONTRAST_LEAST:
            return lifted
    return PAPER


def paint(name: str, colour: str) -> Markup:
    """A declaration in CSS of a colour on light and dark pages. name: of a property, like "fill"."""
    colour = to_hex(colour)
    if (variable := _THEME.get(colour)) is not None:
        return Markup(f"{name}: var(--{variable}, {colour})")
    dark = colour if colour in (ON_LIGHT, ON_DARK) else on_dark(colour)
    both = "" if dark == colour else f"; {name}: light-dark({colour}, {dark})"
    return Markup(f"{name}: {colour}{both}")


def inline_svg(figure: Figure, name: str, label: str = "") -> Markup:
    """The figure as an <svg> element. Same figure, same text; ids start with `name`, so that several fit one page.

    label: what a screen reader calls it.
    """
    buffer = io.StringIO()
    facts: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=facts, transparent=True)
    text = buffer.getvalue()
    text = re.sub(r'\bfill="(#[0-9a-f]{6})"', r'style="fill: \1"', text[text.index("<svg") :])
    text = _COLOUR.sub(lambda match: paint(match[1], match[2]), text)
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _FONT.sub("", re.sub(r"\n\s*", "\n", text))
    text = _with_tips(text)
    text = _ID.sub(lambda match: f"{match[1]}{name}-", text)
    width = figure.get_size_inches()[0] * 72
    aria = html.escape(label or name, quote=True)
    style = f"--width: {width:.0f}; font-family: DejaVu Sans, sans-serif"
    return Markup(text.replace("<svg ", f'<svg role="group" aria-label="{aria}" style="{style}" ', 1))


def _with_tips(text: str) -> str:
    """Marks with what they say as a <title>, and of each figure the first among the stops of the tab key."""
    stops = itertools.chain(("0",), itertools.repeat("-1"))

    def titled(words: str) -> tuple[str, str]:
        title = words.strip()
        return f' class="tip" role="img" tabindex="{next(stops)}">', f"<title>{title}</title>"

    first, *marked = _MARKED.split(text)
    done = [first]
    for words, body in zip(marked[1::3], marked[2::3], strict=True):
        end = body.index("</g>")
        count, texts = len(_USE.findall(body[:end])), words.split(_BETWEEN)
        if not count:
            done += ["<g", *titled(words), body]
            continue
        if count == len(texts):  # else a line that was cut: nothing rather than what isn't so
            titles = map("".join, map(titled, texts))
            body = _USE.sub(lambda use, titles=titles: f"{use[1]}{next(titles)}</use>", body[:end]) + body[end:]
        done.append(f"<g>{body}")
    return "".join(done)
