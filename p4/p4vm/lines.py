"""Lines of generated code, Python or C, as a writer adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INDENT = "    "


class Lines:
    """indent: levels at which the next line stands."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1

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
