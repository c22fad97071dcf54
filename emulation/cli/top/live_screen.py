"""LiveScreen: lines of text on a terminal, drawn again and again, until a key ends it."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Any

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To another screen without a cursor, and back to what the terminal showed before."""

HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
ENDS = ("q", "Q", "\x1b", "\x04")
"""q, escape, and the end of input."""

HELP = "q ends"


class LiveScreen:
    """The terminal of stdin and stdout, as a context manager: it is as before afterwards, however that ends.

    A line that is too long is cut; lines that don't fit are counted in the last one.
    """

    def __init__(self) -> None:
        self._settings: list[Any] | None = None

    def __enter__(self) -> LiveScreen:
        if sys.stdin.isatty():
            self._settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(LEAVE)
        if self._settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)

    def show(self, lines: Sequence[str]) -> None:
        """Draw these lines in place of what is there."""
        self._write(HOME + "".join(f"{line}{TO_LINE_END}\r\n" for line in fitted(lines)) + HELP + TO_SCREEN_END)

    def ended_within(self, wait_s: float) -> bool:
        """Whether a key ends the program within this time. Without a keyboard it waits for the time alone."""
        if self._settings is None:
            select.select([], [], [], wait_s)
            return False
        ready, _, _ = select.select([sys.stdin], [], [], wait_s)
        if not ready:
            return False
        keys = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
        return not keys or any(key in ENDS for key in keys)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def fitted(lines: Sequence[str]) -> list[str]:
    """The lines, cut to the terminal's size, with room for one more."""
    width, height = shutil.get_terminal_size()
    if len(lines) >= height:
        left_out = len(lines) - (height - 2)
        lines = [*lines[: height - 2], f"… and {left_out} more lines: a larger terminal shows them, or --json"]
    return [line[: width - 1] for line in lines]
