"""Records of the control plane about switches, jobs and members: events, and a member's state (`MembershipState`).

The `Controller` gets joins (`switchagg.join.Join`) and returns events; a membership state is its answer on one member.
"""

from dataclasses import dataclass, field

from switchagg.job import MAX_ELEMENTS, MAX_SLOTS, Address, JobConfig
from switchagg.join import ROOT, JobTerms

SWITCH_NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class SwitchOffer:
    """A switch's request to serve below others."""

    name: str
    above: str
    """Name of its parent."""
    address: Address
    """Address of its data plane; host "": the host at which its control plane is reached."""
    control: str
    """Its control address."""
    incarnation: int
    """As of a Join."""
    slots: int
    elements: int
    packets_held: int = 0
    """How many of its largest packets its receive buffer holds; 0: enough (C17)."""
    tags: bool = False
    """It can verify and make the tags of packets (A1)."""

    def __str__(self) -> str:
        return f"switch {self.name!r} at {self.address[0]}:{self.address[1]}"

    def fault(self) -> str:
        """Why no switch can be like that, or ""."""
        if not (self.name.isprintable() and 1 <= len(self.name) <= SWITCH_NAME_MAX):
            return f"switch name {self.name[:SWITCH_NAME_MAX]!r}: 1 to {SWITCH_NAME_MAX} printable characters"
        for key, value, most in (("slots", self.slots, MAX_SLOTS), ("elements", self.elements, MAX_ELEMENTS)):
            if not 1 <= value <= most:
                return f"{self}: {key} {value}: 1 to {most}"
        return ""


@dataclass(frozen=True, slots=True)
class Share:
    """A job's part at one switch."""

    switch: str
    offer: SwitchOffer | None
    """None for ROOT."""
    children: tuple[Address, ...]
    """By wire rank: the address that a child sends from."""
    below: tuple[tuple[int, ...], ...]
    """By wire rank: the job's ranks that a child stands for."""
    parent: str | None = None
    """Name of the switch above in the job; None at its root."""
    rank: int = 0
    """Wire rank of this switch at its parent."""

    def wire_rank(self, rank: int) -> int | None:
        """The wire rank of a worker of the job; None if it doesn't send to this switch."""
        return self.below.index((rank,)) if (rank,) in self.below else None


@dataclass(frozen=True, slots=True)
class Member:
    """A rank with its data-plane address and the incarnation that holds it."""

    rank: int
    address: Address
    incarnation: int
    nonce: int = 0
    """Its join's (C26)."""

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.address[0]}:{self.address[1]}"


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that left on its own; reason: its text.

    calls: how many it had finished, by stream: on each, its calls from that number on will never be (C7).
    """

    member: Member
    calls: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class JobAdmitted:
    """Event: admit it in the data plane, then notify the members (in order of rank). narrowed: why its windows are
    smaller than it wished, or "" (C17). shares: of a job of several switches, each one's, the root's first: those
    below the controller's own have it to do, and `JobReady` follows."""

    name: str
    job: JobConfig
    terms: JobTerms
    members: tuple[Member, ...]
    narrowed: str = ""
    shares: tuple[Share, ...] = ()

    def is_at(self, switch: str) -> bool:
        """Whether a switch is one of its."""
        return any(share.switch == switch for share in self.shares) if self.shares else switch == ROOT

    def place(self, rank: int) -> tuple[Share, int] | None:
        """A member's own switch, and its rank there; None: the job has one switch, the controller's."""
        places = ((share, share.wire_rank(rank)) for share in reversed(self.shares))  # deepest first: a lone worker's
        return next(((share, wire_rank) for share, wire_rank in places if wire_rank is not None), None)


@dataclass(frozen=True, slots=True)
class JobReady:
    """Event: all switches of a job of several have taken it; notify the members."""

    admitted: JobAdmitted


@dataclass(frozen=True, slots=True)
class JobEvicted:
    """Event: the data plane forgets the job; comes before any event that gives its slots to another job (C8)."""

    name: str
    job: JobConfig
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Event and membership state: these joins end here. members: those to notify. lacks_room: as in JobError."""

    name: str
    members: tuple[Member, ...]
    reason: str
    lacks_room: bool = False


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Event and membership state: the job ended for all these members. dead: the members that caused it, if any did."""

    name: str
    generation: int
    members: tuple[Member, ...]
    dead: tuple[Member, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """Event: notify the members that stay (C7)."""

    name: str
    departure: Departure
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Membership state of one that gathers; missing: ranks not yet there; reason: what else it waits for, or ""."""

    name: str
    present: tuple[Member, ...]
    missing: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Running:
    """Membership state of a member of a running job. asked_to_leave: why, or "" (C21, C24). requested_slots: of
    its own windows in all; 0: it runs below another switch, which knows."""

    admitted: JobAdmitted
    departed: tuple[Departure, ...]
    asked_to_leave: str = ""
    requested_slots: int = field(default=0, compare=False)


Event = JobAdmitted | JobReady | JobEvicted | JoinRefused | JobFailed | MemberLeft
MembershipState = Waiting | Running | JoinRefused | JobFailed
