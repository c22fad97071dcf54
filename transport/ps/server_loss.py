"""ServerLosses: what a worker needs so that its job goes on without a server (L11 to L15); pure.

Which servers are lost, as far as it knows and as all workers agree; where each worker stands; and what it retains of
its own finished calls, since others may lack the results that the lost server had.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from transport.meshes.mesh import Buffer
from transport.ps.ps_messages import AUTOMATIC, Head
from transport.ps.sharding import ServerSlice

KEYS_MAX = 65_536
"""Most keys of a job whose slices move: of each, one result is retained."""

CallName = tuple[int, int]
"""A call's key and how many calls the key had before; of one without a key AUTOMATIC and its number."""


class RetainedSlice(NamedTuple):
    """A slice of a finished call, and what the worker pushes if another server gets it."""

    part: ServerSlice
    head: Head
    data: Buffer


class Standing(NamedTuple):
    """Where a worker stands. lowest: of each key, how many of its calls are finished; of AUTOMATIC, the lowest number
    that isn't. A key that isn't there has none."""

    lost: frozenset[int]
    lowest: dict[int, int]

    def to_bytes(self) -> bytes:
        return json.dumps([sorted(self.lost), sorted(self.lowest.items())]).encode()


def standing_from_bytes(data: Buffer, servers: int) -> Standing:
    """What `to_bytes` encoded. Raises ValueError for anything else."""
    try:
        lost, lowest = json.loads(bytes(data))
        standing = Standing(frozenset(lost), dict(lowest))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"nothing that says where it stands: {error}") from error
    numbers = (*standing.lost, *standing.lowest, *standing.lowest.values())
    if any(type(number) is not int or number < 0 for number in numbers) or any(s >= servers for s in standing.lost):
        raise ValueError("nothing that says where it stands: no numbers, or of no server")
    return standing


class ServerLosses:
    """rank: ours, of so many workers.

    lost: servers that this worker takes for lost. moved: those without which all agree to go on: slices are where they
    are without these. agreed: whether the two are the same; else new calls wait.
    """

    def __init__(self, rank: int, workers: int) -> None:
        self.lost: set[int] = set()
        self.moved: frozenset[int] = frozenset()
        self._rank, self._workers = rank, workers
        self._standings: dict[int, Standing] = {}
        self._retained: dict[CallName, list[RetainedSlice]] = {}
        self._finished_by_all = self._forgotten = 0

    @property
    def agreed(self) -> bool:
        return self.moved == self.lost

    # ---- agreement (L13)

    def add(self, lost: frozenset[int], lowest: dict[int, int]) -> Standing | None:
        """More servers are lost: where we stand, for the others; None if we knew."""
        if lost <= self.lost:
            return None
        self.lost |= lost
        self._standings[self._rank] = standing = Standing(frozenset(self.lost), lowest)
        return standing

    def note(self, worker: int, standing: Standing) -> None:
        """Where another one stands."""
        self._standings[worker] = standing

    @property
    def missing(self) -> set[int]:
        """Workers that haven't said where they stand without all that are lost."""
        return {w for w in range(self._workers) if w not in self._standings or self._standings[w].lost != self.lost}

    def move(self) -> dict[int, int]:
        """All stand alike: slices are without those that are lost from now on. Returns the least of each key."""
        self.moved = frozenset(self.lost)
        rows = [standing.lowest for standing in self._standings.values()]
        return {key: min(row.get(key, 0) for row in rows) for key in rows[0]}

    # ---- retaining (L12)

    def retain(self, name: CallName, slices: list[RetainedSlice]) -> None:
        """A call has finished; its caller has the array again. Who has finished one of a key's calls knows that all
        have finished the one before."""
        self._retained[name] = slices
        key, number = name
        if key != AUTOMATIC and self.agreed:
            for earlier in (number - 1, number - 2):
                self._retained.pop((key, earlier), None)

    def retained_from(self, lowest: dict[int, int]) -> Iterator[RetainedSlice]:
        """What others may lack, the calls of a key in their order."""
        for (key, number), slices in sorted(self._retained.items()):
            if number >= lowest.get(key, 0):
                yield from slices

    def forget(self, lowest: int) -> None:
        """Drop what nobody lacks. lowest: of calls without a key, the least that some worker hasn't finished."""
        self._finished_by_all = max(self._finished_by_all, lowest)
        while self.agreed and self._forgotten < self._finished_by_all:
            self._retained.pop((AUTOMATIC, self._forgotten), None)
            self._forgotten += 1

    @property
    def retained_calls(self) -> int:
        return len(self._retained)
