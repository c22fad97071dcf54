"""What every HTML page must be that a command writes: well-formed, self-contained, for light, dark, small screens."""

import re
from html.parser import HTMLParser

STEPS = ("What was compared", "What came out", "Whether to trust it")
WIDTH_MOST = 400.0
COLUMNS_ABREAST = 3  # on a screen of 400 px


class Page(HTMLParser):
    """Fails on a tag that is closed wrongly; collects ids, what is loaded from elsewhere, and the marks of figures."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.told: list[str] = []
        self.outside: list[str] = []
        self._classes: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.loaded += [
            given[name] for name in ("src", "href", "xlink:href", "data") if not given.get(name, "#").startswith("#")
        ]
        self.ids += [given["id"]] if "id" in given else []
        if tag == "table" and "scroll" not in self._classes:
            self.outside.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
            self._classes.append(given.get("class", ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["title"] and "tip" in self._classes:
            self.told.append(data)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        self._classes.pop()


def checked(text: str, links: tuple[str, ...] = (), steps: tuple[str, ...] = STEPS) -> Page:
    """The page, after everything that all pages promise. links: what it may point to; steps: of its beginning."""
    page = Page(text)
    assert [each for each in page.loaded if each not in links] == []
    assert "@import" not in text
    assert len(page.ids) == len(set(page.ids)), "figures must not share ids"
    for reference in re.findall(r'(?:url\(#|href="#)([^)"]+)', text):
        assert reference in page.ids
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "color-scheme: light dark" in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert page.outside == [], "tables scroll in boxes of their own"
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        if table.count('<th scope="col">') > COLUMNS_ABREAST:
            assert " cards" in table.partition(">")[0], "a small screen shows each row as a card"
            assert table.count("<td") == table.count('<td data-label="'), "whose cells bear their column's name"
    assert not re.search(r"(?<![-\w])(?:min-)?width: ?\d{3,}px", text), "no fixed widths"
    assert text.count("<h1") == 1
    assert re.findall(r'<h2 class="step">(.*?)</h2>', text) == list(steps)
    assert "@media print" in text
    for svg in re.findall(r"<svg .*?</svg>", text, re.DOTALL):
        width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])  # type: ignore[index]
        assert width <= WIDTH_MOST, "a screen of 400 px shows all of a figure, with text that can be read"
        assert re.match(r'<svg role="group" aria-label="[^"]+"', svg)
        assert svg.count('tabindex="0"') == (1 if "<title>" in svg else 0), "one stop of the tab key for each figure"
    assert len(text) < 1_000_000
    return page
