"""Tables of all pages as lines: aligned for the terminal, and Markdown for documents."""

from __future__ import annotations

from collections.abc import Sequence


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A plain table: the first column to the left, the others to the right."""
    widths = [max(len(cells[at]) for cells in (head, *rows)) for at in range(len(head))]
    lines = []
    for cells in (head, *rows):
        first, *other_cells = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *other_cells]).rstrip())
    return lines


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
