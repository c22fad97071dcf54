"""GOAL, the language of LogGOPSim and ATLAHS, as text: operations of each rank, and which require which.

num_ranks 2
rank 0 {
l1: calc 100
l2: send 4096b to 1 tag 3
l2 requires l1
}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from emulation.scenario.profiles.graph import COMPUTE, NS_MOST, RANKS_MOST, RECEIVE, SEND, GraphOperation, WorkloadGraph
from emulation.scenario.profiles.profile_errors import ProfileError

CALC = re.compile(r"(\w+)\s*:\s*calc\s+(\d{1,16})((?:\s+(?:cpu|nic)\s+\d{1,9})*)")
MESSAGE = re.compile(
    r"(\w+)\s*:\s*(send|recv)\s+(\d{1,16})b\s+(?:to|from)\s+(\d{1,6})((?:\s+(?:tag|cpu|nic)\s+\d{1,9})*)"
)
REQUIRES = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)")
COMMENT = re.compile(r"/\*.*?\*/", re.S)


class GoalReader:
    """The contents of the lines read so far. early: number of irequires."""

    def __init__(self, file: str) -> None:
        self.ranks = self.early = 0
        self.operations: dict[int, list[tuple[str, int, GraphOperation]]] = {}
        self.waits: dict[int, list[tuple[str, str, int]]] = {}
        self.rank: int | None = None
        self._file = file

    def take(self, line: str, number: int) -> None:
        """The next line that isn't empty."""
        where = f"{self._file}: line {number}"
        if match := re.fullmatch(r"num_ranks\s+(\d{1,9})", line):
            self.ranks = int(match[1])
            if not 1 <= self.ranks <= RANKS_MOST:
                raise ProfileError(f"{where}: {self.ranks} ranks; allowed: 1 … {RANKS_MOST}")
        elif match := re.fullmatch(r"rank\s+(\d{1,9})\s*\{", line):
            self.rank = int(match[1])
            if self.rank >= self.ranks or self.rank in self.operations:
                raise ProfileError(f"{where}: rank {self.rank} of {self.ranks}; allowed: each once, behind num_ranks")
            self.operations[self.rank], self.waits[self.rank] = [], []
        elif self.rank is None:
            raise ProfileError(f"{where}: {line[:60]!r} is in no rank")
        elif line == "}":
            self.rank = None
        elif match := REQUIRES.fullmatch(line):
            self.early += match[2] == "irequires"
            self.waits[self.rank].append((match[1], match[3], number))
        else:
            self.operations[self.rank].append(_operation(line, self.rank, where, number))


def decode(text: str, file: str, workers: int = 0) -> WorkloadGraph:
    """workers: as many ranks as there must be; 0: any. Times are ns. Raises ProfileError.

    `irequires`, which waits for a begin, is taken for `requires`, and counted.
    """
    reader = GoalReader(file)
    plain = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(plain.splitlines(), 1):
        if line := line.partition("//")[0].strip():
            reader.take(line, number)
    ranks = reader.ranks
    if reader.rank is not None or not ranks:
        raise ProfileError(f"{file}: ends within rank {reader.rank}" if ranks else f"{file}: num_ranks is missing")
    if workers and ranks != workers:
        raise ProfileError(f"{file}: {ranks} ranks, but the scenario has {workers} workers")
    notes = (f"{file}: {reader.early} irequires taken for requires.",) if reader.early else ()
    programs = tuple(
        tuple(_joined(reader.operations.get(rank, []), reader.waits.get(rank, []), file)) for rank in range(ranks)
    )
    return WorkloadGraph(file, programs, tuple(range(ranks)), source=f"GOAL {file}", notes=notes)


def _operation(line: str, rank: int, where: str, number: int) -> tuple[str, int, GraphOperation]:
    """The label, line and operation of a line."""
    if match := CALC.fullmatch(line):
        if int(match[2]) > NS_MOST:
            raise ProfileError(f"{where}: {match[2]} ns; allowed: 0 … {NS_MOST}")
        units = re.findall(r"cpu\s+(\d+)", match[3])
        unit = int(units[-1]) if units else 0
        return match[1], number, GraphOperation(COMPUTE, match[1], duration_ns=int(match[2]), unit=unit)
    if not (match := MESSAGE.fullmatch(line)):
        raise ProfileError(f"{where}: {line[:60]!r} is no calc, send, recv or requires")
    tags = re.findall(r"tag\s+(\d+)", match[5])
    size, tag = max(1, -(-int(match[3]) // 4)), int(tags[-1]) if tags else 0
    kind = SEND if match[2] == "send" else RECEIVE
    return match[1], number, GraphOperation(kind, match[1], elements=size, peer=int(match[4]) - rank, tag=tag)


def _joined(
    operations: list[tuple[str, int, GraphOperation]], waits: list[tuple[str, str, int]], file: str
) -> Iterator[GraphOperation]:
    """Operations with their dependencies."""
    places: dict[str, int] = {}
    for place, (label, number, _) in enumerate(operations):
        if places.setdefault(label, place) != place:
            raise ProfileError(f"{file}: line {number}: label {label} is there twice")
    needs: list[set[int]] = [set() for _ in operations]
    for label, other, number in waits:
        if absent := next((name for name in (label, other) if name not in places), None):
            raise ProfileError(f"{file}: line {number}: no operation {absent}")
        needs[places[label]].add(places[other])
    for (_, _, operation), wanted in zip(operations, needs, strict=True):
        yield replace(operation, needs=tuple(sorted(wanted)))
