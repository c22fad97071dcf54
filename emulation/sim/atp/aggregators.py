"""ATP's way to share a switch, for comparison: aggregators by hash, best effort, with a parameter server behind them.

After "ATP: In-network Aggregation for Multi-tenant Learning" (NSDI'21) and its release. Jobs reserve nothing: a packet
takes the aggregator that its index names if it is free, and passes on to the server unsummed if another chunk has it.
The server adds what comes, whole or in parts, and its result frees the aggregators on its way to the workers. Here a
packet says which ranks it holds, of any level, in one bitmap (ATP: in one for each of two levels).

`Preemptive` is ESA's way: a more urgent packet takes an aggregator from a less urgent one.

Pure: no clock, no randomness. Exact under any order, loss and duplication of packets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np

from switchagg.aggregator import older
from switchagg.priority import BEST_EFFORT
from switchagg.wire import Bundle, Op, Values

INDEXES_MOST = 1 << 16


class ChunkKey(NamedTuple):
    """A chunk of a job; `slot` and `version` as its packets have them, which also name its place at the server."""

    job: int
    slot: int
    version: int
    chunk: int


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Sums on their way to the server. ranks: bitmap of those in them; index: of the aggregator; resend: sent again by
    a worker, or flushed by such a packet; collided: it found its aggregator taken by another chunk; marked: congestion
    was met on the way; priority: of its job, lower is more urgent, which `Preemptive` alone looks at;
    head: the header of its packets, unread here."""

    key: ChunkKey
    index: int
    ranks: int
    op: Op
    values: Values
    resend: bool = False
    collided: bool = False
    marked: bool = False
    priority: int = 0
    head: Bundle | None = None


def _combined(op: Op, values: Values, other: Values) -> Values:
    return values + other if op is Op.SUM else np.maximum(values, other)


class Aggregators:
    """The aggregators of one switch, 1 to 65,536, which all jobs share."""

    def __init__(self, count: int) -> None:
        assert 1 <= count <= INDEXES_MOST, count
        self.counters = dict.fromkeys(("claimed", "summed", "collided", "flushed", "duplicates", "freed"), 0)
        self._held: dict[int, Update] = {}

    def take(self, update: Update, below: int) -> Iterator[Update]:
        """The packets that a packet on its path up causes. below: ranks of its job whose packets pass this switch."""
        held = self._held.get(update.index)
        if update.resend:
            yield from self._flush(update, held)
        elif held is None:
            self.counters["claimed"] += 1
            self._held[update.index] = update
            yield from self._complete(update, below)
        elif held.key != update.key:
            yield from self._collide(update, held, below)
        elif not held.ranks & update.ranks:
            self.counters["summed"] += 1
            values = _combined(held.op, held.values, update.values)
            marked = held.marked or update.marked
            merged = replace(held, ranks=held.ranks | update.ranks, values=values, marked=marked)
            self._held[update.index] = merged
            yield from self._complete(merged, below)
        elif not update.ranks & ~held.ranks:
            self.counters["duplicates"] += 1
            yield from self._complete(held, below)
        else:
            yield update

    def free(self, key: ChunkKey, index: int) -> None:
        """The chunk's result passes: its aggregator is free, unless another chunk has it."""
        held = self._held.get(index)
        if held is not None and held.key == key:
            self.counters["freed"] += 1
            del self._held[index]

    def _collide(self, update: Update, _held: Update, _below: int) -> Iterator[Update]:
        """Another chunk has the aggregator."""
        self.counters["collided"] += 1
        yield replace(update, collided=True)

    def _complete(self, held: Update, below: int) -> Iterator[Update]:
        """It stays until its result frees it, so that a duplicate is answered by the sums again."""
        if held.ranks == below:
            yield held

    def _flush(self, update: Update, held: Update | None) -> Iterator[Update]:
        """Somebody misses the result: what is here goes to the server as it is, whether complete or not."""
        if held is None or held.key != update.key:
            yield update
            return
        self.counters["flushed"] += 1
        del self._held[update.index]
        disjoint = not held.ranks & update.ranks
        values = _combined(held.op, held.values, update.values) if disjoint else held.values
        ranks = held.ranks | update.ranks if disjoint else held.ranks
        yield replace(held, ranks=ranks, values=values, resend=True, marked=held.marked or update.marked)
        if not disjoint and update.ranks & ~held.ranks:
            yield update


class Preemptive(Aggregators):
    """After the abstract of "Efficient Data-Plane Memory Scheduling for In-Network Aggregation" (ESA, arXiv
    2201.06398): aggregators are taken from the less urgent. The evicted partial sum goes on to the server, which adds
    it as any part; later packets of the chunk can't be complete here, and a rank that misses the result flushes them. A
    chunk whose sum has gone up gives way to any other.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.counters["evicted"] = 0

    def _collide(self, update: Update, held: Update, below: int) -> Iterator[Update]:
        if update.priority >= held.priority:
            yield from super()._collide(update, held, below)
            return
        if held.priority != _FORWARDED:
            self.counters["evicted"] += 1
            yield replace(held, collided=True)
        self.counters["claimed"] += 1
        self._held[update.index] = update
        yield from self._complete(update, below)

    def _complete(self, held: Update, below: int) -> Iterator[Update]:
        for chunk in super()._complete(held, below):
            self._held[held.index] = replace(held, priority=_FORWARDED)
            yield replace(chunk, priority=min(held.priority, BEST_EFFORT))


_FORWARDED = BEST_EFFORT + 1  # the priority of a chunk whose sum has gone up


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSum:
    """A chunk's sum. index: of the aggregator that it frees; next_index: of the next chunk in the same slot.
    ranks: who gets it, as a bitmap; marked: any part of it was."""

    key: ChunkKey
    index: int
    next_index: int
    op: Op
    values: Values
    ranks: int
    marked: bool


@dataclass(slots=True, eq=False)
class _Place:
    """The server's state for a slot version."""

    chunk: int
    ranks: int
    values: Values
    marked: bool = False
    result: ChunkSum | None = None


class Fallback:
    """The parameter server of a job of n workers: what isn't summed in switches is summed here. `indexes` as workers
    have them at the start."""

    def __init__(self, workers: int, indexes: "Indexes") -> None:
        self.counters = dict.fromkeys(("whole", "partial", "single", "discarded", "late"), 0)
        self._everyone = (1 << workers) - 1
        self._indexes = indexes
        self._places: dict[tuple[int, int], _Place] = {}
        self._collided: set[int] = set()

    def take(self, update: Update) -> ChunkSum | None:
        """Add what came. The chunk's result, if that was all it lacked, or again, for the packet's ranks alone."""
        at = (update.key.slot, update.key.version)
        place = self._places.get(at)
        if place is not None and older(update.key.chunk, place.chunk):
            self.counters["late"] += 1
            return None
        if place is None or place.chunk != update.key.chunk:
            place = self._places[at] = _Place(update.key.chunk, 0, update.values)
        if place.result is not None:
            return replace(place.result, ranks=update.ranks)
        place.marked |= update.marked
        if update.collided:
            self._collided.add(update.key.slot)
        if update.ranks == self._everyone:
            self.counters["whole"] += 1
            place.ranks, place.values = update.ranks, update.values
        elif not self._countable(update, place.ranks):
            self.counters["discarded"] += 1
        else:
            self.counters["partial" if update.ranks & update.ranks - 1 else "single"] += 1
            values = _combined(update.op, place.values, update.values) if place.ranks else update.values
            place.ranks, place.values = place.ranks | update.ranks, values
        if place.ranks != self._everyone:
            return None
        following = self._following(update.key.slot)
        place.result = ChunkSum(
            update.key, update.index, following, update.op, place.values, self._everyone, place.marked
        )
        return place.result

    def _countable(self, update: Update, counted: int) -> bool:
        """A packet isn't added if some of its ranks are counted: the parts of a sum can't be separated any more."""
        return not update.ranks & counted

    def _following(self, slot: int) -> int:
        """The index of the slot's next chunk: another one if the last met somebody else's there."""
        if slot in self._collided:
            self._collided.discard(slot)
            self._indexes.move(slot)
        return self._indexes.of[slot]


class Indexes:
    """The aggregator of each slot of a job: chosen by a hash, none twice in the job while there are as many.

    of: by slot. Workers and server compute the same ones.
    """

    def __init__(self, job: int, slots: range, count: int) -> None:
        self._job = job
        self._count = count
        self._salt = dict.fromkeys(slots, -1)
        self._used: set[int] = set()
        self.of: dict[int, int] = {}
        for slot in slots:
            self.move(slot)

    def move(self, slot: int) -> None:
        """Give a slot another aggregator, if there is one that this job does not use."""
        if len(self._used) >= self._count:
            self.of.setdefault(slot, crc32(f"{self._job} {slot}".encode()) % self._count)
            return
        self._used.discard(before := self.of.get(slot, -1))
        while True:
            self._salt[slot] += 1
            index = crc32(f"{self._job} {slot} {self._salt[slot]}".encode()) % self._count
            if index not in self._used and index != before:
                break
        self.of[slot] = index
        self._used.add(index)
