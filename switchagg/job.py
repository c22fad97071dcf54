"""What all parties of a job agree on: frozen, validated once, handed out by the control plane."""

from dataclasses import dataclass

from switchagg.option_syntax.option_fields import choice, fault_of, integer
from switchagg.priority import BEST_EFFORT

MAX_WORKERS = 4096
"""Most workers in a job, in a tree of switches (H1): 19 bits of a sum of theirs are left for each value (F3)."""

MAX_CHILDREN = 64
"""Most workers or switches that send to one switch: ranks are bits of a 64-bit word."""

MAX_PARTIAL = MAX_CHILDREN - 1
"""Most workers of a job with partial sums: bit n of what a switch has seen says that a chunk is finalised (Q1)."""

MAX_VERIFIED = 2048
"""Most workers of a job with verified sums: so many limbs of a tag add up to less than 2**32 (V4)."""

TAG_ELEMENTS = 3
"""Last elements of a data chunk whose sum is verified: its tag (V4)."""

TAG_SHARE = 50
"""Where nobody asks, sums are verified if a tag takes no more than this part of a packet: 2 %."""

MAX_ELEMENTS = 16_000
"""Largest E: 64,020 bytes in one UDP datagram (at most 65,507)."""

ELEMENTS_MTU_1500 = 360
"""E that fills an Ethernet frame of MTU 1500: 28 B IP and UDP + 20 B header + 1440 B of elements = 1488 B."""

MAX_SLOTS = 1 << 16
STREAMS_MAX = 256
MAX_PRIORITY = (1 << 31) - 1
MAX_RTO_NS = 1 << 60
"""36 years; the compiled core counts nanoseconds in 64 bits."""

UNCONTROLLED, DCTCP, RENO, FRIENDLY = "none", "dctcp", "reno", "friendly"
CONGESTION = (FRIENDLY, DCTCP, RENO, UNCONTROLLED)
"""What a job's ranks may agree on: how windows follow marks, or that they don't (G5)."""

Address = tuple[str, int]
"""(IPv4 literal, port)."""

MODULUS = 1 << 32
"""Chunk numbers and sums live modulo this."""


@dataclass(frozen=True)
class StreamConfig:
    """A stream's slot range and its priority.

    first_slot: index of its first slot in the switch. window_slots: how many slots, which is also how many chunks may
    be in flight; 256 slots of 1460 B cover 15 ms at 200 Mb/s. priority: lower is more urgent; orders streams on
    the wire and never chooses slots; fits 32 bits with a sign; 0 to 7 are the priority classes (W10), 7 best effort.
    """

    first_slot: int
    window_slots: int
    priority: int = BEST_EFFORT

    def __post_init__(self) -> None:
        if not 1 <= self.window_slots <= MAX_SLOTS:
            raise ValueError(f"window_slots {self.window_slots}: 1 to {MAX_SLOTS}")
        if not 0 <= self.first_slot <= MAX_SLOTS - self.window_slots:
            raise ValueError(f"first_slot {self.first_slot}: 0 to {MAX_SLOTS - self.window_slots}")
        if not -MAX_PRIORITY - 1 <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority {self.priority}: {-MAX_PRIORITY - 1} to {MAX_PRIORITY}")


@dataclass(frozen=True, kw_only=True)
class PacketTerms:
    """The terms of a job that its endpoints and switches follow packet by packet, on all ranks alike.

    The C core has the same fields: `setup.py` writes them into a header.
    """

    congestion: str = choice(
        FRIENDLY,
        CONGESTION,
        "How windows follow ECN marks: friendly shares fairly with TCP; dctcp and reno follow these",
    )
    verify: str = choice(
        "auto", ("auto", "on", "off"), "Every rank verifies sums by tags (V1); auto: if packets hold 150 values or more"
    )
    secret: str = choice(
        "off", ("off", "on"), "Every rank masks its values (X1), so that switches and wires see noise; it needs a token"
    )
    backups: int = integer(0, 0, MAX_PARTIAL - 1, "workers", "Workers for which a sum doesn't wait")
    close_after_ns: int = integer(
        0, 0, 10**12, "ns", "Longest time that a sum waits; 0: until all but the backups are there"
    )

    @property
    def partial(self) -> bool:
        """Whether a sum may lack some workers' values (Q1)."""
        return self.backups > 0 or self.close_after_ns > 0

    @property
    def tag_elements(self) -> int:
        """Elements of a data chunk of op SUM that are its tag (V4); "auto" that nobody has resolved means no tags."""
        return TAG_ELEMENTS if self.verify == "on" else 0

    @property
    def secret_fault(self) -> str:
        """Why sums that are asked to be secret can't be, and what to do, or "" (X1)."""
        if self.secret == "on" and self.partial:
            return "secret sums can't be partial: a mask would lack ranks; leave out backups and close_after_ns"
        if self.secret == "on" and self.verify != "on":
            return "secret sums need verify=on: who sees a masked sum could still change it"
        return ""


def verifies_by_default(elements: int, workers: int) -> bool:
    """Whether "auto" verifies sums of so many elements per packet and workers (V1)."""
    return workers <= MAX_VERIFIED and elements >= TAG_SHARE * TAG_ELEMENTS


@dataclass(frozen=True)
class JobConfig(PacketTerms):
    """A job's share of the switch, the same on every worker and in the switch.

    job_id: 0 to 65535. generation: 0 to 2**32 - 1, raised at every (re)start. workers: 1 to 4096, more than 64 in a
    tree. elements: int32 values per packet (E). streams: up to 256, their slot ranges disjoint. The RTO fields are in
    nanoseconds (rule W7): the initial value covers a cold start, the floor lies above the scheduler tick of a busy
    machine (4 ms at HZ=250; a timeout too early costs four packets), the ceiling keeps a job that waits for a slow rank
    from resending too rarely once the rank is there. retry_limit: timeouts in a row without any result before a stream
    gives up (rule W9). With backups or close_after_ns sums are *partial* (Q1 to Q8): a chunk is finalised with the
    values of all workers but so many, or so long after a worker sent its own (0: never).
    """

    job_id: int
    generation: int
    workers: int
    elements: int
    streams: tuple[StreamConfig, ...]
    rto_initial_ns: int = 200_000_000
    rto_min_ns: int = 5_000_000
    rto_max_ns: int = 1_000_000_000
    retry_limit: int = 30

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("job_id", self.job_id, 0, (1 << 16) - 1),
            ("generation", self.generation, 0, MODULUS - 1),
            ("workers", self.workers, 1, MAX_WORKERS),
            ("elements", self.elements, 1, MAX_ELEMENTS),
            ("number of streams", len(self.streams), 1, STREAMS_MAX),
            ("rto_max_ns", self.rto_max_ns, 1, MAX_RTO_NS),
            ("rto_min_ns", self.rto_min_ns, 1, self.rto_max_ns),
            ("rto_initial_ns", self.rto_initial_ns, self.rto_min_ns, self.rto_max_ns),
            ("retry_limit", self.retry_limit, 1, 1 << 31),
            ("backups", self.backups, 0, self.workers - 1),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} {value}: {low} to {high}")
        if self.partial and not 2 <= self.workers <= MAX_PARTIAL:
            raise ValueError(f"partial sums of {self.workers} workers: 2 to {MAX_PARTIAL}")
        reserved = self.tag_elements + self.presence * self.partial
        if self.elements <= reserved:
            sums = "partial" if not self.tag_elements else "verified partial" if self.partial else "verified"
            raise ValueError(f"{sums} sums need more than {reserved} elements, not {self.elements}")
        if self.tag_elements and self.workers > MAX_VERIFIED:
            raise ValueError(f"verified sums of {self.workers} workers: 1 to {MAX_VERIFIED}; verify=off goes without")
        if fault := fault_of(self) or self.secret_fault:
            raise ValueError(fault)
        end = -1
        for first, window in sorted((s.first_slot, s.window_slots) for s in self.streams):
            if first <= end:
                raise ValueError(f"slot {first} belongs to two streams")
            end = first + window - 1

    @property
    def presence(self) -> int:
        """Elements of a partial sum that say whose values are in it (Q6)."""
        return -(-self.workers // 32)

    @property
    def room(self) -> int:
        """Elements of a data chunk of op SUM that aren't its tag (V4)."""
        return self.elements - self.tag_elements

    def place(self, stream: int, chunk: int) -> tuple[int, int]:
        """(slot, version) of a chunk: it follows from what all workers share, never from priority (rule W2).

        chunk counts from 0 without wrapping; only the wire shortens it to 32 bits.
        """
        config = self.streams[stream]
        turn, offset = divmod(chunk, config.window_slots)
        return config.first_slot + offset, turn & 1

    @property
    def slots(self) -> tuple[int, int]:
        """(first, end) of the slots the job owns, end excluded; streams may leave gaps inside."""
        return (
            min(s.first_slot for s in self.streams),
            max(s.first_slot + s.window_slots for s in self.streams),
        )
