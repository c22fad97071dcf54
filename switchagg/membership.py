"""Requests to join a job, the events that follow, and the status of members (`MembershipState`) in the control plane.

The `Controller` gets requests and returns events; a membership state is its answer on one member.
"""

import itertools
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from switchagg.codecs import FIXED_POINT
from switchagg.job import FRIENDLY, MAX_CHILDREN, MAX_SLOTS, STREAMS_MAX, JobConfig, StreamConfig
from switchagg.priority import BEST_EFFORT, MOST_URGENT
from switchagg.sharing.slot_shares import SlotDemand
from switchagg.sharing.switches import ROOT, Share

NAME_MAX = 200
WEIGHT_MAX = 1000

TIMEOUT_NS_MAX = 24 * 3600 * 1_000_000_000

Address = tuple[str, int]
"""(IPv4 literal, port)."""


ALIKE = ("workers", "elements", "streams", "window_slots", "windows", "priorities", "codec", "split", "congestion",
         "job_priority", "can_fall_back", "weight", "slots_least", "sparing", "backups", "close_after_ns")  # fmt: skip
"""What all joins of a job must say alike (C1)."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """One worker's request to be `rank` of the job of this name.

    elements, streams, window_slots: as in JobConfig. address: (IPv4 literal, UDP port) of its data plane. incarnation:
    a number drawn at random for each join, 63 bits; it is also the secret that later messages prove themselves with.
    timeout_ns: how long it waits for the others. windows: window of each stream where they differ; window_slots is then
    the first one's. priorities: class of each stream (W10); empty: all best effort. queue_pair: over RDMA, the number
    of its end; ranks that share an address differ in it. codec: name of what sums of floats travel in. packets_held:
    how many its receive buffer holds, 0: enough (C17). split: whether long calls are split (W11). congestion: as of
    JobConfig. via: name of the switch it sends to (C18). job_priority: 0, most urgent, to 7. can_fall_back: whether the
    job can go on without the switch. wait_for_slots: it waits for slots as long as timeout_ns says (C21). weight: of
    its share of the slots. slots_least: with so many in all it begins, too; 0: only with all (C23). sparing: it leaves
    room for more such jobs (C25). backups, close_after_ns: as of JobConfig (Q1)."""

    job: str
    rank: int
    workers: int
    elements: int
    streams: int
    window_slots: int
    address: Address
    incarnation: int
    timeout_ns: int
    windows: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    queue_pair: int | None = None
    codec: str = FIXED_POINT.name
    packets_held: int = 0
    split: bool = False
    congestion: str = FRIENDLY
    via: str = ROOT
    job_priority: int = BEST_EFFORT
    can_fall_back: bool = False
    wait_for_slots: bool = False
    weight: int = 1
    slots_least: int = 0
    sparing: bool = False
    backups: int = 0
    close_after_ns: int = 0

    def narrowed(self, slots: int) -> "JoinRequest":
        """With windows of at most so many slots in all, in proportion; each keeps one."""
        windows = self.windows or (self.window_slots,) * self.streams
        return replace(self, windows=tuple(max(1, window * slots // self.slots) for window in windows))

    @property
    def slots(self) -> int:
        """How many slots the job needs in all."""
        return sum(self.windows) if self.windows else self.streams * self.window_slots

    def config(self, job_id: int, generation: int, first_slot: int) -> JobConfig:
        """The job, its streams' slot ranges side by side from first_slot on. Only of a request without fault."""
        windows = self.windows or (self.window_slots,) * self.streams
        priorities = self.priorities or (BEST_EFFORT,) * self.streams
        starts = itertools.accumulate(windows, initial=first_slot)
        streams = tuple(map(StreamConfig, starts, windows, priorities))
        backups, close_ns = self.backups, self.close_after_ns
        return JobConfig(
            job_id, generation, self.workers, self.elements, streams, backups=backups, close_after_ns=close_ns
        )

    def fault(self, slots: int, elements_max: int, workers_max: int = MAX_CHILDREN) -> str:
        """Why a switch of `slots` slots of up to elements_max values can never serve this, or "" (C1)."""
        each = [("window_slots", window, 1, MAX_SLOTS) for window in self.windows]
        each += [("priority", priority, MOST_URGENT, BEST_EFFORT) for priority in self.priorities]
        for name, value, low, high in (
            ("workers", self.workers, 1, workers_max),
            ("rank", self.rank, 0, self.workers - 1),
            ("elements", self.elements, 1, elements_max),
            ("streams", self.streams, 1, STREAMS_MAX),
            ("window_slots", self.window_slots, 1, MAX_SLOTS),
            ("number of windows", len(self.windows) or self.streams, self.streams, self.streams),
            ("number of priorities", len(self.priorities) or self.streams, self.streams, self.streams),
            *each,
            ("slots in all", self.slots_least or self.slots, 1, slots),
            ("timeout_ns", self.timeout_ns, 1, TIMEOUT_NS_MAX),
            ("job_priority", self.job_priority, MOST_URGENT, BEST_EFFORT),
            ("weight", self.weight, 1, WEIGHT_MAX),
            ("slots_least", self.slots_least, 0, self.slots),
            ("port", self.address[1], 1, 65_535),
        ):
            if not low <= value <= high:
                return f"{name} {value}: this switch takes {low} to {high}"
        if not (self.job.isprintable() and 1 <= len(self.job) <= NAME_MAX):
            return f"job name {self.job[:NAME_MAX]!r}: 1 to {NAME_MAX} printable characters"
        try:
            address = IPv4Address(self.address[0])
        except ValueError:
            address = IPv4Address(0)
        if address.is_unspecified or address.is_multicast:
            return f"address {self.address[0][:64]!r}: the worker must give the IPv4 address it sends from"
        return self._partial_fault()

    def _partial_fault(self) -> str:
        """What partial sums can't have, with the remedy (Q1)."""
        if not self.backups and not self.close_after_ns:
            return ""
        if self.via != ROOT:
            return f"partial sums are one switch's: join it itself, not by way of {self.via!r}"
        if self.can_fall_back:
            return "a job with partial sums can't move to a host method and back: leave out its fallback"
        try:
            self.config(0, 0, 0)
        except ValueError as error:
            return str(error)
        return ""

    def contradiction(self, other: "JoinRequest") -> str:
        """Where two members of one gathering contradict each other, or "" (C1)."""
        for name in ALIKE:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return (
                    f"rank {self.rank} says {name} is {_said(ours)}, rank {other.rank} says {_said(theirs)}; "
                    "all ranks must agree"
                )
        ours, theirs = (self.address, self.queue_pair), (other.address, other.queue_pair)
        if ours == theirs and self.rank != other.rank:
            which = "" if self.queue_pair is None else f" and queue pair {self.queue_pair}"
            return f"ranks {self.rank} and {other.rank} both give the address {_text(self.address)}{which}"
        return ""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank with its data-plane address and the incarnation that holds it."""

    rank: int
    address: Address
    incarnation: int

    def __str__(self) -> str:
        return f"rank {self.rank} at {_text(self.address)}"


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
    members: tuple[Member, ...]
    narrowed: str = ""
    shares: tuple[Share, ...] = ()

    def is_at(self, switch: str) -> bool:
        """Whether a switch is one of its."""
        return any(share.switch == switch for share in self.shares) if self.shares else switch == ROOT

    def place(self, rank: int) -> tuple[Share, int] | None:
        """Of a member: its own switch, and its rank there; None: the job has one switch, the controller's."""
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
    """Membership state of one of a running job. asked_to_leave: why, or "" (C21, C24). demand: what it asked for, its
    weight and class; None: it runs below another switch, which knows."""

    admitted: JobAdmitted
    departed: tuple[Departure, ...]
    asked_to_leave: str = ""
    demand: SlotDemand | None = field(default=None, compare=False)


Event = JobAdmitted | JobReady | JobEvicted | JoinRefused | JobFailed | MemberLeft
MembershipState = Waiting | Running | JoinRefused | JobFailed


def _said(value: int | str | tuple[int, ...]) -> str:
    """A number or name, or a number for each stream."""
    return str(value) if isinstance(value, int | str) else ", ".join(map(str, value)) or "the same for all streams"


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
