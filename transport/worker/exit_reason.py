"""Why this process ends: the exception that nothing caught, for the members that it leaves behind."""

import sys
from functools import lru_cache
from types import TracebackType

CHARACTERS = 300

_reasons: list[str] = []


@lru_cache(maxsize=1)
def listen() -> None:
    """Note an exception that ends the program, from now on; what was the hook before is called as ever."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        _reasons[:] = [_text(error)]
        before(kind, error, traceback)

    sys.excepthook = hook


def exit_reason() -> str:
    """ "RuntimeError: its first line", of the exception that ends the program; "" if none does."""
    return _reasons[0] if _reasons else ""


def _text(error: BaseException) -> str:
    try:
        line = str(error).partition("\n")[0]
    except Exception:
        line = ""
    return ": ".join(filter(None, (type(error).__name__, line)))[:CHARACTERS]
