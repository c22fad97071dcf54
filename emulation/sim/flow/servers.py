"""Method `ps` without packets: what its workers and servers send each other for one call, slice by slice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from emulation.sim.flow.collective_messages import ReadyMessage
from transport.ps.ps_messages import EVERYBODY, HEAD_BYTES
from transport.ps.sharding import ServerSlice

_PUSH, _ANSWER = 0, 1


class PsActor:
    """A member: a worker, a server, or with `colocated` both, which need no messages between them.

    slices: of the call; itemsize: of its elements. Servers answer a slice once all workers have pushed theirs, or,
    with push_then_pull, all of theirs of the call.
    """

    def __init__(
        self,
        member: int,
        workers: int,
        slices: Sequence[ServerSlice],
        itemsize: int,
        colocated: bool,
        push_then_pull: bool = False,
    ) -> None:
        self._member, self._workers, self._slices, self._itemsize = member, workers, slices, itemsize
        self._colocated = colocated
        self._worker = member < workers
        self._pushed: Counter[int] = Counter()
        wanted = sum(piece.sink in (EVERYBODY, member) for piece in slices) if self._worker else 0
        served = sum(self._server(part) == member for part in slices)
        self._together = served if push_then_pull else 1  # slices that are answered at once
        self._first = len({part.server for part in slices})  # they have slices in turn: first ones begin transfers
        self._complete: list[ServerSlice] = []
        self._wanted, self._unsent = wanted, len(slices) if self._worker else 0
        self.done = not self._worker

    def _server(self, part: ServerSlice) -> int:
        return part.server if self._colocated else self._workers + part.server

    def _size(self, part: ServerSlice, values: bool) -> int:
        return HEAD_BYTES + self._colocated + (part.high - part.low) * self._itemsize * values

    def start(self) -> list[ReadyMessage]:
        """See `messages.Actor`."""
        ready: list[ReadyMessage] = []
        for part in self._slices if self._worker else ():
            if (to := self._server(part)) == self._member:
                self._unsent -= 1
                ready += self._push(part)
            else:
                size_bytes = self._size(part, part.source in (EVERYBODY, self._member))
                ready.append(ReadyMessage(to, size_bytes, (_PUSH, part), 1, part.number < self._first))
        self._settle()
        return ready

    def on_sent(self, node: int) -> list[ReadyMessage]:
        """See `messages.Actor`; node: 1 for what a worker pushes."""
        self._unsent -= node
        self._settle()
        return []

    def on_received(self, sender: int, tag: tuple[int, Any]) -> list[ReadyMessage]:
        """See `messages.Actor`."""
        what, part = tag
        if what == _PUSH:
            return self._push(part)
        self._wanted -= 1
        self._settle()
        return []

    def _push(self, part: ServerSlice) -> list[ReadyMessage]:
        """This server has one more worker's slice."""
        self._pushed[part.number] += 1
        if self._pushed[part.number] < self._workers:
            return []
        self._complete.append(part)
        if len(self._complete) < self._together:
            return []
        ready = [message for part in self._complete for message in self._answers(part)]
        self._complete = []
        self._settle()
        return ready

    def _answers(self, part: ServerSlice) -> Iterator[ReadyMessage]:
        for worker in range(self._workers) if part.sink == EVERYBODY else (part.sink,):
            if worker == self._member:
                self._wanted -= 1
            else:
                yield ReadyMessage(worker, self._size(part, True), (_ANSWER, part), begins=part.number < self._first)

    def _settle(self) -> None:
        self.done = not self._wanted and not self._unsent
