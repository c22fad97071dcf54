"""Tables of all pages as lines: aligned for the terminal, and Markdown for documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

Cell = tuple[str, str]
"""A value and a small line below it ("" for none)."""
Row = tuple[str, list[Cell]]
"""A label, and a cell for each method."""


def row_of_some(label: str, entries: Sequence[Any], cell: Callable[[Any], Cell | None]) -> list[Row]:
    """A row with a dash for each entry that has no such cell; none where all have none."""
    cells = [cell(entry) for entry in entries]
    return [(label, [value or ("–", "") for value in cells])] if any(cells) else []  # noqa: RUF001


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int] = (0,)) -> list[str]:
    """A plain table. words: the columns that are aligned to the left."""
    widths = [max(len(cells[at]) for cells in (head, *rows)) for at in range(len(head))]
    lines = []
    for cells in (head, *rows):
        places = enumerate(zip(cells, widths, strict=True))
        line = [cell.ljust(width) if at in words else cell.rjust(width) for at, (cell, width) in places]
        lines.append("  ".join(line).rstrip())
    return lines


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"|{'|'.join(cells)}|" for cells in (head, ["---"] * len(head), *rows)]
