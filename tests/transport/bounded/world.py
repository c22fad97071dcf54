"""Parties that exchange packets over a network that loses, repeats and reorders some, in a time of its own."""

import heapq
import random
from collections.abc import Callable

from transport.bounded.bounded_calls import BoundedCall, BoundedJob
from transport.bounded.bounded_packets import PathConfig
from transport.bounded.bounded_party import BoundedParty
from transport.bounded.rules import Rule
from transport.bounded.transfers import Values
from transport.meshes.mesh import Frame

DELAY_NS = 100_000
FRAME_NS = 1_000
PATH = PathConfig(block_bytes=64, window_bytes=1024, ack_every=4, rto_initial_ns=2_000_000, rto_min_ns=500_000)


class World:
    """lose(sender, frame): whether it never arrives. duplicate, reorder: chances."""

    def __init__(
        self,
        rules: list[Rule],
        lose: Callable[[int, Frame], bool] = lambda sender, frame: False,
        *,
        seed: int = 1,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        owners: int = 0,
    ) -> None:
        count = len(rules)
        self.parties = [
            BoundedParty(rank, count, rule, job=BoundedJob("world"), path=PATH, owners=owners)
            for rank, rule in enumerate(rules)
        ]
        self.now_ns = 0
        self.sent: list[tuple[int, Frame]] = []
        self.finished: dict[int, list[BoundedCall]] = {rank: [] for rank in range(count)}
        self._lose, self._duplicate, self._reorder = lose, duplicate, reorder
        self._random = random.Random(seed)
        self._heap: list[tuple[int, int, int, int, bytes]] = []
        self._number = 0

    def submit(self, arrays: list[Values], **how: object) -> None:
        """One call of all ranks."""
        for party, array in zip(self.parties, arrays, strict=True):
            party.submit(array, now_ns=self.now_ns, **{"key": None, "priority": 0, **how})  # type: ignore[arg-type]

    def run(self, calls: int) -> None:
        """Until every rank has finished so many."""
        for _ in range(200_000):
            for rank, party in enumerate(self.parties):
                self._send(rank, party)
            if all(len(finished) >= calls for finished in self.finished.values()):
                return
            due = [at for party in self.parties if (at := party.next_deadline_ns()) is not None]
            assert self._heap or due, "nothing is left to happen"
            next_ns = min([self._heap[0][0]] if self._heap else due)
            self.now_ns = max(self.now_ns, min([next_ns, *due]))
            while self._heap and self._heap[0][0] <= self.now_ns:
                _, _, sender, to, data = heapq.heappop(self._heap)
                self.parties[to].receive(data, sender, self.now_ns)
            for party in self.parties:
                party.handle_timer(self.now_ns)
        raise AssertionError("it doesn't end")

    def _send(self, rank: int, party: BoundedParty) -> None:
        assert party.failure is None, party.failure
        self.finished[rank] += party.events()
        for place, frame in enumerate(party.frames_to_send(8, self.now_ns)):
            self.sent.append((rank, frame))
            if self._lose(rank, frame):
                continue
            for _ in range(1 + (self._random.random() < self._duplicate)):
                late_ns = 5 * FRAME_NS * (self._random.random() < self._reorder)
                self._number += 1
                at_ns = self.now_ns + DELAY_NS + place * FRAME_NS + int(late_ns)
                heapq.heappush(self._heap, (at_ns, self._number, rank, frame.to, frame.data))
