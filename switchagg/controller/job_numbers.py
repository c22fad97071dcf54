"""Numbers that a controller gives out."""

from collections import deque
from collections.abc import Callable, Collection, Iterable

from switchagg.job import MODULUS

GENERATIONS_KEPT = 4096
"""How many of the latest generations are not used again."""


class Generations:
    """Numbers of jobs' starts that nobody can foresee. draw: gives a random number below 2**32."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._recent: deque[int] = deque(maxlen=GENERATIONS_KEPT)

    def new(self, running: Iterable[int]) -> int:
        """A generation that no running job has and none of the latest had (C5)."""
        used = {*running, *self._recent}
        while (drawn := self._draw() % MODULUS) in used:
            pass
        self._recent.append(drawn)
        return drawn


class JobIds:
    """Ids of jobs. They go round, so that an id rests before it is used again."""

    def __init__(self) -> None:
        self._last = -1

    def new(self, used: Collection[int]) -> int:
        """The next that no running job has."""
        while True:
            self._last = (self._last + 1) % (1 << 16)
            if self._last not in used:
                return self._last
