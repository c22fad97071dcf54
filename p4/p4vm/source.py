"""Positions in P4 sources, and the errors that name them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES_MAX = 64 << 20


class P4vmError(Exception):
    """Any error that the engine raises on purpose."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a source file as its author sees it: before preprocessing. line, column: from 1; 0: none known."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = Position("<built in>", 0, 0)


class P4Error(P4vmError):
    """A program, test file or command is wrong, or asks for what the engine doesn't do. One line, with the place."""

    def __init__(self, message: str, position: Position = NOWHERE) -> None:
        super().__init__(f"{position}: {message}" if position.line else message)
        self.message = message
        self.position = position


class EngineFault(P4vmError):
    """The engine fails at a program that it took: our fault, and no P4Error. One line, with the program's line."""

    def __init__(self, what: str, position: Position) -> None:
        advice = "that is a fault of p4vm, not of the program; please report it with the program"
        super().__init__(f"{position}: the P4 engine fails here: {' '.join(what.split())[:300]}; {advice}")
        self.position = position


@contextmanager
def engine_faults(place: Callable[[Exception], Position]) -> Iterator[None]:
    """Within it, an exception that nothing here is meant to raise becomes an EngineFault at its place."""
    try:
        yield
    except (P4vmError, OSError, ImportError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise EngineFault(f"{type(error).__name__}: {error}", place(error)) from error


def read_text(path: Path) -> str:
    """A file of UTF-8 text. Raises P4Error: it can't be read, is something else, or is larger than FILE_BYTES_MAX."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise P4Error(f"{path}: larger than {FILE_BYTES_MAX >> 20} MB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise P4Error(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise P4Error(f"{path}: is no text (UTF-8)") from None
