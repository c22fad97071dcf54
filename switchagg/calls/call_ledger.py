"""CallLedger: which calls of a member are in progress, by stream, and which of them end when another leaves (C7).

Calls are numbered on each stream separately, in the order in which they are made: ranks may make calls of different
priority classes in different orders, and still mean the same call by the same number.
"""

from collections.abc import Iterable, Sequence

from switchagg.priority import StreamTurns

CallPlace = tuple[int, int]
"""(stream, its number on the stream, from 0)."""


class CallLedger:
    """The calls of one member; only one thread may use it. priorities: of the streams; StreamTurns picks a call's."""

    def __init__(self, priorities: Sequence[int]) -> None:
        self.turns = StreamTurns(priorities)
        self._calls = [0] * len(priorities)
        self._pending: list[dict[int, None]] = [{} for _ in priorities]  # for each stream, its calls in order of number
        self._classes = priorities
        self._class_calls = dict.fromkeys(priorities, 0)  # for each class, how many calls it had

    def __bool__(self) -> bool:
        """Whether any call is in progress."""
        return any(self._pending)

    def begin(
        self, priority: int | None = None, stream: int | None = None, split: Iterable[int] = ()
    ) -> list[CallPlace]:
        """Enter the next call, or its parts, one on each of the streams `split` (W11); returns where they belong.

        Raises ValueError for a class or stream there isn't.
        """
        return [self._enter(number) for number in tuple(split) or (self.turns.take(priority, stream),)]

    def _enter(self, stream: int) -> CallPlace:
        number = self._calls[stream]
        self._calls[stream] = number + 1
        self._class_calls[self._classes[stream]] += 1
        self._pending[stream][number] = None
        return stream, number

    def calls_before(self, calls: Sequence[CallPlace]) -> int:
        """How many calls of their class, and parts of calls, were made before the newest, which these are."""
        return self._class_calls[self._classes[calls[0][0]]] - len(calls)

    def finish(self, call: CallPlace) -> None:
        """The call has its result. A failed one is never finished."""
        self._pending[call[0]].pop(call[1], None)

    def finished(self) -> list[int]:
        """How many calls are finished, by stream: the number of the first that isn't."""
        return [next(iter(pending), calls) for pending, calls in zip(self._pending, self._calls, strict=True)]

    def waits_for(self, calls: Sequence[int], *, late: bool) -> bool:
        """Whether a call in progress waits for a member that left after it had finished so many, by stream.

        If not `late`, all streams with calls must wait for it. The results of calls that it had finished may still be
        on their way to us, and are let in first, since one that waits in vain ends them all.
        """
        waiting = []
        for stream, pending in enumerate(self._pending):
            if pending:
                reach = next(reversed(pending)) if late else next(iter(pending))
                waiting.append((calls[stream] if stream < len(calls) else 0) <= reach)
        return any(waiting) if late else bool(waiting) and all(waiting)
