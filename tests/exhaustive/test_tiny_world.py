"""All small cases, not some: few workers, one or two slots, every deliver / drop / duplicate / delay choice.

The network is a multiset of packets under way. A world is a sequence of choices: which packet moves next, and whether
it is delivered, dropped, or delivered while a copy stays behind; or that a worker's timer fires. Leaving a packet for
later is the delay, without bound. Drops, copies and early timers are bounded by a budget; a state already met is not
entered again, so the search covers every interleaving within the budget. Rules S1 to S6, H2 to H5 and W6: no worker
ever takes a wrong sum, and from every state the end, where all workers hold all sums, can be reached. A packet with a
forged chunk number leaves a switch as it is, in every state that one can be in: no further world comes of it.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from simulation.published_rule import PublishedLeaf, PublishedRule

from switchagg.aggregator import Parent, SlotView
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import Op, Packet, decode, encode

LEAVES = [name for name in WITHOUT_P4 if DATAPLANES[name].leaf]
SWITCH = 100
"""The root's place in the network; then those of the leaves. A worker's is its number."""

Make = Callable[[int, int], DataPlane]


@dataclass(frozen=True)
class Tiny:
    """racks: the workers of each leaf below the root; one rack: one switch, which is the root. chunks: of each slot."""

    racks: tuple[tuple[int, ...], ...]
    window: int = 1
    chunks: int = 3

    @cached_property
    def job(self) -> JobConfig:
        return JobConfig(1, 7, self.workers, 1, (StreamConfig(0, self.window),))

    @cached_property
    def workers(self) -> int:
        return sum(map(len, self.racks))

    @cached_property
    def total(self) -> int:
        return self.window * self.chunks

    def home(self, worker: int) -> tuple[int, int]:
        """(place of its switch, its rank there)"""
        rack = next(number for number, rack in enumerate(self.racks) if worker in rack)
        return SWITCH + (rack + 1 if len(self.racks) > 1 else 0), self.racks[rack].index(worker)

    def planes(self, make: Make) -> list[DataPlane]:
        made = [make(self.window, 1)]
        if len(self.racks) == 1:
            made[0].admit(self.job, self.racks[0])
            return made
        made[0].admit(self.job, [SWITCH + 1 + number for number in range(len(self.racks))])
        for number, rack in enumerate(self.racks):
            made.append(make(self.window, 1))
            made[-1].admit(self.job, rack, Parent(SWITCH, number))
        return made

    def contribution(self, worker: int, chunk: int) -> tuple[int, int, bytes]:
        """Powers of 16: a sum shows how often it holds each worker's value."""
        to, rank = self.home(worker)
        values = np.array([(chunk + 1) * 16**worker], np.int32)
        return to, worker, encode(Packet(1, 7, 0, rank, Op.SUM, *self.job.place(0, chunk), chunk, values))

    def sums(self, chunk: int) -> int:
        return (chunk + 1) * sum(16**worker for worker in range(self.workers))


@dataclass(frozen=True, slots=True)
class State:
    """waits: for each worker and slot the chunk it waits for, `total` or more when it is done. switches: numbers of
    pickled data planes. under_way: numbers of packets, sorted."""

    waits: tuple[int, ...]
    switches: tuple[int, ...]
    under_way: tuple[int, ...]
    budget: int


class Explorer:
    """Depth-first over all choices."""

    def __init__(self, make: Make, tiny: Tiny) -> None:
        self.tiny = tiny
        self.followers: dict[State, list[State]] = {}
        self.wrong: Counter[str] = Counter()
        self._packets: list[tuple[int, int, bytes]] = []
        self._frozen: list[bytes] = []
        self._numbers: dict[object, int] = {}
        self._switches = tuple(self._switch(plane) for plane in tiny.planes(make))
        self._first = [
            [self._packet(*tiny.contribution(worker, chunk)) for chunk in range(tiny.total)]
            for worker in range(tiny.workers)
        ]
        self.processed = cache(self.process)
        self.taken = cache(self.result)

    def explore(self, budget: int, *, until_wrong: bool = False) -> None:
        tiny = self.tiny
        waits = tuple(offset for _ in range(tiny.workers) for offset in range(tiny.window))
        start = sorted(self._first[worker][chunk] for worker in range(tiny.workers) for chunk in range(tiny.window))
        stack = [State(waits, self._switches, tuple(start), budget)]
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
        reached = {state for state in self.followers if min(self.awaited(state)) >= self.tiny.total}
        stack = list(reached)
        while stack:
            for state in before.get(stack.pop(), []):
                if state not in reached:
                    reached.add(state)
                    stack.append(state)
        return len(self.followers) - len(reached)

    def forgeries_taken(self) -> int:
        """How many states of switches are changed, or make one send, by packets with chunks that are neither held nor
        the next (S2)."""
        turn = 2 * self.tiny.window
        far = {*range(-turn, turn), 2 * turn, 3 * turn, 1 << 30, (1 << 31) - 1, 1 << 31, -1 << 30} - {0}
        packets = {(to, source, data[:16] + bytes(4) + data[20:]) for to, source, data in self._packets}
        taken = 0
        for place, switch in {each for state in self.followers for each in enumerate(state.switches, SWITCH)}:
            plane: DataPlane = pickle.loads(self._frozen[switch])
            sent = []
            for source, data in [(source, data) for to, source, data in packets if to == place]:
                packet = decode(data, header_only=True)
                held = plane.seen(packet.slot, packet.version).chunk
                for ahead in far:
                    forged = np.frombuffer(encode(replace(packet, chunk=(held + ahead) % MODULUS)), np.uint8)
                    sent += plane.process(forged[np.newaxis, :], source)
            taken += bool(sent) or self._switch(plane) != switch
        return taken

    def awaited(self, state: State) -> Sequence[int]:
        """`waits` of those who must come to the end."""
        return state.waits

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
        busy = {place for packet in state.under_way for place in self._packets[packet][:2]}
        for index, chunk in enumerate(state.waits):
            # repair must go on for ever: a timer is free if the worker, or in a tree anyone, has nothing under way
            worker = index // self.tiny.window
            idle = not busy or (len(self.tiny.racks) == 1 and worker not in busy)
            if chunk < self.tiny.total and (idle or state.budget):
                under_way = tuple(sorted((*state.under_way, self._first[worker][chunk])))
                followers.append(replace(state, under_way=under_way, budget=state.budget - (not idle)))
        return followers

    def deliver(self, state: State, packet: int, under_way: tuple[int, ...], budget: int) -> State:
        to, _, _ = self._packets[packet]
        waits, switches = state.waits, state.switches
        if to >= SWITCH:
            place = to - SWITCH
            after, sent = self.processed(switches[place], packet)
            switches = (*switches[:place], after, *switches[place + 1 :])
        else:
            chunk, value = self.taken(packet)
            index = to * self.tiny.window + chunk % self.tiny.window
            if waits[index] != chunk:
                return State(waits, switches, under_way, budget)
            if value != self.tiny.sums(chunk):
                self.wrong[f"chunk {chunk}: {value:x}"] += 1
            following = chunk + self.tiny.window
            waits = (*waits[:index], following, *waits[index + 1 :])
            sent = (self._first[to][following],) if following < self.tiny.total else ()
        left = [number for number in (*under_way, *sent) if not self._past(number, waits, switches)]
        return State(waits, switches, tuple(sorted(left)), budget)

    def _past(self, packet: int, waits: tuple[int, ...], switches: tuple[int, ...]) -> bool:
        """True for a packet that changes nothing, now or later, as chunk numbers only grow: it needn't be followed."""
        to = self._packets[packet][0]
        if to >= SWITCH:
            return self.ignored(switches[to - SWITCH], packet)
        chunk, _ = self.taken(packet)
        return waits[to * self.tiny.window + chunk % self.tiny.window] > chunk

    @cached_property
    def ignored(self) -> Callable[[int, int], bool]:
        return cache(self._ignored)

    def _ignored(self, switch: int, packet: int) -> bool:
        if self.processed(switch, packet) != (switch, ()):
            return False
        fields, view = decode(self._packets[packet][2]), self._view(switch, packet)
        given = len(self.tiny.racks[self._packets[packet][0] - SWITCH - 1]) in view.ranks if fields.result else False
        return bool(view.chunk > fields.chunk and view.chunk < 1 << 31) or (view.chunk == fields.chunk and given)

    def _view(self, switch: int, packet: int) -> SlotView:
        """The slot version of a packet in a switch."""
        fields = decode(self._packets[packet][2], header_only=True)
        return pickle.loads(self._frozen[switch]).seen(fields.slot, fields.version)

    def result(self, packet: int) -> tuple[int, int]:
        """(chunk, value)"""
        result = decode(self._packets[packet][2])
        return result.chunk, int(result.values[0])

    def process(self, switch: int, packet: int) -> tuple[int, tuple[int, ...]]:
        """The switch after a packet, and what it sends. Few packets meet few switches, in very many worlds."""
        to, source, data = self._packets[packet]
        plane: DataPlane = pickle.loads(self._frozen[switch])
        outputs = plane.process(np.frombuffer(data, np.uint8)[np.newaxis, :], source)
        sent = tuple(self._packet(port, to, out.bundle[0].tobytes()) for out in outputs for port in out.ports)
        return self._switch(plane), sent

    def _switch(self, plane: DataPlane) -> int:
        plane.counters.clear()  # they tell histories apart that lead to the same state
        return self._number(pickle.dumps(plane), self._frozen)

    def _packet(self, to: int, source: int, data: bytes) -> int:
        return self._number((to, source, data), self._packets)

    def _number(self, value: object, known: list) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(known)
            known.append(value)
        return self._numbers[value]


@pytest.mark.parametrize("dataplane", WITHOUT_P4)  # the others can't be pickled
def test_every_choice_gives_exact_sums(dataplane: str) -> None:
    explored(Explorer(DATAPLANES[dataplane], Tiny(((0, 1),))), budget=3, states=10_000)


@pytest.mark.parametrize("dataplane", LEAVES)
def test_every_choice_in_two_racks_gives_exact_sums(dataplane: str) -> None:
    explored(Explorer(DATAPLANES[dataplane], Tiny(((0, 1), (2, 3)))), budget=1, states=25_000)


@pytest.mark.parametrize(
    ("tiny", "budget", "states"),
    [(Tiny(((0, 1), (2,))), 2, 100_000), (Tiny(((0,), (1,))), 2, 20_000), (Tiny(((0,), (1,)), 2, 2), 0, 2_000)],
    ids=["unequal racks", "two faults", "two slots"],
)
def test_every_choice_in_other_racks_gives_exact_sums(tiny: Tiny, budget: int, states: int) -> None:
    explored(Explorer(DATAPLANES["reference"], tiny), budget, states)


def explored(explorer: Explorer, budget: int, states: int) -> None:
    explorer.explore(budget)
    assert not explorer.wrong
    assert explorer.stuck() == 0
    assert explorer.forgeries_taken() == 0
    assert len(explorer.followers) > states


@pytest.mark.parametrize(
    ("make", "tiny", "budget"),
    [(PublishedRule, Tiny(((0, 1),)), 2), (PublishedLeaf, Tiny(((0, 1), (2, 3))), 1)],
    ids=["slot", "leaf"],
)
def test_the_published_rules_have_wrong_cases(make: Make, tiny: Tiny, budget: int) -> None:
    explorer = Explorer(make, tiny)
    explorer.explore(budget, until_wrong=True)
    assert explorer.wrong
