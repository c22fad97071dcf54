"""All small cases, not some: 2 workers, 1 slot, 3 chunks, every deliver / drop / duplicate / delay choice.

The network is a multiset of packets under way. A world is a sequence of choices: which packet moves next, and whether
it is delivered, dropped, or delivered while a copy stays behind; or that a worker's timer fires. Leaving a packet for
later is the delay, without bound. Drops, copies and early timers are bounded by a budget; a state already met is not
entered again, so the search covers every interleaving within the budget. Rules S1 to S6 and W6: no worker ever takes a
wrong sum, and from every state the end, where all workers hold all sums, can be reached.
"""

import pickle
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from simulation.published_rule import PublishedRule

from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.table import DATAPLANES
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, decode, encode

WORKERS, CHUNKS, SWITCH = 2, 3, -1
JOB = JobConfig(1, 7, WORKERS, 1, (StreamConfig(0, 1),))
VALUES = [[1, 10, 100], [2, 20, 200]]
SUMS = [3, 30, 300]


@cache
def contribution(rank: int, chunk: int) -> bytes:
    slot, version = JOB.place(0, chunk)
    values = np.array([VALUES[rank][chunk]], np.int32)
    return encode(Packet(1, 7, 0, rank, Op.SUM, slot, version, chunk, values))


@cache
def taken(data: bytes) -> tuple[int, list[int]]:
    """(chunk, values) of a result."""
    result = decode(data)
    return result.chunk, result.values.tolist()


UnderWay = tuple[tuple[int, int, bytes], ...]
"""(to, source, frame), sorted; to and source are ranks, or -1 for the switch."""


@dataclass(frozen=True)
class State:
    """next_chunk: what each rank waits for, CHUNKS when it is done. switch: the pickled data plane."""

    next_chunk: tuple[int, ...]
    under_way: UnderWay
    switch: bytes
    budget: int


class Explorer:
    """Depth-first over all choices."""

    def __init__(self, plane: DataPlane) -> None:
        plane.admit(JOB, list(range(WORKERS)))
        self._plane = plane
        self.followers: dict[State, list[State]] = {}
        self.wrong: Counter[str] = Counter()
        self._processed: dict[tuple[bytes, int, bytes], tuple[bytes, UnderWay]] = {}

    def explore(self, budget: int, *, until_wrong: bool = False) -> None:
        start = tuple(sorted((SWITCH, rank, contribution(rank, 0)) for rank in range(WORKERS)))
        stack = [State((0,) * WORKERS, start, frozen(self._plane), budget)]
        while stack and not (until_wrong and self.wrong):
            state = stack.pop()
            if state not in self.followers:
                self.followers[state] = self.choices(state)
                stack += self.followers[state]

    def stuck(self) -> int:
        """How many states the end can't be reached from."""
        before: dict[State, list[State]] = {}
        for state, followers in self.followers.items():
            for follower in followers:
                before.setdefault(follower, []).append(state)
        reached = {state for state in self.followers if state.next_chunk == (CHUNKS,) * WORKERS}
        stack = list(reached)
        while stack:
            for state in before.get(stack.pop(), []):
                if state not in reached:
                    reached.add(state)
                    stack.append(state)
        return len(self.followers) - len(reached)

    def choices(self, state: State) -> list[State]:
        followers = []
        for index, packet in enumerate(state.under_way):
            if index and packet == state.under_way[index - 1]:
                continue
            rest = state.under_way[:index] + state.under_way[index + 1 :]
            followers.append(self.deliver(state, packet, rest, state.budget))
            if state.budget:
                followers.append(self.deliver(state, packet, state.under_way, state.budget - 1))
                followers.append(replace(state, under_way=rest, budget=state.budget - 1))
        for rank, chunk in enumerate(state.next_chunk):
            # a timer costs nothing when the rank has nothing under way: repair must go on for ever
            idle = not any(rank in (to, source) for to, source, _ in state.under_way)
            if chunk < CHUNKS and (idle or state.budget):
                under_way = with_packet(state.under_way, (SWITCH, rank, contribution(rank, chunk)))
                followers.append(replace(state, under_way=under_way, budget=state.budget - (not idle)))
        return followers

    def deliver(self, state: State, packet: tuple[int, int, bytes], under_way: UnderWay, budget: int) -> State:
        to, source, data = packet
        if to == SWITCH:
            switch, results = self.process(state.switch, source, data)
            for result in results:
                under_way = with_packet(under_way, result)
            return State(state.next_chunk, under_way, switch, budget)
        waiting = state.next_chunk[to]
        chunk, values = taken(data)
        if chunk != waiting:
            return State(state.next_chunk, under_way, state.switch, budget)
        if values != [SUMS[waiting]]:
            self.wrong[f"chunk {waiting}: {values}"] += 1
        next_chunk = tuple(chunk + (rank == to) for rank, chunk in enumerate(state.next_chunk))
        if waiting + 1 < CHUNKS:
            under_way = with_packet(under_way, (SWITCH, to, contribution(to, waiting + 1)))
        return State(next_chunk, under_way, state.switch, budget)

    def process(self, switch: bytes, source: int, data: bytes) -> tuple[bytes, UnderWay]:
        """The switch after a packet, and what it sends. Few packets meet few switches, in very many worlds."""
        if (switch, source, data) not in self._processed:
            plane: DataPlane = pickle.loads(switch)
            outputs = plane.process(np.frombuffer(data, np.uint8)[np.newaxis, :], source)
            results = tuple((port, SWITCH, out.bundle[0].tobytes()) for out in outputs for port in out.ports)
            self._processed[switch, source, data] = frozen(plane), results
        return self._processed[switch, source, data]


def frozen(plane: DataPlane) -> bytes:
    plane.counters.clear()  # they tell histories apart that lead to the same state
    return pickle.dumps(plane)


def with_packet(under_way: UnderWay, packet: tuple[int, int, bytes]) -> UnderWay:
    return tuple(sorted((*under_way, packet)))


BUDGET = 2


@pytest.mark.parametrize("dataplane", WITHOUT_P4)  # the others can't be pickled
def test_every_choice_gives_exact_sums(dataplane: str) -> None:
    explorer = Explorer(DATAPLANES[dataplane](1, 1))
    explorer.explore(BUDGET)
    assert not explorer.wrong
    assert explorer.stuck() == 0
    assert len(explorer.followers) > 5_000


def test_the_published_rule_has_wrong_cases() -> None:
    explorer = Explorer(PublishedRule(1, 1))
    explorer.explore(BUDGET, until_wrong=True)
    assert explorer.wrong
