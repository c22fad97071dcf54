"""What a rank says when it joins a job, and what it keeps to itself: each option of a job is one field here.

`JobTerms` is what all ranks of a job must say alike (C1), `MemberTerms` what one rank says of itself, of which
`MemberOptions` is what it chooses, and `LocalOptions` what never leaves a rank. `Join` is the terms of both, and the
body of the join message. Whatever else describes a job (a scenario's [switch], the environment, a simulation, a process
group) inherits these fields: a new option is one field and its use. Terms that are followed packet by packet stand in
`switchagg.job.PacketTerms`.
"""

import itertools
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv4Address
from typing import Any, Self

from switchagg.job import (
    MAX_CHILDREN,
    MAX_ELEMENTS,
    MAX_SLOTS,
    STREAMS_MAX,
    Address,
    JobConfig,
    PacketTerms,
    StreamConfig,
    verifies_by_default,
)
from switchagg.option_syntax.option_fields import choice, derived, fault_of, integer, shared_fields
from switchagg.priority import BEST_EFFORT, MOST_URGENT, class_of

STREAMS = 2
"""Streams of a job, by default: one bucket may overtake another's tail."""

WINDOW_SLOTS = 256
"""Slots per stream, by default. In packets of MTU 1500 they cover 3 ms at 1 Gb/s and 15 ms at 200 Mb/s: so long a round
trip takes when workers and switch wait for each other's processors. On idle ones, without shaping, 128 are as fast or
faster, as they stay in the caches. A worker's receive buffer (16 MB) holds many times its windows."""

URGENT_SLOTS = 64
"""Slots per stream of an urgent class, by default at least. The next more urgent class has half the slots of another,
as a class of a schedule holds about as many bytes as all more urgent ones together; 64 carry calls of 90 kB at once."""

SEGMENTS_MAX = 16
"""Packets per send, by default: 24 kB of them stay below the burst of a shaper (64 kB and more) also when several meet,
and let a switch begin to answer while the rest is on its way. Where nothing shapes, 44 (64 kB) cost less CPU."""

CALL_TIMEOUT_S = 1800.0
"""How long a call waits for ranks that live, by default: PyTorch's default for a process group."""

ROOT = ""
"""Name of the controller's own switch; those below it have others (C18)."""

CORES = ("auto", "native", "python")
AUTHENTICATE = ("auto", "on", "off")
TIMEOUT_NS_MAX = 24 * 3600 * 1_000_000_000
NAME_MAX = 200
TEXT_MAX = 1000
WEIGHT_MAX = 1000
NONCE_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class JobTerms(PacketTerms):
    """The terms of a job, which all its ranks say alike (C1)."""

    elements: int = integer(
        0, 0, MAX_ELEMENTS, "int32 per packet", "Values in a packet; 0: as many as fill the link's MTU"
    )
    streams: int = integer(
        0,
        0,
        STREAMS_MAX,
        "streams",
        "Streams, whose calls are in flight side by side; 0: one for each class listed, else 2",
    )
    window_slots: int | tuple[int, ...] = integer(
        0,
        0,
        MAX_SLOTS,
        "slots",
        "Window of each stream; 0: 256; a more urgent class has half of the next one's, at least 64",
    )
    priorities: tuple[int, ...] = ()
    """Class of each stream, 0 (most urgent) to 7 (W10), as in 0,2,7; not set: all are 7."""
    codec: str = ""
    """How sums of floats are coded, like `lanes8+ef`; "": in fixed point through a switch, not at all between hosts."""
    codec_seed: int = integer(0, 0, (1 << 63) - 1, "seed", "Seed of codecs that draw random numbers (F10)")
    split_calls: int = integer(
        0,
        0,
        1,
        "1: yes",
        "A long call uses all streams of its class (W11), for paths that hold more than a window",
    )
    job_priority: int = integer(
        BEST_EFFORT,
        MOST_URGENT,
        BEST_EFFORT,
        "class",
        "Class of the job; on a full switch jobs of later classes give way to it (C21)",
    )
    weight: int = integer(1, 1, WEIGHT_MAX, "times", "The job's share of the slots where slots are short")
    slots_least: int = integer(
        0, 0, MAX_SLOTS, "slots", "Fewest slots with which the job begins; 0: all its windows (C23)"
    )
    authenticate: str = choice(
        "auto", AUTHENTICATE, "Packets to and from the switch carry tags (A1); auto: where keys and link allow it"
    )
    sparing: bool = derived(False)
    """The job leaves room on the switch for more such jobs (C25)."""
    can_fall_back: bool = derived(False)
    """The job can go on by a host method while the switch has no room for it (C21)."""
    key_check: int = derived(0)
    """In a job whose sums are verified, what its ranks compare of their tokens; 0: the rank has none (C26)."""

    @property
    def terms(self) -> "JobTerms":
        """These fields alone, of a record that has more."""
        return JobTerms(**shared_fields(self, JobTerms))

    @property
    def room(self) -> int:
        """Elements of a data chunk of op SUM that aren't its tag (V4); of resolved terms."""
        return self.elements - self.tag_elements

    @property
    def stream_count(self) -> int:
        """How many streams the job has."""
        listed = self.window_slots if isinstance(self.window_slots, tuple) else ()
        return self.streams or len(self.priorities or listed) or STREAMS

    @property
    def classes(self) -> tuple[int, ...]:
        """The class of each stream."""
        return self.priorities or (BEST_EFFORT,) * self.stream_count

    @property
    def windows(self) -> tuple[int, ...]:
        """Slots of each stream."""
        if isinstance(self.window_slots, tuple):
            return self.window_slots
        if self.window_slots:
            return (self.window_slots,) * self.stream_count
        kinds = sorted({class_of(priority) for priority in self.classes}, reverse=True)
        slots = {kind: max(URGENT_SLOTS, WINDOW_SLOTS >> place) for place, kind in enumerate(kinds)}
        return tuple(slots[class_of(priority)] for priority in self.classes)

    @property
    def requested_slots(self) -> int:
        """How many slots the job asks for in all; of unchecked terms, too, whose numbers may be of any size."""
        if isinstance(self.window_slots, tuple) or (self.priorities and not self.window_slots):
            return sum(self.windows)
        return (self.window_slots or WINDOW_SLOTS) * self.stream_count

    def resolved(self, elements: int, workers: int = 0) -> Self:
        """With numbers in place of defaults. elements: of the link, where the terms name none. workers: of the job; 0:
        nobody says, and sums are verified only where the terms say so."""
        verified = self.secret == "on" or (workers and verifies_by_default(self.elements or elements, workers))
        return replace(
            self,
            elements=self.elements or elements,
            verify=("on" if verified else "off") if self.verify == "auto" else self.verify,
            streams=self.stream_count,
            window_slots=self.windows,
            priorities=self.classes,
        )

    @classmethod
    def of(cls, job: JobConfig) -> "JobTerms":
        """The terms of a job that is there already."""
        return JobTerms(
            elements=job.elements,
            streams=len(job.streams),
            window_slots=tuple(stream.window_slots for stream in job.streams),
            priorities=tuple(class_of(stream.priority) for stream in job.streams),
            **shared_fields(job, PacketTerms),
        )

    def narrowed(self, slots: int) -> Self:
        """With windows of at most so many slots in all, in proportion; each keeps one."""
        return replace(
            self, window_slots=tuple(max(1, window * slots // self.requested_slots) for window in self.windows)
        )

    def job_config(self, job_id: int, generation: int, workers: int, first_slot: int = 0, **local: Any) -> JobConfig:
        """The job, its streams' slot ranges side by side from first_slot on. local: further fields of JobConfig.

        Raises ValueError for numbers that can't be.
        """
        if fault := self._lists_fault():
            raise ValueError(fault)
        starts = itertools.accumulate(self.windows, initial=first_slot)
        streams = tuple(map(StreamConfig, starts, self.windows, self.classes))
        return JobConfig(
            job_id, generation, workers, self.elements, streams, **shared_fields(self, PacketTerms), **local
        )

    def terms_fault(self) -> str:
        """The term that can't be, whatever the switch, or ""."""
        if fault := fault_of(self) or self._lists_fault():
            return fault
        for priority in self.priorities:
            if not MOST_URGENT <= priority <= BEST_EFFORT:
                return f"priority {priority}: {MOST_URGENT} to {BEST_EFFORT}"
        if not 0 <= self.slots_least <= self.requested_slots:
            return f"slots_least {self.slots_least}: 0 to {self.requested_slots}"
        return ""

    def _lists_fault(self) -> str:
        """The list that has no entry, or not one for each stream, or ""."""
        if self.window_slots == ():
            return "window_slots is empty: one for each stream, or one number for all"
        if self.stream_count > STREAMS_MAX:
            return f"streams {self.stream_count}: 1 to {STREAMS_MAX}"
        for name, numbers in (("priorities", self.priorities), ("window_slots", self.windows)):
            if numbers and len(numbers) != self.stream_count:
                listed = ", ".join(map(str, numbers[:STREAMS_MAX]))
                return (
                    f"{name} {listed}: one for each of {self.stream_count} streams, of which there may be {STREAMS_MAX}"
                )
        return ""


@dataclass(frozen=True)
class QueuePairEnd:
    """One end of an RDMA queue pair, as the other end must know it (R3)."""

    queue_pair: int
    """Its number, 24 bits."""
    psn: int
    """Sequence number of the first packet that the end will send, 24 bits."""
    rkey: int
    """Key of the memory that may be written, 32 bits."""
    base: int
    """Address of that memory, 64 bits."""
    any_identification: bool = False
    """Its packets come from a real NIC, which may use any IPv4 identification."""

    def fault(self) -> str:
        """Why there can be no such end, or ""."""
        for name, value, bits in (
            ("queue pair", self.queue_pair, 24),
            ("PSN", self.psn, 24),
            ("rkey", self.rkey, 32),
            ("base", self.base, 64),
        ):
            if not 0 <= value < 1 << bits:
                return f"{name} {value}: {bits} bits"
        return ""


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """What one rank chooses, and says, when it joins."""

    link: str = "udp"
    """The link that carries the rank's packets, the switch's own; alike on every rank."""
    via: str = ROOT
    """Name of the switch that the rank sends to, where a job has several (C20)."""
    wait_for_slots: bool = derived(False)
    """The rank waits for room as long as its timeout says (C21)."""


@dataclass(frozen=True, kw_only=True)
class MemberTerms(MemberOptions):
    """What one rank says of itself when it joins."""

    rank: int
    address: Address
    """IPv4 literal and UDP port of the rank's data plane; the join comes from the same host (C15)."""
    incarnation: int
    """63 random bits, drawn for each join; later messages prove themselves with it."""
    nonce: int = 0
    """63 random bits, drawn for each join and told to all ranks: no two generations have the same key (C26)."""
    timeout_ns: int
    """How long the rank waits for the others."""
    queue_pair: QueuePairEnd | None = None
    """Over RDMA, the rank's end; ranks that share an address differ in it."""
    packets_held: int = 0
    """How many packets the rank's receive buffer holds; 0: enough (C17)."""


@dataclass(frozen=True, kw_only=True)
class Join(JobTerms, MemberTerms):
    """A rank's request to join a job: its terms are resolved, and whatever they hold is checked by `fault`."""

    job: str
    """Name of the job."""
    workers: int

    def __post_init__(self) -> None:
        """Raises ValueError for what no switch should hold until `fault` has looked at it."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, str | tuple) and len(value) > TEXT_MAX:
                raise ValueError(f"{entry.name}: {len(value)} characters or numbers, at most {TEXT_MAX}")

    def fault(self, slots: int, elements_max: int, workers_max: int = MAX_CHILDREN) -> str:
        """Why a switch of `slots` slots of up to elements_max values can never serve this, or "" (C1)."""
        windows = self.window_slots if isinstance(self.window_slots, tuple) else (self.window_slots,)
        for name, value, low, high in (
            ("workers", self.workers, 1, workers_max),
            ("rank", self.rank, 0, self.workers - 1),
            ("elements", self.elements, 1, elements_max),
            ("streams", self.streams, 1, STREAMS_MAX),
            ("window_slots", min(windows, default=0), 1, MAX_SLOTS),
            ("slots in all", self.slots_least or self.requested_slots, 1, slots),
            ("timeout_ns", self.timeout_ns, 1, TIMEOUT_NS_MAX),
            ("port", self.address[1], 1, 65_535),
            ("nonce", self.nonce, 0, NONCE_MAX),
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
        if self.partial and self.via != ROOT:
            return f"partial sums are one switch's: join it itself, not by way of {self.via[:NAME_MAX]!r}"
        if self.partial and self.can_fall_back:
            return "a job with partial sums can't move to a host method and back: leave out its fallback"
        if fault := self.terms_fault():
            return fault
        try:
            self.job_config(0, 0, self.workers)
        except ValueError as error:
            return str(error)
        return ""

    def contradiction(self, other: "Join") -> str:
        """Where two members of one gathering contradict each other, or "" (C1)."""
        for name in ("workers", *(entry.name for entry in fields(JobTerms))):
            here, there = getattr(self, name), getattr(other, name)
            if here != there and name == "key_check":
                return _token_contradiction(self, other)
            if here != there:
                return (
                    f"rank {self.rank} says {name} is {_as_text(here)}, rank {other.rank} says {_as_text(there)}; "
                    "all ranks must agree"
                )
        if self.rank == other.rank or self.address != other.address:
            return ""
        numbers = [end and end.queue_pair for end in (self.queue_pair, other.queue_pair)]
        if numbers[0] != numbers[1]:
            return ""
        end = "" if numbers[0] is None else f" and queue pair {numbers[0]}"
        return f"ranks {self.rank} and {other.rank} both give the address {self.address[0]}:{self.address[1]}{end}"


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """What a rank chooses for itself when it joins: nothing of it is sent."""

    core: str = choice(
        "auto",
        CORES,
        "Core that handles packets: native (C), or python at ten times the CPU time; auto: native if it is built",
    )
    segments_max: int = integer(
        SEGMENTS_MAX,
        1,
        64,
        "packets",
        "Packets that the kernel takes in one send; 44 cost less CPU where no shaper has a short burst",
    )
    tos: int = integer(0, 0, 255, "TOS byte", "TOS byte of packets without a priority class")
    credit_bytes: int = integer(
        0, 0, 1 << 40, "bytes", "Most bytes that wait in the kernel; 0: 128 KiB with priority classes, else unbounded"
    )
    keys: Any = ""
    """Folder of keys (`switchagg keys`), for the switch's control plane and for everything over ZeroMQ; "": none."""
    bind: str = ""
    """The rank's own IPv4 address, as others reach it; "": the one that faces the switch, or MASTER_ADDR."""
    token: str = field(default="", repr=False)
    """The ranks' secret, 16 characters or more: they verify sums by a key made from it, and know each other by it."""
    token_file: str = ""
    """A file that holds the secret in place of `token`; only its owner may read it."""


def _token_contradiction(join: Join, other: Join) -> str:
    """What is wrong with the tokens of two ranks of a job whose sums are verified."""
    ranks = f"rank {join.rank} has another token than rank {other.rank}"
    if not (join.key_check and other.key_check):
        with_token, without = (join, other) if join.key_check else (other, join)
        ranks = f"rank {without.rank} has no token, rank {with_token.rank} has one"
    return f"{ranks}; SWITCHAGG_TOKEN must be the same secret on all ranks, or be set on none"


def _as_text(value: Any) -> str:
    """A number or name, or a number for each stream."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "the same for all streams"
    return str(value)[:NAME_MAX]
