"""All small cases of partial sums: two or three workers, and every deliver / drop / duplicate choice.

A worker has its values when it likes, or never: then it lives on results that come early. Rules Q1 to Q5: all workers
get the same sum for a chunk, of exactly the workers that it names, and from every state the end can be reached. The
search is that of test_tiny_world.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from simulation.partial_rules import AddsLate, TakesOverAtOnce, TakesOverWhatAllHaveSent

from exhaustive.test_tiny_world import SWITCH, Explorer, Make, Tiny, explored
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, decode, encode

PLANES = [name for name in WITHOUT_P4 if DATAPLANES[name].partial]


@dataclass(frozen=True)
class World(Tiny):
    """slow: workers whose values come at any time; absent: never. closes: workers may ask for chunks to be
    finalised."""

    racks: tuple[tuple[int, ...], ...] = ((0, 1, 2),)
    backups: int = 1
    slow: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    closes: bool = False

    @cached_property
    def job(self) -> JobConfig:
        return JobConfig(
            1,
            7,
            self.workers,
            2,
            (StreamConfig(0, self.window),),
            backups=self.backups,
            close_after_ns=int(self.closes),
        )

    def planes(self, make: Make) -> list[DataPlane]:
        plane = make(self.window, 2)
        plane.admit(self.job, range(self.workers))
        return [plane]

    def packet(self, worker: int, chunk: int, **how: bool) -> tuple[int, int, bytes]:
        values = np.array(
            [(chunk + 1) * 16**worker, 1 << worker] if not how.pop("header_only", False) else [], np.int32
        )
        place = self.job.place(0, chunk)
        return SWITCH, worker, encode(Packet(1, 7, 0, worker, Op.SUM, *place, chunk, values, **how))

    def sum_of(self, chunk: int, ranks: int) -> int:
        return (chunk + 1) * sum(16**worker for worker in range(self.workers) if ranks >> worker & 1)


@dataclass(frozen=True, slots=True)
class State:
    """waits: as in a tiny world; gave: for each of them, whether the worker has sent its values. sums: of each chunk
    the one that a worker was given, or None."""

    waits: tuple[int, ...]
    gave: tuple[bool, ...]
    sums: tuple[tuple[int, int] | None, ...]
    switches: tuple[int, ...]
    under_way: tuple[int, ...]
    budget: int


class PartialExplorer(Explorer):
    tiny: World

    def __init__(self, make: Make, world: World) -> None:
        self._worlds = world
        super().__init__(make, world)
        everyone = range(world.workers)
        number: Callable[..., int] = lambda *of, **how: self._packet(*world.packet(*of, **how))  # noqa: E731
        chunks = range(world.total)
        self._first = [[number(worker, chunk) for chunk in chunks] for worker in everyone]
        self._again = [[number(worker, chunk, retransmission=True) for chunk in chunks] for worker in everyone]
        self._pass = [[number(worker, chunk, header_only=True) for chunk in chunks] for worker in everyone]
        self._close = [[number(worker, chunk, header_only=True, close=True) for chunk in chunks] for worker in everyone]

    def explore(self, budget: int, *, until_wrong: bool = False) -> None:
        world = self.tiny
        places = [(worker, offset) for worker in range(world.workers) for offset in range(world.window)]
        at_once = {worker for worker in range(world.workers) if worker not in world.slow + world.absent}
        start = sorted(self._first[worker][offset] for worker, offset in places if worker in at_once)
        waits, gave = tuple(offset for _, offset in places), tuple(worker in at_once for worker, _ in places)
        stack = [State(waits, gave, (None,) * world.total, self._switches, tuple(start), budget)]
        while stack and not (until_wrong and self.wrong):
            state = stack.pop()
            if state not in self.followers:
                self.followers[state] = self.choices(state)
                stack += self.followers[state]

    def awaited(self, state: State) -> Sequence[int]:
        window = self.tiny.window
        return [waits for index, waits in enumerate(state.waits) if index // window not in self.tiny.absent]

    def choices(self, state: State) -> list[State]:
        followers = []
        for index, packet in enumerate(state.under_way):
            if index and packet == state.under_way[index - 1]:
                continue
            rest = state.under_way[:index] + state.under_way[index + 1 :]
            followers.append(self.deliver(state, packet, rest))
            if state.budget:
                poorer = replace(state, budget=state.budget - 1)
                followers.append(self.deliver(poorer, packet, state.under_way))
                followers.append(replace(poorer, under_way=rest))
        idle = not state.under_way
        for index, chunk in enumerate(state.waits):
            worker = index // self.tiny.window
            if chunk >= self.tiny.total:
                continue
            if not state.gave[index]:
                if worker in self.tiny.slow:
                    followers.append(self._send(state, index, self._first[worker][chunk], gave=True))
            elif idle or state.budget:
                poorer = replace(state, budget=state.budget - (not idle))
                followers.append(self._send(poorer, index, self._again[worker][chunk]))
                if self.tiny.closes:
                    followers.append(self._send(poorer, index, self._close[worker][chunk]))
        return followers

    def _send(self, state: State, index: int, packet: int, gave: bool | None = None) -> State:
        flags = state.gave if gave is None else (*state.gave[:index], gave, *state.gave[index + 1 :])
        return replace(state, gave=flags, under_way=tuple(sorted((*state.under_way, packet))))

    def deliver(self, state: State, packet: int, under_way: tuple[int, ...]) -> State:
        to, _, data = self._packets[packet]
        if to >= SWITCH:
            after, sent = self.processed(state.switches[0], packet)
            if after != state.switches[0]:
                self._check_that_none_is_left_behind(state, self._view(after, packet).chunk)
            return self._without_past(replace(state, switches=(after,), under_way=(*under_way, *sent)))
        result = decode(data)
        chunk, (value, ranks) = result.chunk, map(int, result.values)
        index = to * self.tiny.window + chunk % self.tiny.window
        waits = state.waits[index]
        if chunk > waits:
            return replace(state, under_way=under_way)
        sent = (self._pass[to][chunk],)
        if chunk == waits:
            told = state.sums[chunk]
            if told not in (None, (value, ranks)) or value != self.tiny.sum_of(chunk, ranks):
                self.wrong[f"chunk {chunk}: {value:x} of {ranks:b}, not {told}"] += 1
            if state.gave[index] and ranks >> to & 1:
                sent = ()
            following = chunk + self.tiny.window
            gave = to not in self.tiny.slow + self.tiny.absent
            if gave and following < self.tiny.total:
                sent += (self._first[to][following],)
            state = replace(
                state,
                waits=(*state.waits[:index], following, *state.waits[index + 1 :]),
                gave=(*state.gave[:index], gave, *state.gave[index + 1 :]),
                sums=(*state.sums[:chunk], (value, ranks), *state.sums[chunk + 1 :]),
            )
        return self._without_past(replace(state, under_way=(*under_way, *sent)))

    def _check_that_none_is_left_behind(self, state: State, held: int) -> None:
        """By the slot version that holds this chunk now: what a worker waits for there is gone for ever."""
        turn = 2 * self.tiny.window
        if held < self.tiny.total and any(chunk < held and (held - chunk) % turn == 0 for chunk in state.waits):
            self.wrong[f"left behind by chunk {held}"] += 1

    def _without_past(self, state: State) -> State:
        left = [number for number in state.under_way if not self._changes_nothing(number, state)]
        return replace(state, under_way=tuple(sorted(left)))

    def _changes_nothing(self, packet: int, state: State) -> bool:
        """Now or later, as chunk numbers only grow: it needn't be followed."""
        to, _, data = self._packets[packet]
        if to >= SWITCH:
            return self.ignored(state.switches[0], packet)
        chunk = decode(data).chunk
        if state.waits[to * self.tiny.window + chunk % self.tiny.window] <= chunk:
            return False
        return self.ignored(state.switches[0], self._pass[to][chunk])

    def _ignored(self, switch: int, packet: int) -> bool:
        if self.processed(switch, packet) != (switch, ()):
            return False
        fields, view = decode(self._packets[packet][2], True), self._view(switch, packet)
        held = view.chunk if view.chunk < 1 << 31 else -1
        return held > fields.chunk or (held == fields.chunk and not len(fields.values) and not fields.close)


TWO = ((0, 1),)


@pytest.mark.parametrize("dataplane", PLANES)
@pytest.mark.parametrize("world", [World(TWO, slow=(1,)), World(TWO, slow=(0, 1), backups=0, closes=True)])
def test_every_order_gives_two_workers_the_same_sum(dataplane: str, world: World) -> None:
    explored(PartialExplorer(DATAPLANES[dataplane], world), budget=0, states=1_000)


@pytest.mark.parametrize("world", [World(absent=(2,)), World(absent=(2,), backups=0, closes=True, chunks=2)])
def test_every_choice_gives_three_workers_the_same_sum(world: World) -> None:
    explored(PartialExplorer(DATAPLANES["reference"], world), budget=1, states=2_000)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [(AddsLate, "not ("), (TakesOverWhatAllHaveSent, "left behind"), (TakesOverAtOnce, "left behind")],
)
def test_plausible_other_rules_fail(make: Make, wrong: str) -> None:
    explorer = PartialExplorer(make, World(slow=(2,)))
    explorer.explore(1, until_wrong=True)
    assert any(wrong in text for text in explorer.wrong)
