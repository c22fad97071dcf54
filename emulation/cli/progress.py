"""Progress on stderr: lines that rewrite themselves on a terminal, and plain lines elsewhere.

`say` is for lines of any kind; `of_methods` gives the callback (method, done, total, note) that `compare` wants.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from emulation.experiments.progress_text import Passing

Report = Callable[[str, int, int, str], None]
SILENT_S = 30
ERASED = "\r\x1b[K"

_replaced: dict[str, TextIO] = {}
"""sys.stderr and sys.stdout as they were, while a line that may be written over stands on the terminal."""


def on_terminal() -> bool:
    """Whether a line on stderr can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def say(text: str) -> None:
    """A line on stderr. On a terminal a `Passing` one goes once anything else is printed, or the program ends."""
    erase()
    if not (isinstance(text, Passing) and on_terminal()):
        print(text, file=sys.stderr, flush=True)
        return
    from rich.cells import set_cell_size

    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    sys.stderr.write(set_cell_size(text, columns - 1).rstrip())  # a line of the full width would begin another
    sys.stderr.flush()
    for name in ("stderr", "stdout"):
        if (stream := getattr(sys, name)).isatty():
            _replaced[name] = stream
            setattr(sys, name, _Erasing(stream))


def erase() -> None:
    """Takes the line that may be written over from the terminal."""
    if _replaced:
        stderr = _replaced["stderr"]
        for name, stream in _replaced.items():
            setattr(sys, name, stream)
        _replaced.clear()
        stderr.write(ERASED)
        stderr.flush()


atexit.register(erase)


@functools.cache  # one for good: `print` still uses it after it has restored the stream, without holding it
class _Erasing:
    """A stream that erases the line of progress before anything is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def of_methods() -> AbstractContextManager[Report]:
    """Progress of a comparison, for its methods."""
    return bars() if on_terminal() else lines()


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
            say(f"{method}: {done}/{total} iterations{': ' if note else ''}{note}")

    yield report
