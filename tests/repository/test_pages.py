"""The documentation stays readable: how many words, how many clicks away, and what a guide's first paragraph says."""

import re
from collections.abc import Callable
from posixpath import dirname, join, normpath

import pytest
from repository_tree import Tree, repository
from test_links import FENCE, links

GUIDES = (
    "start",
    "emulate",
    "attach",
    "methods",
    "codecs",
    "training",
    "sharing",
    "failures",
    "security",
    "packet-tests",
    "p4",
    "your-run",
)
README, GUIDE_WORDS, ALL_WORDS, README_LINES, CLICKS, SENTENCE_WORDS = "README.md", 1_200, 45_000, 130, 2, 40


def pages(tree: Tree) -> dict[str, str]:
    return {name: text for name, text in tree.items() if name.endswith(".md") and name != "CHANGELOG.md"}


def guides() -> list[str]:
    return [f"docs/{name}.md" for name in GUIDES]


def long_pages(tree: Tree) -> list[str]:
    """Words are those of `wc -w`: tables, commands and their outputs count."""
    words = {name: len(text.split()) for name, text in pages(tree).items()}
    faults = [f"{name}: {words[name]} words" for name in guides() if words.get(name, 0) > GUIDE_WORDS]
    total = sum(words.values())
    return [*faults, *([f"all pages: {total} words"] if total > ALL_WORDS else [])]


def distant_pages(tree: Tree) -> list[str]:
    """Pages that a reader of README.md does not reach in two clicks."""
    reached = {README}
    for _ in range(CLICKS):
        targets = {
            normpath(join(dirname(page), target.partition("#")[0]))
            for page in reached & pages(tree).keys()
            for target in links(tree[page])
        }
        reached |= targets
    return sorted(pages(tree).keys() - reached - {"CHANGELOG.md"})


def unordered_guides(tree: Tree) -> list[str]:
    """README.md links the guides in the order in which a person meets them; any other page in docs is no guide."""
    listed = re.findall(r"^\d+\. .*?\]\((docs/[a-z0-9-]+\.md)\)", tree[README], re.MULTILINE)
    others = [name for name in pages(tree) if re.fullmatch(r"docs/[^/]+\.md", name) and name not in guides()]
    return [*others, *([] if listed == guides() else [f"README.md lists {listed}"])]


def silent_beginnings(tree: Tree) -> list[str]:
    """Guides whose first paragraph doesn't say what one can do after reading."""
    first = {name: re.sub(r"^# .*\n+", "", tree.get(name, "")).partition("\n\n")[0] for name in guides()}
    return [name for name, paragraph in first.items() if not re.search(r"you can\b", paragraph)]


def long_readme(tree: Tree) -> list[str]:
    lines = tree[README].count("\n")
    return [f"README.md: {lines} lines"] if lines > README_LINES else []


def long_sentences(tree: Tree) -> list[str]:
    """Sentences of README.md and of guides that nobody reads aloud in a breath. Tables and commands are none."""
    faults = []
    for name in [README, *guides()]:
        lines = [line for line in FENCE.sub("", tree.get(name, "")).splitlines() if not re.match(r"[|#!<]", line)]
        for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", "\n".join(lines)):
            for sentence in re.split(r"(?<=[.?!:;])\s+", block):
                if len(sentence.split()) > SENTENCE_WORDS:
                    faults.append(f"{name}: {' '.join(sentence.split()[:8])} …")
    return faults


CHECKS = [long_pages, distant_pages, unordered_guides, silent_beginnings, long_readme, long_sentences]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_has_no_fault_of_pages(check: Callable[[Tree], list[str]]) -> None:
    assert check(repository()) == []


GUIDE = "# Title\n\nHere you can read.\n"
LISTED = "".join(f"{number}. [One]({name})\n" for number, name in enumerate(guides(), 1))
WHOLE = {README: LISTED, **dict.fromkeys(guides(), GUIDE)}


@pytest.mark.parametrize(
    ("check", "page", "text"),
    [
        (long_pages, "docs/p4.md", GUIDE + "word " * GUIDE_WORDS),
        (long_pages, "docs/results/a.md", "word " * ALL_WORDS),
        (distant_pages, "docs/results/a.md", "# A page that nobody links\n"),
        (unordered_guides, README, LISTED.replace("docs/p4.md", "docs/p5.md")),
        (unordered_guides, "docs/a.md", "# A thirteenth guide\n"),
        (silent_beginnings, "docs/p4.md", "# Title\n\nThe reasons come first.\n\nHere you can read.\n"),
        (long_readme, README, LISTED + "\n" * README_LINES),
        (long_sentences, "docs/p4.md", GUIDE + "and " * SENTENCE_WORDS + "so on."),
    ],
)
def test_rejects(check: Callable[[Tree], list[str]], page: str, text: str) -> None:
    assert check(WHOLE) == []
    assert len(check({**WHOLE, page: text})) == 1
