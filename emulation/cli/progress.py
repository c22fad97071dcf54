"""Progress of a comparison on stderr: a bar per method on a terminal, plain lines elsewhere.

Both give a callback (method, done, total, note), as `compare` wants it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int, str], None]
SILENT_S = 30


@contextmanager
def bars() -> Iterator[Report]:
    """One bar per method, with the time left and a short note on what happens."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[method]:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {}

        def report(method: str, done: int, total: int, note: str) -> None:
            if method not in tasks:
                tasks[method] = progress.add_task(note, total=total, method=method)
            progress.update(tasks[method], completed=done, total=total, description=note)

        yield report


@contextmanager
def lines() -> Iterator[Report]:
    """A line for every tenth of the way, for every new note before the first iteration, and after silence."""
    states: dict[str, tuple[int, str]] = {}
    at_s: dict[str, float] = {}

    def report(method: str, done: int, total: int, note: str) -> None:
        state = (10 * done // max(1, total), note if done == 0 else "")
        if states.get(method) != state or time.monotonic() - at_s[method] >= SILENT_S:
            states[method], at_s[method] = state, time.monotonic()
            print(f"{method}: {done}/{total} iterations{': ' if note else ''}{note}", file=sys.stderr, flush=True)

    yield report
