"""Waits for what threads, processes and packets bring about, however busy the machine is."""

import time
from collections.abc import Callable
from typing import Any

SOON_S = 120.0


def comes(condition: Callable[[], Any]) -> bool:
    """Whether the condition comes true."""
    end_s = time.monotonic() + SOON_S
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def until(condition: Callable[[], Any], what: str = "it did not come true") -> None:
    """Returns once the condition is true; `what` is the error if it doesn't become so."""
    assert comes(condition), what
