"""What experiments say while they run; who starts them prints it."""

from collections.abc import Callable

Log = Callable[[str], None]
"""Gets each line."""


class Passing(str):
    """A line about what happens now, in whose place the next may stand; other lines stay."""

    __slots__ = ()
