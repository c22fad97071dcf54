"""The seats of jobs that gather and of jobs that run: what a controller knows of them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from switchagg.membership import Address, Departure, JobAdmitted, JoinRequest, Member, Running
from switchagg.sharing.quota import Holding
from switchagg.sharing.slot_shares import SlotDemand
from switchagg.sharing.switches import ROOT

CONTRADICTIONS_SHOWN_MAX = 3


@dataclass(slots=True)
class Seat:
    """A member's place in a gathering or job: its request, when it came, and when it was last heard."""

    request: JoinRequest
    joined_ns: int
    heard_ns: int

    @property
    def member(self) -> Member:
        """Who has it."""
        return Member(self.request.rank, self.request.address, self.request.incarnation)


@dataclass(slots=True)
class GatheringJob:
    """The seats of a job's next start, by rank."""

    name: str
    seats: dict[int, Seat] = field(default_factory=dict)
    claims: dict[int, list[Seat]] = field(default_factory=dict)
    """By rank: joins that came while another had it, in order (C3)."""
    complete_ns: int = 0
    """When the last rank came."""
    contradictions: dict[int, str] = field(default_factory=dict)
    """Of the joins that were refused, by rank: the latest of each."""
    leavers: list[JoinRequest] = field(default_factory=list)
    """Of the jobs that were asked to leave for it (C21)."""

    @property
    def request(self) -> JoinRequest:
        """Of any member: what all say alike."""
        return next(iter(self.seats.values())).request

    @property
    def workers(self) -> int:
        """How many there shall be."""
        return self.request.workers

    @property
    def holding(self) -> Holding:
        """What it will need at least."""
        slots = self.request.slots_least or self.request.slots
        return Holding(slots, tuple(seat.request.address[0] for seat in self.seats.values()))

    @property
    def vias(self) -> list[tuple[str, Address]]:
        """Of a complete one: each rank's switch, and where it sends from."""
        requests = (self.seats[rank].request for rank in sorted(self.seats))
        return [(request.via, request.address) for request in requests]

    def seat_of(self, incarnation: int) -> Seat:
        """Of a member that has one, or a claim."""
        return _seat_of(self.all_seats, incarnation)

    @property
    def all_seats(self) -> list[Seat]:
        """Those of all ranks, then the claims."""
        return [*self.seats.values(), *chain.from_iterable(self.claims.values())]

    def contradiction_of(self, request: JoinRequest) -> str:
        """Where a join contradicts one of another rank, or ""; kept for those who wait for it (C1)."""
        others = [other.request for rank, other in self.seats.items() if rank != request.rank]
        if reason := next(filter(None, map(request.contradiction, others)), ""):
            self.contradictions[request.rank] = reason
        return reason

    def add(self, seat: Seat, now_ns: int) -> None:
        """Give the seat its rank, or a claim on it where another has it."""
        rank = seat.request.rank
        if rank in self.seats:
            self.claims.setdefault(rank, []).append(seat)
            return
        self.seats[rank], self.complete_ns = seat, now_ns
        self.contradictions.pop(rank, None)

    def remove(self, seat: Seat) -> list[Seat]:
        """Remove a seat or a claim; returns the claims on its rank, which have no place any more."""
        rank = seat.request.rank
        if self.seats[rank] is seat:
            del self.seats[rank]
            return self.claims.pop(rank, [])
        self.claims[rank].remove(seat)
        return []

    def claims_behind(self, holder: Seat, until_ns: int) -> list[Seat]:
        """Seats and claims of the holder's rank that joined after it, by until_ns."""
        rank = holder.request.rank
        seats = [self.seats[rank], *self.claims.get(rank, [])] if rank in self.seats else []
        behind = seats[seats.index(holder) + 1 :] if holder in seats else seats
        return [seat for seat in behind if seat.joined_ns <= until_ns]

    def claim_on(self, incarnation: int) -> str:
        """Whom a claim waits for, or ""."""
        seat = self.seat_of(incarnation)
        holder = self.seats[seat.request.rank]
        return "" if holder is seat else f"{holder.member} has that rank and lives, as far as is known"

    def timeout_reason(self, obstacle: str) -> str:
        """Why it is given up. obstacle: what a complete one lacks."""
        if not self.missing:
            return f"job {self.name!r} can't start: {obstacle}"
        waited_ns = min(seat.request.timeout_ns for seat in self.seats.values())
        ranks = ("rank " if len(self.missing) == 1 else "ranks ") + ", ".join(map(str, self.missing))
        present = ", ".join(map(str, members_of(self.seats)))
        late = f"did not join job {self.name!r} within {waited_ns / 1e9:g} s"
        refused = f"; refused: {self.contradicted}" if self.contradictions else ""
        return f"{ranks} of {self.workers} {late}; present: {present}{refused}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not come."""
        return tuple(rank for rank in range(self.workers) if rank not in self.seats)

    @property
    def contradicted(self) -> str:
        """Why joins were refused, the lowest ranks' first, or "" (C1)."""
        return "; ".join(reason for _, reason in sorted(self.contradictions.items())[:CONTRADICTIONS_SHOWN_MAX])


@dataclass(slots=True)
class RunningJob:
    """A job from its admission to its eviction."""

    admitted: JobAdmitted
    seats: dict[int, Seat]
    request: JoinRequest
    """Of any member: what all say alike, with windows that fit all receive buffers (C17)."""
    since_ns: int
    departures: list[Departure] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """Switches that have not said yet that they took it."""
    asked_to_leave: str = ""
    """Why (C21, C24)."""
    leaves_by_ns: int | None = None
    """When it fails if it hasn't, for a more urgent one (C21)."""

    @property
    def is_divisible(self) -> bool:
        """Whether it can come back with another number of slots, and hasn't been asked to (C24)."""
        return (
            self.request.can_fall_back and self.request.slots_least > 0 and not self.asked_to_leave and not self.awaited
        )

    @property
    def switches(self) -> frozenset[str]:
        """Where it has slots."""
        return frozenset(share.switch for share in self.admitted.shares) or frozenset((ROOT,))

    @property
    def membership_state(self) -> Running:
        """Of its members."""
        wish = next(iter(self.seats.values())).request
        demand = SlotDemand(wish.slots, wish.weight, wish.job_priority, wish.slots_least or wish.slots)
        return Running(self.admitted, tuple(self.departures), self.asked_to_leave, demand)

    def seat_of(self, incarnation: int) -> Seat:
        """Of a member that has one."""
        return _seat_of(self.seats.values(), incarnation)

    @property
    def holding(self) -> Holding:
        """What it has."""
        return Holding(
            sum(stream.window_slots for stream in self.admitted.job.streams),
            tuple(member.address[0] for member in self.admitted.members),
        )


Jobs = Collection[RunningJob]


def members_of(seats: dict[int, Seat]) -> tuple[Member, ...]:
    """By rank."""
    return tuple(seats[rank].member for rank in sorted(seats))


def _seat_of(seats: Iterable[Seat], incarnation: int) -> Seat:
    return next(seat for seat in seats if seat.request.incarnation == incarnation)
