"""Requests to join a job, the events that follow, and the status of members (`standing`) in the control plane.

The `Controller` gets requests and returns events; a standing is its answer on one member when asked.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from switchagg.codecs import FIXED_POINT
from switchagg.job import MAX_CHILDREN, MAX_SLOTS, MODULUS, STREAMS_MAX, JobConfig, StreamConfig
from switchagg.priority import BEST_EFFORT, MOST_URGENT

NAME_MAX = 200
GENERATIONS_KEPT = 4096
"""So many latest generations are not used again."""

CONTRADICTIONS_SHOWN_MAX = 3

MORE_BUFFER = "give it more there, as root: sysctl -w net.core.rmem_max=16777216"
TIMEOUT_NS_MAX = 24 * 3600 * 1_000_000_000

Address = tuple[str, int]
"""(IPv4 literal, port)."""


# ---- so that no peer takes all that others need (C16)


@dataclass(frozen=True, slots=True)
class Holding:
    """A job's slots, and the address of each of its members."""

    slots: int
    hosts: tuple[str, ...]

    def slots_of(self, host: str) -> int:
        """The host's part: the slots are shared evenly among the members."""
        return self.slots * self.hosts.count(host) // len(self.hosts)


@dataclass(frozen=True, slots=True)
class PeerQuota:
    """What one address may have at a time. joins: members that wait for others. jobs: that run and have a member there.
    slots: of those jobs, each counted by the part of its members that are there; None: half of the switch's.

    A job's members prove their addresses (C15). On loopback all have the same few, so only joins are counted there.
    """

    joins: int = 256
    jobs: int = 64
    slots: int | None = None

    def joins_fault(self, host: str, waiting: int) -> str:
        """Why no more of this host's members may wait beside those that do, or ""."""
        return f"{waiting} members from {host} are waiting already, its quota" if waiting >= self.joins else ""

    def fault(self, switch_slots: int, wanted: Holding, running: Sequence[Holding]) -> str:
        """Why a job would give one of its hosts more than its quota, beside those that run, or ""."""
        most = switch_slots // 2 if self.slots is None else self.slots
        for host in sorted(set(wanted.hosts)):
            if IPv4Address(host).is_loopback:
                continue
            own = [job for job in running if host in job.hosts]
            slots = sum(job.slots_of(host) for job in (*own, wanted))
            if len(own) >= self.jobs:
                return f"{host} has {len(own)} jobs already, its quota; end one, or raise the switch's --peer-quota"
            if slots > most:
                return (
                    f"{host} would have {slots} of {switch_slots} slots and its quota is {most}; end a job of it, ask "
                    f"for a smaller window, or raise the switch's --peer-quota"
                )
        return ""


def parse_peer_quota(text: str) -> PeerQuota:
    """From "joins=256,jobs=64,slots=2048", each of which may be left out. Raises ValueError."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition("=")
        if name not in ("joins", "jobs", "slots") or not number.isdecimal() or not int(number):
            raise ValueError(f"{part.strip()!r} not understood; allowed: joins=256, jobs=64, slots=2048")
        found[name] = int(number)
    return PeerQuota(**found)


# ---- members and jobs


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """One worker's request to be `rank` of the job of this name.

    elements, streams, window_slots: as in JobConfig. address: (IPv4 literal, UDP port) of its data plane. incarnation:
    a number drawn at random for each join, 63 bits; it is also the secret that later messages prove themselves with.
    timeout_ns: how long it waits for the others. windows: window of each stream where they differ; window_slots is then
    the first one's. priorities: class of each stream (W10); empty: all best effort. queue_pair: over RDMA, the number
    of its end; ranks that share an address differ in it. codec: name of what sums of floats travel in.
    packets_held: how many its receive buffer holds, 0: enough (C17). split: whether long calls are split (W11).
    """

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

    def narrowed(self, slots: int) -> "JoinRequest":
        """With windows of at most so many slots in all, in proportion; each keeps one."""
        windows = self.windows or (self.window_slots,) * self.streams
        return replace(self, windows=tuple(max(1, window * slots // self.slots) for window in windows))

    @property
    def slots(self) -> int:
        """How many slots the job needs in all."""
        return sum(self.windows) if self.windows else self.streams * self.window_slots

    def stream_configs(self, first_slot: int) -> tuple[StreamConfig, ...]:
        """The streams, their slot ranges side by side from first_slot on. Only of a request without fault."""
        windows = self.windows or (self.window_slots,) * self.streams
        priorities = self.priorities or (BEST_EFFORT,) * self.streams
        starts = itertools.accumulate(windows, initial=first_slot)
        return tuple(map(StreamConfig, starts, windows, priorities))

    def fault(self, slots: int, elements_max: int) -> str:
        """Why a switch of `slots` slots of up to elements_max values can never serve this, or "" (C1)."""
        each = [("window_slots", window, 1, MAX_SLOTS) for window in self.windows]
        each += [("priority", priority, MOST_URGENT, BEST_EFFORT) for priority in self.priorities]
        for name, value, low, high in (
            ("workers", self.workers, 1, MAX_CHILDREN),
            ("rank", self.rank, 0, self.workers - 1),
            ("elements", self.elements, 1, elements_max),
            ("streams", self.streams, 1, STREAMS_MAX),
            ("window_slots", self.window_slots, 1, MAX_SLOTS),
            ("number of windows", len(self.windows) or self.streams, self.streams, self.streams),
            ("number of priorities", len(self.priorities) or self.streams, self.streams, self.streams),
            *each,
            ("slots in all", self.slots, 1, slots),
            ("timeout_ns", self.timeout_ns, 1, TIMEOUT_NS_MAX),
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
        return ""

    def contradiction(self, other: "JoinRequest") -> str:
        """Where two members of one gathering contradict each other, or "" (C1)."""
        for name in ("workers", "elements", "streams", "window_slots", "windows", "priorities", "codec", "split"):
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
    smaller than it wished, or "" (C17)."""

    name: str
    job: JobConfig
    members: tuple[Member, ...]
    narrowed: str = ""


@dataclass(frozen=True, slots=True)
class JobEvicted:
    """Event: the data plane forgets the job; comes before any event that gives its slots to another job (C8)."""

    name: str
    job: JobConfig


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Event and standing: these joins end here. members: those to notify. lacks_room: as in JobError."""

    name: str
    members: tuple[Member, ...]
    reason: str
    lacks_room: bool = False


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Event and standing: the job ended for all these members. dead: the members that caused it, if any did."""

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
    """Standing of a member that gathers; missing: ranks not yet there; reason: what else it waits for, or ""."""

    name: str
    present: tuple[Member, ...]
    missing: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Running:
    """Standing of a member of a running job."""

    admitted: JobAdmitted
    departed: tuple[Departure, ...]


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
    complete_ns: int = 0
    """When the last rank came."""
    contradictions: dict[int, str] = field(default_factory=dict)
    """Of the joins that were refused, by rank: the latest of each."""

    @property
    def workers(self) -> int:
        """How many there shall be."""
        return next(iter(self.seats.values())).request.workers

    @property
    def holding(self) -> Holding:
        """What it will need."""
        seats = self.seats.values()
        return Holding(next(iter(seats)).request.slots, tuple(seat.request.address[0] for seat in seats))

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
    departures: list[Departure] = field(default_factory=list)

    @property
    def holding(self) -> Holding:
        """What it has."""
        return Holding(
            sum(stream.window_slots for stream in self.admitted.job.streams),
            tuple(member.address[0] for member in self.admitted.members),
        )


def fitted(gathering: GatheringJob, packets_held: int) -> tuple[JoinRequest, str]:
    """The request of all members, with windows whose packets fit all receive buffers, and why, or "" (C17).

    packets_held: how many that of the switch holds, where those of all workers meet; 0: enough.
    """
    requests = [seat.request for seat in gathering.seats.values()]
    bounds = (
        [(packets_held // len(requests), f"the switch's receive buffer holds {packets_held} packets")]
        if packets_held
        else []
    )
    bounds += [
        (
            request.packets_held,
            f"that of rank {request.rank} at {request.address[0]} holds {request.packets_held} packets",
        )
        for request in requests
        if request.packets_held
    ]
    slots, whose = min(bounds, default=(0, ""))
    wish = requests[0]
    if not bounds or wish.slots <= slots:
        return wish, ""
    fitting = wish.narrowed(slots)
    return fitting, f"windows have {fitting.slots} slots in all, not {wish.slots}: {whose}; {MORE_BUFFER}"


class Generations:
    """Numbers of jobs' starts that nobody can foresee. draw: gives a random number below 2**32."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._recent: deque[int] = deque(maxlen=GENERATIONS_KEPT)

    def new(self, running: Iterable[int]) -> int:
        """One that no running job has and none of the latest had (C5)."""
        taken = {*running, *self._recent}
        while (drawn := self._draw() % MODULUS) in taken:
            pass
        self._recent.append(drawn)
        return drawn


Event = JobAdmitted | JobEvicted | JoinRefused | JobFailed | MemberLeft
Standing = Waiting | Running | JoinRefused | JobFailed


def _said(value: int | str | tuple[int, ...]) -> str:
    """A number or name, or a number for each stream."""
    return str(value) if isinstance(value, int | str) else ", ".join(map(str, value)) or "the same for all streams"


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
