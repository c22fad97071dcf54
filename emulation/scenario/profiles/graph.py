"""The operations of an iteration on every rank: a graph of computing, collectives of groups, sends and receives.

Equal ranks share a program. In a group, and from one rank to another, operations begin in the order in which programs
list them, as on a communicator's stream; so they need no names to be matched by.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from emulation.scenario.profiles.profile_errors import ProfileError

COMPUTE, SEND, RECEIVE = "compute", "send", "receive"
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
KINDS = (COMPUTE, SEND, RECEIVE, *COLLECTIVES)
WORLD = "world"
"""The group of all ranks."""
NS_MOST = 3_600_000_000_000
ELEMENTS_MOST = 1 << 40
RANKS_MOST = 65_536


@dataclass(frozen=True, slots=True)
class GraphOperation:
    """An operation of a rank, which begins once the operations that it needs are over."""

    kind: str
    name: str = ""
    needs: tuple[int, ...] = ()
    """Places in the rank's program, before or behind this one."""
    duration_ns: int = 0
    """Time of computing."""
    elements: int = 0
    """float32 values of the full array, which an all-gather ends with, a reduce-scatter or all-to-all begins with."""
    group: str = WORLD
    """A collective's group; a broadcast is from its first rank."""
    peer: int = 0
    """The other rank of a send or receive, less this rank."""
    tag: int = 0
    """Sends and receives match by tag and order."""
    unit: int = 0
    """The rank's processor that computes."""

    @property
    def collective(self) -> bool:
        return self.kind in COLLECTIVES

    @property
    def launched(self) -> bool:
        """Whether a method carries it out as a collective; an all-to-all is sends between all ranks."""
        return self.collective and self.kind != "all_to_all"

    @property
    def channel(self) -> tuple[object, ...] | None:
        """The channel whose order it keeps; None for computing."""
        if self.kind == COMPUTE:
            return None
        return ("group", self.group) if self.collective else (self.kind, self.peer, self.tag)


Program = tuple[GraphOperation, ...]


@dataclass(frozen=True)
class WorkloadGraph:
    """Raises ProfileError for cycles, ranks of a group that do different things, sends without receives.

    program_of: by rank, a place in programs. groups: by name, disjoint sets of ranks in order; WORLD is always there.
    source: its origin. notes: sentences on omitted parts of a trace, with counts.
    """

    name: str
    programs: tuple[Program, ...]
    program_of: tuple[int, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ranks = len(self.program_of)
        if not 1 <= ranks <= RANKS_MOST:
            raise ProfileError(f"{self.name}: {ranks} ranks; allowed: 1 … {RANKS_MOST}")
        object.__setattr__(self, "groups", {WORLD: (tuple(range(ranks)),), **self.groups})
        for name, sets in self.groups.items():
            members = [rank for part in sets for rank in part]
            if len(set(members)) != len(members) or any(not 0 <= rank < ranks for rank in members):
                raise ProfileError(f"{self.name}: group {name}: ranks must be 0 … {ranks - 1}, each in one set at most")
        for place, program in enumerate(self.programs):
            self._check_program(place, program)
        self._check_groups()
        self._check_messages()

    # ---- it is read by these

    @property
    def ranks(self) -> int:
        return len(self.program_of)

    def program(self, rank: int) -> Program:
        return self.programs[self.program_of[rank]]

    def compute_ns(self, rank: int) -> int:
        """Compute time of the processor that computes longest."""
        spent: Counter[int] = Counter()
        for operation in self.program(rank):
            spent[operation.unit] += operation.duration_ns
        return max(spent.values(), default=0)

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """The members of the set of a group that the rank is in."""
        return next(ranks for ranks in self.groups[group] if rank in ranks)

    def used_groups(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Sets of ranks with collectives of their own, in order, without those of a single rank."""
        used = {operation.group for program in self.programs for operation in program if operation.collective}
        for name in sorted(used):
            yield from ((name, members) for members in self.groups[name] if len(members) > 1)

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of a sender and its receiver, of all-to-alls, too."""
        exchanging = {
            operation.group for program in self.programs for operation in program if operation.kind == "all_to_all"
        }
        away = [{operation.peer for operation in program if operation.kind == SEND} for program in self.programs]
        pairs = {(rank, rank + peer) for rank in range(self.ranks) for peer in away[self.program_of[rank]]}
        for members in itertools.chain.from_iterable(self.groups[name] for name in exchanging):
            pairs.update(itertools.permutations(members, 2))
        return sorted(pairs)

    def moved(self, rank: int) -> dict[str, int]:
        """Bytes of the arrays of each kind of operation on a rank that sends or receives."""
        sizes: Counter[str] = Counter()
        for operation in self.program(rank):
            if operation.kind != COMPUTE:
                sizes[operation.kind] += 4 * operation.elements
        return dict(sizes)

    # ---- it is checked by these

    def _where(self, program: int, place: int) -> str:
        rank = self.program_of.index(program) if program in self.program_of else -1
        name = self.programs[program][place].name
        return f"{self.name}: rank {rank}, operation {place}" + f" ({name})" * bool(name)

    def _check_program(self, number: int, program: Program) -> None:
        for place, operation in enumerate(program):
            wrong = ""
            if operation.kind not in KINDS:
                wrong = f"kind {operation.kind!r} is unknown; allowed: {', '.join(KINDS)}"
            elif not 0 <= operation.duration_ns <= NS_MOST:
                wrong = f"{operation.duration_ns} ns; allowed: 0 … {NS_MOST}"
            elif operation.kind != COMPUTE and not 1 <= operation.elements <= ELEMENTS_MOST:
                wrong = f"{operation.elements} elements; allowed: 1 … {ELEMENTS_MOST}"
            elif any(not 0 <= other < len(program) for other in operation.needs):
                wrong = f"needs operation {max(operation.needs, key=abs)}, which there isn't"
            elif operation.collective and operation.group not in self.groups:
                wrong = f"group {operation.group!r} is unknown"
            if wrong:
                raise ProfileError(f"{self._where(number, place)}: {wrong}")
        if (stuck := ProgramOrder.of(program).first_in_a_cycle()) is not None:
            raise ProfileError(f"{self._where(number, stuck)}: waits for itself: a cycle of dependencies")

    def _check_groups(self) -> None:
        """Check that all ranks of a set do the same."""
        listed = [defaultdict[str, list[tuple[str, int]]](list) for _ in self.programs]
        for program, by_group in zip(self.programs, listed, strict=True):
            for operation in program:
                if operation.collective:
                    by_group[operation.group].append((operation.kind, operation.elements))
        for name, sets in self.groups.items():
            inside = {rank for members in sets for rank in members}
            for rank, number in enumerate(self.program_of):
                if name in listed[number] and rank not in inside:
                    raise ProfileError(f"{self.name}: rank {rank}: is in no set of group {name}")
            for members in sets:
                first = listed[self.program_of[members[0]]][name] if members else []
                for rank in members:
                    other = listed[self.program_of[rank]][name]
                    if other is not first and other != first:
                        raise ProfileError(f"{self.name}: group {name}: {_difference(members[0], first, rank, other)}")

    def _check_messages(self) -> None:
        """Check that every send is received."""
        sizes: dict[str, dict[tuple[int, int, int], list[int]]] = {SEND: {}, RECEIVE: {}}
        messages = [[operation for operation in program if operation.kind in sizes] for program in self.programs]
        for rank in range(self.ranks):
            for operation in messages[self.program_of[rank]]:
                other = rank + operation.peer
                if not 0 <= other < self.ranks or not operation.peer:
                    raise ProfileError(
                        f"{self.name}: rank {rank}: {operation.kind} {operation.name}: no rank {other} but it"
                    )
                channel = (rank, other, operation.tag) if operation.kind == SEND else (other, rank, operation.tag)
                sizes[operation.kind].setdefault(channel, []).append(operation.elements)
        for channel in sorted(sizes[SEND].keys() | sizes[RECEIVE].keys()):
            sends, receives = (sizes[kind].get(channel, []) for kind in (SEND, RECEIVE))
            if sends != receives:
                sender, to, tag = channel
                raise ProfileError(
                    f"{self.name}: rank {sender} to rank {to}, tag {tag}: {len(sends)} sends of {sum(sends)} elements, "
                    f"{len(receives)} receives of {sum(receives)}"
                )


def _difference(rank: int, calls: list[tuple[str, int]], other_rank: int, other_calls: list[tuple[str, int]]) -> str:
    for number, (call, other) in enumerate(zip(calls, other_calls, strict=False)):
        if call != other:
            return (
                f"collective {number}: {call[0]} of {call[1]} elements on rank {rank}, {other[0]} of {other[1]} "
                f"on rank {other_rank}"
            )
    return f"{len(calls)} collectives on rank {rank}, {len(other_calls)} on rank {other_rank}"


@dataclass(frozen=True)
class ProgramOrder:
    """The conditions for each operation of a program to begin. waits: counts of operations that it waits for. at_end,
    at_begin: by operation, the operations that need it and wait for its end, or follow on its channel and wait for its
    begin."""

    waits: tuple[int, ...]
    at_end: tuple[tuple[int, ...], ...]
    at_begin: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, program: Program) -> ProgramOrder:
        at_end: list[list[int]] = [[] for _ in program]
        at_begin: list[list[int]] = [[] for _ in program]
        waits = [0] * len(program)
        last: dict[tuple[object, ...], int] = {}
        for place, operation in enumerate(program):
            for other in operation.needs:
                at_end[other].append(place)
            waits[place] = len(operation.needs)
            if (channel := operation.channel) is not None:
                if channel in last:
                    at_begin[last[channel]].append(place)
                    waits[place] += 1
                last[channel] = place
        return cls(tuple(waits), tuple(map(tuple, at_end)), tuple(map(tuple, at_begin)))

    def first_in_a_cycle(self) -> int | None:
        """An operation that could never begin; None if there is none."""
        waits = list(self.waits)
        ready = [place for place, count in enumerate(waits) if not count]
        done = 0
        while ready:
            place = ready.pop()
            done += 1
            for other in (*self.at_end[place], *self.at_begin[place]):
                waits[other] -= 1
                if not waits[other]:
                    ready.append(other)
        return None if done == len(waits) else next(place for place, count in enumerate(waits) if count)
