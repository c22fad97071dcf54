"""Figures as SVG: colours of both themes, and what marks say."""

import re

import pytest
from matplotlib.figure import Figure

from emulation.report.page_kit import TEMPLATES
from emulation.report.svg import (
    CONTRAST_LEAST,
    DARK_PAPER,
    INK,
    PAPER,
    contrast,
    inline_svg,
    on_dark,
    paint,
    tip,
    tips,
)
from transport.group.method_name import METHODS

TEXT_CONTRAST_LEAST = 4.5  # WCAG's AA, of text


def drawn() -> tuple[Figure, str]:
    figure = Figure()
    axes = figure.subplots()
    (bar,) = axes.barh(0, 2, color="#0072B2")
    tip(bar, 'a "bar" <2>')
    axes.plot([1, 2, 3], [1, 4, 9], color="#000000")
    tips(axes, [(1, 1), (2, float("nan")), (3, 9)], ["one", "none", "nine"])
    axes.text(1, 1, "  words")
    return figure, inline_svg(figure, "name", "What it shows")


def test_marks_say_what_they_are_of_and_the_first_is_a_stop_of_the_tab_key() -> None:
    _, svg = drawn()
    assert re.findall(r"<title>(.*?)</title>", svg) == ['a "bar" &lt;2&gt;', "one", "nine"]
    assert re.findall(r'class="tip" role="img" tabindex="(-?\d)"', svg) == ["0", "-1", "-1"]
    assert "tip:" not in svg
    assert svg.startswith('<svg role="group" aria-label="What it shows" style="--width: 461; ')


def test_targets_of_pointers_are_no_lines_of_the_figure() -> None:
    figure, _ = drawn()
    assert len(figure.axes[0].lines) == 1


def test_a_line_that_was_cut_says_nothing_rather_than_what_is_another_point_s() -> None:
    figure = Figure()
    axes = figure.subplots()
    tips(axes, [(1, 1), (2, 2)], ["one ¦ more", "two"])
    assert "<title>" not in inline_svg(figure, "name")


def test_colours_of_the_page_are_its_own_and_others_are_lighter_where_dark_needs_it() -> None:
    _, svg = drawn()
    assert "white" not in svg
    assert f"var(--ink, {INK})" in svg
    assert "stroke: var(--ink, #000000)" in svg
    assert paint("fill", PAPER) == "fill: var(--paper, #ffffff)"
    assert paint("fill", "#0072B2") == "fill: #0072b2", "light enough as it is"
    assert paint("fill", "#882255") == f"fill: #882255; fill: light-dark(#882255, {on_dark('#882255')})"
    assert ">  words</text>" in svg, "text is text"


def test_words_of_both_themes_have_the_contrast_that_wcag_asks_of_text() -> None:
    style = (TEMPLATES / "style.html.j2").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in re.findall(r":root {([^}]*)}", style)[:2]
    )
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        colours = {
            name: "#" + "".join(2 * c for c in code[1:]) if len(code) == 4 else code for name, code in theme.items()
        }
        pairs = [(words, "paper") for words in ("ink", "soft", "link")]
        pairs += [
            ("good", "good-wash"),
            ("sure", "sure-wash"),
            ("odd", "odd-wash"),
            ("ink", "wash"),
            ("ink", "odd-wash"),
        ]
        assert min(contrast(colours[words], colours[field]) for words, field in pairs) >= TEXT_CONTRAST_LEAST
        assert contrast(colours["bad"], "#ffffff") >= TEXT_CONTRAST_LEAST


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_seen_on_a_dark_page(name: str) -> None:
    assert contrast(on_dark(METHODS[name].look.colour), DARK_PAPER) >= CONTRAST_LEAST
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
