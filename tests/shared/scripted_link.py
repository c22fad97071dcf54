"""A link in memory, for event loops turn by turn."""

import itertools
import threading
from collections import deque
from collections.abc import Sequence

from switchagg.wire import Bundle
from transport.links.link import Address, Arrival


class ScriptedLink:
    """The test sets what arrives and how many rows there is room for."""

    def __init__(self) -> None:
        self.address: Address = ("scripted", 1)
        self.counters = {"sent_rows": 0}
        self.arrivals: deque[list[Arrival]] = deque()
        self.room = 1 << 30
        self.sent: list[tuple[Address, list[bytes]]] = []
        self.closed = False
        self.stirred = threading.Event()

    tos = None
    credit_bytes = 0
    segments_max = 64

    def resolve(self, address: Address) -> Address:
        return address

    def has_room(self) -> bool:
        return self.room > 0

    def slowness(self) -> str:
        return ""

    def send(self, bundle: Bundle, to: Address, tos: int | None = None) -> int:
        rows = min(self.room, len(bundle))
        self.room -= rows
        if rows:
            self.sent.append((to, [row.tobytes() for row in bundle[:rows]]))
        return rows

    def set_tos(self, tos: int) -> None:
        pass

    def receive(self) -> list[Arrival]:
        return self.arrivals.popleft() if self.arrivals else []

    def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
        if self.arrivals or (writable and self.room):
            return True
        woken = self.stirred.wait(timeout_s)
        self.stirred.clear()
        return woken

    def wake(self) -> None:
        self.stirred.set()

    def fileno(self) -> int:
        raise AssertionError("not asked for")

    def close(self) -> None:
        self.closed = True

    def deliver(self, *arrivals: tuple[Bundle, Address], tos: Sequence[int] = (0,)) -> None:
        """Let these arrive in one turn. tos: of each, or of all."""
        self.arrivals.append([(*arrival, mark) for arrival, mark in zip(arrivals, itertools.cycle(tos))])
        self.wake()

    def rows_to(self, to: Address) -> list[bytes]:
        return [row for address, rows in self.sent for row in rows if address == to]
