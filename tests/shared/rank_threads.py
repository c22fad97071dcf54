"""Ranks, members and servers as threads of one process."""

import threading
from collections.abc import Callable
from typing import Any

LIMIT_S = 360.0


def outcomes(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act(number)` returned or raised, each in a thread; one that hangs fails its test alone."""
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = act(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results
