"""Tables of all pages as lines: aligned for the terminal, and Markdown for documents."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
