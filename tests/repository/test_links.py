"""Pages and notebooks of the repository: links and paths in code name files that are there, links also headings."""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from posixpath import dirname, join, normpath

import pytest
from repository_tree import ROOT, Tree, repository, repository_files

FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]*)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
PATH = re.compile(r"`((?:switchagg|p4|transport|emulation|tests|docs|tools|examples)/[\w./-]+)`")
ELSEWHERE = re.compile(r"[a-z]+:")


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and the site give to a page's headings."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{number}" if number else slug for slug, last in found.items() for number in range(last + 1)}


def links(text: str) -> Iterator[str]:
    """Targets of links and images, those in code left out."""
    for target in LINK.findall(INLINE_CODE.sub("", FENCE.sub("", text))):
        if not ELSEWHERE.match(target):
            yield target


def broken_links(tree: Tree, files: set[str]) -> list[str]:
    faults = []
    for page in (name for name in tree if name.endswith((".md", ".ipynb"))):
        for target in links(tree[page]):
            path, _, anchor = target.partition("#")
            name = normpath(join(dirname(page), path)) if path else page
            if name not in files:
                faults.append(f"{page}: {target}: there is no file {name}")
            elif anchor and anchor not in anchors(tree.get(name, "")):
                faults.append(f"{page}: {target}: {name} has no such heading")
    return faults


def missing_paths(tree: Tree, files: set[str]) -> list[str]:
    """Paths of this repository, written as code, where nothing is."""
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return [
        f"{page}: {path}: nothing is there"
        for page, text in tree.items()
        if page.endswith(".md") and page != "CHANGELOG.md"
        for path in PATH.findall(text)
        if normpath(path) not in files | folders
    ]


CHECKS = [broken_links, missing_paths]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_no_link_fault(check: Callable[[Tree, set[str]], list[str]]) -> None:
    assert check(repository(), set(repository_files(ROOT))) == []


PAGE = "# One `two`: three\n\n## Again\n## Again\n```\n# no heading\n```\n"


@pytest.mark.parametrize("target", ["gone.md", "docs", "a.md#no-heading", "#two", "../a.md", "a.md#again-2"])
def test_rejects(target: str) -> None:
    assert len(broken_links({"a.md": f"{PAGE}[x]({target})"}, {"a.md", "docs/b.md"})) == 1


@pytest.mark.parametrize(
    "target", ["docs/b.md", "a.md#one-two-three", "#again-1", "https://a.b/c", "`[x](gone.md)`", "```\n](gone.md)\n```"]
)
def test_accepts(target: str) -> None:
    text = target if target.startswith("`") else f"[x]({target})"
    assert broken_links({"a.md": PAGE + text}, {"a.md", "docs/b.md"}) == []


def test_finds_links_from_folders() -> None:
    tree = {"docs/b.md": "![figure](../docs/c.png) [up](../a.md#one-two-three)", "a.md": PAGE}
    assert broken_links(tree, {"docs/b.md", "docs/c.png", "a.md"}) == []
    assert len(broken_links({"n.ipynb": '{"source": ["[x](gone.md)\\n"]}'}, set())) == 1


def test_finds_paths_that_are_not_there() -> None:
    tree = {"a.md": "`docs/b.md` `docs/` `docs` `gone.md` `docs/gone.md`\n`tests/gone/`"}
    assert len(missing_paths(tree, {"docs/b.md", "a.md"})) == 2
