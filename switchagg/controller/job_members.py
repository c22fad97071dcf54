"""The members of jobs that gather and of jobs that run, as a controller records them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from switchagg.controller.quota import Holding
from switchagg.job import Address
from switchagg.join import ROOT, Join
from switchagg.membership import Departure, JobAdmitted, Member, Running

CONTRADICTIONS_SHOWN_MAX = 3


@dataclass(slots=True)
class MemberRecord:
    """A member's place in a gathering or job: its request, when it came, and when it was last heard."""

    request: Join
    joined_ns: int
    heard_ns: int

    @property
    def member(self) -> Member:
        """The member that holds this place."""
        request = self.request
        return Member(request.rank, request.address, request.incarnation, request.nonce)


@dataclass(slots=True)
class GatheringJob:
    """The members of a job's next start, by rank."""

    name: str
    members: dict[int, MemberRecord] = field(default_factory=dict)
    claims: dict[int, list[MemberRecord]] = field(default_factory=dict)
    """By rank: joins that came while another process held the rank, in order (C3)."""
    complete_ns: int = 0
    """When the last rank came."""
    contradictions: dict[int, str] = field(default_factory=dict)
    """By rank: why its latest join was refused."""
    leavers: list[Join] = field(default_factory=list)
    """The requests of jobs that were asked to leave for this one (C21)."""

    @property
    def request(self) -> Join:
        """Any member's request, for the values on which all agree."""
        return next(iter(self.members.values())).request

    @property
    def workers(self) -> int:
        """Number of workers that the job needs."""
        return self.request.workers

    @property
    def holding(self) -> Holding:
        """The least slots that the job needs, and its members' hosts."""
        slots = self.request.slots_least or self.request.requested_slots
        return Holding(slots, tuple(record.request.address[0] for record in self.members.values()))

    @property
    def vias(self) -> list[tuple[str, Address]]:
        """Each rank's switch, and the address that the rank sends from; the gathering is complete."""
        requests = (self.members[rank].request for rank in sorted(self.members))
        return [(request.via, request.address) for request in requests]

    def member_of(self, incarnation: int) -> MemberRecord:
        """The record of a member that has a rank, or a claim on one."""
        return _member_of(self.all_members, incarnation)

    @property
    def all_members(self) -> list[MemberRecord]:
        """The members of all ranks, then the claims."""
        return [*self.members.values(), *chain.from_iterable(self.claims.values())]

    def contradiction_of(self, request: Join) -> str:
        """Where a join contradicts one of another rank, or ""; kept for those who wait for it (C1)."""
        requests = [other.request for rank, other in self.members.items() if rank != request.rank]
        if reason := next(filter(None, map(request.contradiction, requests)), ""):
            self.contradictions[request.rank] = reason
        return reason

    def add(self, record: MemberRecord, now_ns: int) -> None:
        """Give the member its rank, or a claim on it where another process has it."""
        rank = record.request.rank
        if rank in self.members:
            self.claims.setdefault(rank, []).append(record)
            return
        self.members[rank], self.complete_ns = record, now_ns
        self.contradictions.pop(rank, None)

    def remove(self, record: MemberRecord) -> list[MemberRecord]:
        """Remove a member or a claim; returns the claims on its rank, which have no place any more."""
        rank = record.request.rank
        if self.members[rank] is record:
            del self.members[rank]
            return self.claims.pop(rank, [])
        self.claims[rank].remove(record)
        return []

    def claims_behind(self, holder: MemberRecord, until_ns: int) -> list[MemberRecord]:
        """Members and claims of the holder's rank that joined after it, by until_ns."""
        rank = holder.request.rank
        records = [self.members[rank], *self.claims.get(rank, [])] if rank in self.members else []
        behind = records[records.index(holder) + 1 :] if holder in records else records
        return [record for record in behind if record.joined_ns <= until_ns]

    def claim_on(self, incarnation: int) -> str:
        """Whom a claim waits for, or ""."""
        record = self.member_of(incarnation)
        holder = self.members[record.request.rank]
        return "" if holder is record else f"{holder.member} has that rank and lives, as far as is known"

    def timeout_reason(self, obstacle: str) -> str:
        """Why the gathering times out. obstacle: what it lacks if it is complete."""
        if not self.missing:
            return f"job {self.name!r} can't start: {obstacle}"
        waited_ns = min(record.request.timeout_ns for record in self.members.values())
        ranks = ("rank " if len(self.missing) == 1 else "ranks ") + ", ".join(map(str, self.missing))
        present = ", ".join(map(str, members_of(self.members)))
        late = f"did not join job {self.name!r} within {waited_ns / 1e9:g} s"
        refused = f"; refused: {self.contradicted}" if self.contradictions else ""
        return f"{ranks} of {self.workers} {late}; present: {present}{refused}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not come."""
        return tuple(rank for rank in range(self.workers) if rank not in self.members)

    @property
    def contradicted(self) -> str:
        """Why joins were refused, the lowest ranks' first, or "" (C1)."""
        return "; ".join(reason for _, reason in sorted(self.contradictions.items())[:CONTRADICTIONS_SHOWN_MAX])


@dataclass(slots=True)
class RunningJob:
    """A job from its admission to its eviction."""

    admitted: JobAdmitted
    members: dict[int, MemberRecord]
    request: Join
    """Any member's request, for the values on which all agree, with windows that fit all receive buffers (C17)."""
    since_ns: int
    departures: list[Departure] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """Switches that have not said yet that they took the job."""
    asked_to_leave: str = ""
    """Why the job was asked to leave, or "" (C21, C24)."""
    leaves_by_ns: int | None = None
    """When the job fails if it hasn't left for a more urgent one (C21)."""

    @property
    def can_rebalance(self) -> bool:
        """Whether the job can come back with another number of slots, and hasn't been asked to (C24)."""
        return (
            self.request.can_fall_back and self.request.slots_least > 0 and not self.asked_to_leave and not self.awaited
        )

    @property
    def switches(self) -> frozenset[str]:
        """The switches on which the job has slots."""
        return frozenset(share.switch for share in self.admitted.shares) or frozenset((ROOT,))

    @property
    def membership_state(self) -> Running:
        """The state that its members are told."""
        requested_slots = next(iter(self.members.values())).request.requested_slots
        return Running(self.admitted, tuple(self.departures), self.asked_to_leave, requested_slots)

    def member_of(self, incarnation: int) -> MemberRecord:
        """The record of a member."""
        return _member_of(self.members.values(), incarnation)

    @property
    def holding(self) -> Holding:
        """The job's slots, and its members' hosts."""
        return Holding(
            sum(stream.window_slots for stream in self.admitted.job.streams),
            tuple(member.address[0] for member in self.admitted.members),
        )


Jobs = Collection[RunningJob]


def members_of(records: dict[int, MemberRecord]) -> tuple[Member, ...]:
    """The members in the order of their ranks."""
    return tuple(records[rank].member for rank in sorted(records))


def _member_of(records: Iterable[MemberRecord], incarnation: int) -> MemberRecord:
    return next(record for record in records if record.request.incarnation == incarnation)
