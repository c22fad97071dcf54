"""A link with a fault of every kind, from a seed: wraps any other, as a network would lie between."""

from collections.abc import Mapping

import numpy as np

from switchagg.wire import Bundle
from transport.links.link import Address, Arrival, Link


class FaultyLink:
    """Loses, duplicates, delays (so that later packets overtake) and now and then refuses rows of what is sent.

    loss, duplicate, reorder: probability per datagram, 0 to 1. full: probability per send that only some rows fit.
    """

    def __init__(
        self,
        inner: Link,
        seed: int,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        full: float = 0.0,
    ) -> None:
        self.inner = inner
        self.random = np.random.default_rng(seed)
        self.loss, self.duplicate, self.reorder, self.full = loss, duplicate, reorder, full
        self.held: list[tuple[Bundle, Address]] = []
        self.lost = self.duplicated = self.reordered = self.refused = 0

    @property
    def address(self) -> Address:
        return self.inner.address

    @property
    def counters(self) -> Mapping[str, int]:
        return self.inner.counters

    def resolve(self, address: Address) -> Address:
        return self.inner.resolve(address)

    tos = None
    credit_bytes = 0
    segments_max = 64

    def has_room(self) -> bool:
        return True

    def slowness(self) -> str:
        return self.inner.slowness()

    def send(self, bundle: Bundle, to: Address, tos: int | None = None) -> int:
        rows = len(bundle)
        if rows and self.random.random() < self.full:
            self.refused += 1
            rows = int(self.random.integers(0, rows))
        now: list[tuple[Bundle, Address]] = []
        for row in range(rows):
            frame = bundle[row : row + 1]
            if self.random.random() < self.loss:
                self.lost += 1
                continue
            if self.random.random() < self.duplicate:
                self.duplicated += 1
                now.append((frame, to))
            if self.random.random() < self.reorder:
                self.reordered += 1
                self.held.append((frame.copy(), to))
            else:
                now.append((frame, to))
        for frame, destination in now:
            self.inner.send(frame, destination)
        if self.held and self.random.random() < 0.5:
            self.release()
        return rows

    def release(self) -> None:
        """Let go of what was delayed, newest first."""
        while self.held:
            self.inner.send(*self.held.pop())

    def set_tos(self, tos: int) -> None:
        pass

    def receive(self) -> list[Arrival]:
        return self.inner.receive()

    def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
        self.release()
        return self.inner.wait(timeout_s, writable=writable)

    def wake(self) -> None:
        self.inner.wake()

    def fileno(self) -> int:
        return self.inner.fileno()

    def close(self) -> None:
        self.inner.close()
