"""`auto`: α and β are measured and broadcast before the first call; in a simulated network of exact delays."""

import heapq
from typing import Any

import numpy as np
import pytest

from switchagg.calls.call_request import CallRequest
from switchagg.errors import AggregationFailed
from transport.collectives.auto import AutoParty
from transport.collectives.collective_party import CollectiveParty
from transport.collectives.programs import SEGMENT_BYTES


class World:
    """Parties and messages that take alpha_ns + bytes * beta_ns, one after the other from each sender."""

    def __init__(self, workers: int, alpha_ns: int, beta_ns: float) -> None:
        self.lines: list[str] = []
        self.parties = [
            AutoParty(CollectiveParty(r, workers), SEGMENT_BYTES, self.lines.append) for r in range(workers)
        ]
        self.now_ns = 1_000
        self.dead: set[int] = set()
        self.finished: list[dict[Any, Any]] = [{} for _ in range(workers)]
        self._delay = (alpha_ns, beta_ns)
        self._free_ns = [0] * workers
        self._events: list[tuple[int, int, Any]] = []
        self._number = 0

    def run(self) -> None:
        """Until nothing is on its way."""
        while True:
            for rank, party in enumerate(self.parties):
                if rank not in self.dead:
                    self._collect(rank, party)
            if not self._events:
                return
            self.now_ns, _, (sender, message) = heapq.heappop(self._events)
            if message.to not in self.dead:
                self.parties[message.to].receive(sender, message.head, message.data, self.now_ns)

    def _collect(self, rank: int, party: AutoParty) -> None:
        deadline = party.next_deadline_ns()
        if deadline is not None and deadline <= self.now_ns:
            party.handle_timer(self.now_ns)
        alpha_ns, beta_ns = self._delay
        while messages := party.messages_to_send():
            for message in messages:
                begin = max(self.now_ns, self._free_ns[rank])
                self._free_ns[rank] = begin + round(len(message.data) * beta_ns)
                copied = message._replace(data=bytes(message.data))
                self._number += 1
                heapq.heappush(self._events, (self._free_ns[rank] + alpha_ns, self._number, (rank, copied)))
                party.on_sent(message.ticket)
        for call, failure in party.events():
            self.finished[rank][call] = failure


@pytest.mark.parametrize(("alpha_ns", "beta_ns"), [(50_000, 0.8), (1_000_000, 8.0), (5_000, 800.0)])
def test_every_rank_knows_the_links_before_its_first_call(alpha_ns: int, beta_ns: float) -> None:
    world = World(5, alpha_ns, beta_ns)
    arrays = [[np.full(size, rank, np.int32) for size in (3, 200_000)] for rank in range(5)]
    calls = [
        [party.submit(CallRequest("allreduce"), array, now_ns=0) for array in arrays[rank]]
        for rank, party in enumerate(world.parties)
    ]
    assert all(party.choice is None for party in world.parties)
    world.run()
    choices = {party.choice for party in world.parties}
    assert len(choices) == 1
    (choice,) = choices
    assert choice is not None
    assert choice.alpha_ns == pytest.approx(alpha_ns, rel=0.02)
    assert choice.beta_fs_per_byte == pytest.approx(beta_ns * 1e6, rel=0.02)
    for rank in range(5):
        assert all(array.tolist() == [10] * len(array) for array in arrays[rank])
        assert world.finished[rank] == dict.fromkeys(calls[rank])
    assert len(world.lines) == 2 * 5
    assert all(line.startswith("auto: ") for line in world.lines)


def test_sizes_of_one_class_are_explained_once_and_other_kinds_never() -> None:
    world = World(2, 1000, 1.0)
    for size in (1000, 1001, 4000, 1000):
        for party in world.parties:
            party.submit(CallRequest("allreduce"), np.zeros(size, np.int8), now_ns=world.now_ns)
        world.run()
    for party in world.parties:
        party.submit(CallRequest("barrier"), np.zeros(0, np.int8), now_ns=world.now_ns)
    world.run()
    assert len(world.lines) == 2 * 2


def test_slow_links_are_measured_with_short_messages() -> None:
    world = World(2, 1_000_000, 8000.0)  # 1 Mb/s
    world.run()
    assert world.now_ns < 2_000_000_000
    assert world.parties[1].choice is not None
    assert world.parties[1].choice.beta_fs_per_byte == pytest.approx(8e9, rel=0.02)


def test_one_worker_measures_nothing() -> None:
    world = World(1, 1, 1.0)
    call = world.parties[0].submit(CallRequest("allreduce"), np.zeros(5), now_ns=1)
    world.run()
    assert world.finished == [{call: None}]


@pytest.mark.parametrize("dead", [0, 1])
def test_calls_that_wait_for_the_measurement_fail_with_it(dead: int) -> None:
    world = World(3, 1000, 1.0)
    world.dead.add(dead)
    calls = {r: world.parties[r].submit(CallRequest("allreduce"), np.zeros(5), now_ns=1) for r in range(3) if r != dead}
    world.run()
    for rank in calls:
        world.parties[rank].lost(dead, "it died", world.now_ns)
    world.run()
    for rank, call in calls.items():
        failure = world.finished[rank][call]
        assert isinstance(failure, AggregationFailed)
        assert f"rank {dead}" in str(failure)


@pytest.mark.parametrize(("rank", "whom"), [(0, "rank 1"), (1, "rank 0"), (2, "rank 0 and rank 1")])
def test_calls_wait_no_longer_for_the_measurement_than_for_anything_else(rank: int, whom: str) -> None:
    party = AutoParty(CollectiveParty(rank, 3, call_timeout_ns=1000), SEGMENT_BYTES, lambda line: None)
    party.handle_timer(50)
    party.messages_to_send()
    call = party.submit(CallRequest("allreduce"), np.ones(4, np.float32), now_ns=100)
    assert party.next_deadline_ns() == 1100
    party.handle_timer(1099)
    assert not party.events()
    party.handle_timer(1100)
    ((ended, failure),) = party.events()
    assert ended is call
    assert f"rank {rank} has waited 1e-06 s for {whom} to measure" in str(failure)
    assert {message.to for message in party.messages_to_send()} == {0, 1, 2} - {rank}, "the others are told"
    assert party.next_deadline_ns() is None


def test_two_held_calls_with_one_key_fail_the_second() -> None:
    world = World(2, 1000, 1.0)
    kept = []
    for party in world.parties:
        first = party.submit(CallRequest("allreduce", key=3), np.zeros(5), now_ns=1)
        second = party.submit(CallRequest("allreduce", key=3), np.zeros(5), now_ns=1)
        kept.append((first, second))
    world.run()
    for rank, (first, second) in enumerate(kept):
        assert world.finished[rank][first] is None
        assert "key 3 is in use" in str(world.finished[rank][second])


def test_invalid_messages_are_dropped() -> None:
    world = World(3, 1000, 1.0)
    for what, data in ((2, b"short"), (1, b""), (9, b""), (0, b"")):
        for rank, party in enumerate(world.parties):
            party.receive((rank + 1) % 3, b"fit" + bytes([what, 0, 0, 0, 7]), data, 1)
            assert party.choice is None
    world.run()
    assert all(party.choice is not None for party in world.parties)
