"""Positions in P4 sources, and the errors that name them."""

from dataclasses import dataclass

from switchagg.errors import SwitchaggError


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a source file as its author sees it: before preprocessing. line, column: from 1; 0: none known."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = Position("<built in>", 0, 0)


class P4Error(SwitchaggError):
    """A program, test file or command is wrong, or asks for what the engine doesn't do. One line, with the place."""

    def __init__(self, message: str, position: Position = NOWHERE) -> None:
        super().__init__(f"{position}: {message}" if position.line else message)
        self.message = message
        self.position = position
