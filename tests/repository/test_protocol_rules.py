"""The protocol's rules and their citations: a rule that code names stands in one page of the protocol, and somebody
names each. A letter's rules stand in one page, so its number says where a rule is; links, and pages that code names
beside a rule, lead there.

Each check is a function from a tree of files to the faults found; each is shown a tree it must reject.
"""

import re
from collections.abc import Callable, Iterator
from posixpath import basename, dirname, join, normpath

import pytest
from repository_tree import Tree, repository

PROTOCOL, PROTOCOL_PAGES = "switchagg/PROTOCOL.md", ("switchagg/PROTOCOL.md", "switchagg/protocol/")

# A rule is defined where its number, in bold, opens a paragraph.
GROUPS = "PSHWFCRVLGQXAM"
RULE_DEFINITION = re.compile(rf"^\*\*([{GROUPS}][1-9]\d?)\*\* ", re.MULTILINE)
RULE_LINK = re.compile(rf"\[([{GROUPS}][1-9]\d?)(?: to [{GROUPS}]\d+)?\]\(([^)#\s]*)")
RULE_OF_PAGE = re.compile(rf"\b([{GROUPS}][1-9]\d?)\)?\W+of\W+(?:\w+/)*([\w-]+\.md)")
RULE_CITATION = re.compile(rf"(?<![\w/.\\-])(?<!annex )([{GROUPS}][1-9]\d?)(?![\w-])")
RULE_RANGE = re.compile(rf"\b([{GROUPS}])(\d{{1,2}}) to \1(\d{{1,2}})\b")
NOT_CITING = ("p4/", "tests/repository/test_protocol_rules.py")
CITING_SUFFIXES = (".py", ".c", ".h", ".p4", ".stf")


def rules_cited(line: str) -> Iterator[str]:
    yield from RULE_CITATION.findall(line)
    for letter, first, last in RULE_RANGE.findall(line):
        yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))


def citations(tree: Tree) -> dict[str, str]:
    """Rule number -> one place that cites it. Neither this file counts nor P4's engine, which knows no protocol."""
    places: dict[str, str] = {}
    for name, text in tree.items():
        if name.endswith(CITING_SUFFIXES) and not name.startswith(NOT_CITING):
            for number, line in enumerate(text.splitlines(), 1):
                for rule in rules_cited(line):
                    places.setdefault(rule, f"{name}:{number}")
    return places


def rules_of(tree: Tree) -> list[tuple[str, str]]:
    """Each definition's rule and page."""
    pages = (name for name in tree if name.startswith(PROTOCOL_PAGES))
    return [(rule, page) for page in pages for rule in RULE_DEFINITION.findall(tree[page])]


def unknown_rules(tree: Tree) -> list[str]:
    defined = dict(rules_of(tree))
    return [f"{place}: {rule} is not in {PROTOCOL}" for rule, place in citations(tree).items() if rule not in defined]


def uncited_rules(tree: Tree) -> list[str]:
    cited, rules = citations(tree), sorted(dict(rules_of(tree))) or ["no rule"]
    return [f"{PROTOCOL}: {rule} is cited by no source and no test" for rule in rules if rule not in cited]


def rules_defined_twice(tree: Tree) -> list[str]:
    seen: set[str] = set()
    return [f"{page}: {rule} is defined again" for rule, page in rules_of(tree) if rule in seen or seen.add(rule)]


def scattered_letters(tree: Tree) -> list[str]:
    places: dict[str, set[str]] = {}
    for rule, page in rules_of(tree):
        places.setdefault(rule[0], set()).add(page)
    return [f"{letter}: {', '.join(sorted(pages))}" for letter, pages in places.items() if len(pages) > 1]


def links_astray(tree: Tree) -> list[str]:
    """Links whose text is a rule, to a page of the protocol in which it isn't."""
    places = dict(rules_of(tree))
    return [
        f"{name}: {rule}: {target}"
        for name, text in tree.items()
        if name.endswith(".md")
        for rule, target in RULE_LINK.findall(text)
        if normpath(join(dirname(name), target)).startswith(PROTOCOL_PAGES)
        if normpath(join(dirname(name), target)) != places.get(rule)
    ]


def pages_misnamed(tree: Tree) -> list[str]:
    """Code that names a rule as one "of" a page, and it isn't there."""
    places = {rule: basename(page) for rule, page in rules_of(tree)}
    return [
        f"{name}: {rule} of {page}"
        for name, text in tree.items()
        if name.endswith(CITING_SUFFIXES) and name not in NOT_CITING
        for rule, page in RULE_OF_PAGE.findall(text)
        if page != places.get(rule)
    ]


CHECKS = [unknown_rules, uncited_rules, rules_defined_twice, scattered_letters, links_astray, pages_misnamed]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_protocol_has_none_of(check: Callable[[Tree], list[str]]) -> None:
    assert len(repository()) > 10, "the list of files came back nearly empty"
    assert check(repository()) == []


RULES = "## Rules\n\n**S1** one\n\n**W2** two\n"
ANNEX = "switchagg/protocol/trees.md"
REJECTED: list[tuple[Callable[[Tree], list[str]], Tree]] = [
    (unknown_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1 and S3."""'}),
    (unknown_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1 to S2, and W2."""'}),
    (unknown_rules, {PROTOCOL: RULES, "switchagg/codecs/constant.py": '"""Nothing shows (X5)."""'}),
    (uncited_rules, {PROTOCOL: RULES, "switchagg/wire.py": '"""Keeps S1."""'}),
    (uncited_rules, {PROTOCOL: "no rule here\n"}),
    (rules_defined_twice, {PROTOCOL: RULES, ANNEX: "**W2** two, again\n"}),
    (scattered_letters, {PROTOCOL: RULES, ANNEX: "**W3** three\n"}),
    (links_astray, {PROTOCOL: RULES, ANNEX: "**H1** one\n", "docs/p4.md": "[H1 to H2](../switchagg/PROTOCOL.md)"}),
    (links_astray, {PROTOCOL: RULES, "docs/p4.md": "[S3](../switchagg/PROTOCOL.md)"}),
    (pages_misnamed, {PROTOCOL: RULES, ANNEX: "**H1** one\n", "switchagg/wire.py": '"""H1 of\nPROTOCOL.md."""'}),
    (pages_misnamed, {PROTOCOL: RULES, "switchagg/wire.py": "# S1 and S2 (rule S1) of protocol/trees.md"}),
]


@pytest.mark.parametrize(("check", "bad"), REJECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_rejects(check: Callable[[Tree], list[str]], bad: Tree) -> None:
    assert len(check(bad)) == 1


ACCEPTED: Tree = {
    PROTOCOL: RULES,
    "switchagg/protocol/control.md": "**L1** three\n",
    "docs/p4.md": "[S1](../switchagg/PROTOCOL.md#rules), [L1](../switchagg/protocol/control.md)\n",
    "switchagg/wire.py": '"""Packets (S1, L1)."""\n',
    "switchagg/endpoint.py": "# W2 of switchagg/PROTOCOL.md\n",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_accepts(check: Callable[[Tree], list[str]]) -> None:
    assert check(ACCEPTED) == []
