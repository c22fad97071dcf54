"""What a page has its reader do: its commands, and the lines of output that they promise."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MODES = {"long", "exact", "never", "fails", "serves", "root"}
MARK = re.compile(r"<!-- run: *(?P<words>[a-z ]*?)(?:file (?P<file>[\w./-]+))? *(?:, *(?P<reason>.*?))? *-->")
FENCE = re.compile(r"^( *)```(\S*) *$")
HERE_DOCUMENT = re.compile(r"<<-? *(['\"]?)(\w+)\1")
COMMENT = re.compile(r"(?:^|\s)#.*$")
OURS = re.compile(r" *(\$ |(switchagg|torchrun|sudo|mn|python3?|make|pip) \S)")  # a command, in whatever block
REFUSED = re.compile(r"(switchagg|p4vm): |FAIL\b")

TIMES = r"ns|µs|us|ms|s|min|h"
SIZES = r"B|kB|KB|MB|GB|TB|KiB|MiB|GiB|bytes"
RATES = r"b/s|kb/s|Mb/s|Gb/s|B/s|kB/s|MB/s|GB/s"
NUMBER = r"[-+\u2212]?\d+(?:[_,]\d+)*(?:\.\d+)?(?:e[-+]?\d+)?"
PART = re.compile(
    rf"(?P<any>…|(?<!\.)\.\.\.(?!\.))|(?P<space>\s+)|(?P<rule>-{{5,}}|={{5,}}|_{{5,}})|(?P<path>(?<![\w.:/])/[\w.+-]+(?:/[\w.+-]+)*/?)"
    rf"|(?P<hash>\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{{7,}}\b)"
    rf"|(?P<number>{NUMBER})(?:(?P<gap> ?)(?:(?P<rate>{RATES})|(?P<size>{SIZES})|(?P<time>{TIMES}))(?![\w/]))?"
)


@dataclass
class Step:
    """One command of a page, or a file that one of its blocks is (`command` empty)."""

    line: int
    command: str
    shown: list[str] = field(default_factory=list)
    modes: frozenset[str] = frozenset()
    reason: str = ""
    file: str = ""
    last: bool = False

    @property
    def refused(self) -> bool:
        return ("fails" in self.modes and self.last) or any(REFUSED.match(line) for line in self.shown)

    @property
    def in_background(self) -> bool:
        return COMMENT.sub("", self.command).rstrip().endswith("&")


def blocks(text: str) -> Iterator[tuple[int, str, list[str], "re.Match[str] | None"]]:
    """Line of its fence, language, lines and mark of each fenced block."""
    mark, opened, language, indent = None, 0, "", ""
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened and fence and not fence[2]:
            yield opened, language, inside, mark
            opened, mark = 0, None
        elif opened:
            inside.append(line.removeprefix(indent))
        elif fence:
            opened, language, indent, inside = number, fence[2], fence[1], []
        elif found := MARK.search(line):
            mark = found
        elif line.strip():
            mark = None


def steps(text: str) -> list[Step]:
    """All that a page has the reader do, in order. Raises ValueError: a mark that says nothing."""
    found: list[Step] = []
    for opened, language, lines, mark in blocks(text):
        modes = frozenset(mark["words"].split()) if mark else frozenset()
        reason = (mark["reason"] or "") if mark else ""
        if unknown := modes - MODES:
            raise ValueError(f"line {opened}: run: {' '.join(sorted(unknown))} is unknown; known: {sorted(MODES)}")
        if "never" in modes and not reason:
            raise ValueError(f"line {opened}: run: never, and the reason why")
        if mark and mark["file"]:
            found.append(Step(opened, "", lines, modes, reason, file=mark["file"]))
        elif language == "console":
            found += console_steps(opened, lines, modes, reason)
    return found


def console_steps(opened: int, lines: list[str], modes: frozenset[str], reason: str) -> list[Step]:
    found: list[Step] = []
    until = ""  # of a here-document, or "\\": the command goes on
    for number, line in enumerate(lines, opened + 1):
        if until:
            found[-1].command += f"\n{line}"
        elif line.startswith("$ "):
            found.append(Step(number, line[2:], [], modes, reason))
        elif found and line.strip():
            found[-1].shown.append(line)
        if until in ("", "\\") and found and (until or line.startswith("$ ")):
            document = HERE_DOCUMENT.search(line)
            until = document[2] if document else "\\" if line.endswith("\\") else ""
        elif until not in ("", "\\") and line.strip() == until:
            until = ""
    if found:
        found[-1].last = True
    return found


def unmarked_commands(text: str) -> list[int]:
    """Lines of blocks that show commands without being ```console, so that nobody runs them."""
    languages = ("", "text", "sh", "bash", "shell")
    return [
        opened + number
        for opened, language, lines, mark in blocks(text)
        if language in languages and mark is None
        for number, line in enumerate(lines, 1)
        if OURS.match(line) and (language != "text" or line.startswith("$ "))
    ]


def pattern(shown: str, exact: bool = False) -> "re.Pattern[str]":
    """What a line of output must be like to be the one shown."""
    parts, end = [], 0
    for part in PART.finditer(shown.strip()):
        parts.append(re.escape(shown.strip()[end : part.start()]))
        end = part.end()
        if part["any"]:
            parts.append(".*")
        elif part["space"]:
            parts.append(r"\s+")
        elif part["rule"]:  # across the terminal
            parts.append(f"{part['rule'][0]}+")
        elif exact:
            parts.append(re.escape(part[0]))
        elif part["path"]:
            parts.append(r"/\S*" if part["path"].count("/") > 1 else re.escape(part[0]))
        elif part["hash"]:
            parts.append("[0-9a-f]+")
        else:
            units = TIMES if part["time"] else SIZES if part["size"] else RATES if part["rate"] else ""
            parts.append(NUMBER + (f"{part['gap']}(?:{units})" if units else ""))
    return re.compile("".join([*parts, re.escape(shown.strip()[end:])]))


def missing_line(shown: Sequence[str], output: str, exact: bool) -> str | None:
    """The first line shown that doesn't stand in `output` below the one before it; None: all do."""
    written = iter(re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)))
    for line in shown:
        if line.strip() in ("…", "..."):
            continue
        expected = pattern(line, exact)
        if not any(expected.fullmatch(each.strip()) for each in written):
            return line
    return None
