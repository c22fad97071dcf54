"""Lines of generated code, Python or C, as a writer adds to them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from p4vm.source import NOWHERE, Position, engine_faults

INDENT = "    "
PLACE = re.compile(r"  (?:#|/\*) (.+):(\d+):(\d+)(?: \*/)?$")
"""The text that `marked` adds to a line."""


def marked(line: str, position: Position, comment: str) -> str:
    """The line with its place in the program behind it. comment: of the language, with {} for the text."""
    return f"{line}  {comment.format(str(position).replace('*/', '* /'))}"


def place_of(lines: list[str], number: int, file: str) -> Position:
    """Where in the program the line of generated code with this number (from 1) comes from; at least the file."""
    for line in reversed(lines[:number]):
        if match := PLACE.search(line):
            return Position(match[1], int(match[2]), int(match[3]))
    return Position(file, 0, 0)


class Lines:
    """indent: levels at which the next line stands. position: in the program, of the statement that is written."""

    comment = ""
    """A comment of the language that is written, with {} for the text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.position = NOWHERE

    @contextmanager
    def at(self, position: Position) -> Iterator[None]:
        """Lines written within it are for this line of the program, which the first of them says where it is another.

        Raises EngineFault: writing them fails.
        """
        before, outer = len(self.lines), self.position
        if position.line:
            self.position = position
        with engine_faults(lambda _: self.position):
            yield
        if position.line and (position.file, position.line) != (outer.file, outer.line) and len(self.lines) > before:
            self.lines[before] = marked(self.lines[before], position, self.comment)

    def line(self, text: str) -> None:
        self.lines.append(f"{INDENT * self.indent}{text}")

    @contextmanager
    def nested(self, head: str = "", end: str = "") -> Iterator[None]:
        """Lines written within it stand a level deeper, between head and end."""
        if head:
            self.line(head)
        self.indent += 1
        yield
        self.indent -= 1
        if end:
            self.line(end)
