"""JoinOptions: how a worker joins a job on a switch; checked once, when made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switchagg.codecs import FIXED_POINT
from switchagg.codecs.spec import CodecSpec, parse_sums
from switchagg.errors import JobError
from switchagg.job import CONGESTION, FRIENDLY, MAX_PARTIAL, MAX_RTO_NS, STREAMS_MAX, JobConfig
from switchagg.membership import TIMEOUT_NS_MAX, WEIGHT_MAX
from switchagg.priority import BEST_EFFORT, class_of
from transport.links.link_kind import LinkKind
from transport.links.link_kinds import LINKS, links_with
from transport.rdma.provider import RdmaOptions
from transport.zeromq.keys import Keys

CALL_TIMEOUT_S = 1800.0
"""How long a call waits for ranks that live: PyTorch's default for a process group."""

SEGMENTS_MAX = 16
"""Packets per send, by default: 24 kB of them stay below the burst of a shaper (64 kB and more) also when several meet,
and let a switch begin to answer while the rest is on its way. Where nothing shapes, 44 (64 kB) cost less CPU."""

WINDOW_SLOTS = 256
"""Slots per stream, by default. In packets of MTU 1500 they cover 3 ms at 1 Gb/s and 15 ms at 200 Mb/s: so long a round
trip takes when workers and switch wait for each other's processors. On idle ones, without shaping, 128 are as fast or
faster, as they stay in the caches. A worker's receive buffer (16 MB) holds many times its windows."""

URGENT_SLOTS = 64
"""Slots per stream of an urgent class, by default at least. The next more urgent class has half the slots of another,
as a class of a schedule holds about as many bytes as all more urgent ones together; 64 carry calls of 90 kB at once."""

CREDIT_BYTES = 1 << 17
"""What of a job with priority classes may lie in the kernel, by default: 1 ms at 1 Gb/s, so that a loop that is called
a little late finds the link still at work; 5 ms at 200 Mb/s, which an urgent call waits in a queue without classes."""

STREAMS = 2
"""By default: one bucket may overtake another's tail."""

CORES = ("auto", "native", "python")
RETRY_LIMIT_MAX = 1 << 31
"""Of a JobConfig."""


@dataclass(frozen=True)
class JoinOptions:
    """How a rank joins, the first four and `link` alike on every rank. Raises JobError for what can't be.

    elements: int32 values per packet; None: what fills an MTU of 1500: 360, over RDMA 251. streams: how many calls are
    under way side by side; None: one for each of priorities or window_slots, else 2. window_slots: packets in flight,
    of every stream or of each; None: 256, of a more urgent class half of the next one's, at least 64. priorities: class
    of each stream, 0 (most urgent) to 7 (best effort); (): all best effort. timeout_s: how long to wait for the others.
    call_timeout_s: how long a call waits for ranks that are alive; retry_limit says it in timeouts in a row instead.
    bind: own IPv4 address for packets, and for the join, which proves it (C15); None: the one that faces the switch.
    core: "native" carries packets in C; "python" needs no compiler and costs about ten times the CPU; "auto" is native
    where the compiled core is there, else Python, said once by a warning. segments_max, tos, credit_bytes: as of a
    UdpLink; credit_bytes None: 128 KiB with priorities, else unbounded; other links have no credit. link: what carries
    packets, as the switch was told. keys: or their folder, of the control plane, and of packets over ZeroMQ. rdma:
    options of that link alone. codec: of sums of floats, as `switchagg.codecs.spec` reads it, the same on every rank;
    if it is only in Python, so is the core. codec_seed: of codecs that draw random numbers (F10). split_calls: a call
    of more packets than the smallest window of its class uses all streams of the class at once, on every rank: for ways
    that are longer than a window; elsewhere later calls only wait for it. via: name of the switch that this rank sends
    to, where there are some below the one it joins; "": that one. congestion: "friendly", windows follow the marks of
    packets, fairly beside TCP (G6), "dctcp", "reno" or "none", on every rank. job_priority: 0, most urgent, to 7: which
    of the jobs that can leave gives its slots to another. can_fall_back: this job can, as who joins goes on without the
    switch (`transport.group.fallback_group`). wait_for_slots: wait as long as timeout_s says. weight: of the job's
    share where slots are short; slots_least: with so many it begins, too; 0: with all its windows only. sparing: it
    leaves room for more jobs (C25), as groups of one program. backups: so many ranks a sum doesn't wait for;
    close_after_ns: nor for any so long after one's own values; 0: for all (Q1). Then the core is Python's. token: of
    the host method by which a job goes on without the switch, as of GroupOptions."""

    elements: int | None = None
    streams: int | None = None
    window_slots: int | Sequence[int] | None = None
    priorities: Sequence[int] = ()
    timeout_s: float = 30.0
    call_timeout_s: float = CALL_TIMEOUT_S
    retry_limit: int | None = None
    bind: str | None = None
    core: str = "auto"
    segments_max: int = SEGMENTS_MAX
    tos: int = 0
    credit_bytes: int | None = None
    link: str = "udp"
    keys: Keys | Path | str | None = None
    rdma: RdmaOptions | None = None
    codec: str = FIXED_POINT.name
    codec_seed: int = 0
    split_calls: bool = False
    via: str = ""
    congestion: str = FRIENDLY
    job_priority: int = BEST_EFFORT
    can_fall_back: bool = False
    wait_for_slots: bool = False
    weight: int = 1
    slots_least: int = 0
    sparing: bool = False
    backups: int = 0
    close_after_ns: int = 0
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.link not in links_with("switch"):
            raise JobError(f"link '{self.link}': one of {', '.join(links_with('switch'))}")
        if self.elements is not None:
            self.kind.check_elements(self.elements)
        self._check_streams()
        if not 0 < self.timeout_s * 1e9 <= TIMEOUT_NS_MAX:
            raise JobError(f"timeout_s {self.timeout_s:g}: more than 0, at most {TIMEOUT_NS_MAX / 1e9:g}")
        if not 1 <= self.retries <= RETRY_LIMIT_MAX:
            raise JobError(f"retry_limit {self.retry_limit}: 1 to {RETRY_LIMIT_MAX}")
        _ = self.codec_spec  # or it raises
        if self.congestion not in CONGESTION:
            raise JobError(f"congestion {self.congestion!r}: one of {', '.join(CONGESTION)}")
        for name, given, low, high in (
            ("weight", self.weight, 1, WEIGHT_MAX),
            ("slots_least", self.slots_least, 0, self.slots),
            ("backups", self.backups, 0, MAX_PARTIAL - 1),
            ("close_after_ns", self.close_after_ns, 0, MAX_RTO_NS),
        ):
            if not low <= given <= high:
                raise JobError(f"{name} {given}: {low} to {high}")
        if not 0 <= self.job_priority <= BEST_EFFORT:
            raise JobError(f"job_priority {self.job_priority}: 0 to {BEST_EFFORT}")
        if self.core not in CORES:
            raise JobError(f"core {self.core!r}: one of {', '.join(CORES)}")
        if self.core not in ("auto", *self.kind.cores):
            raise JobError(f"core {self.core!r}: the link {self.link} has only {', '.join(self.kind.cores)}")
        if self.partial:
            self._check_partial()

    def _check_streams(self) -> None:
        """Raise JobError where the lists disagree."""
        if not isinstance(self.window_slots, int | None) and not self.windows:
            raise JobError("window_slots is empty: one for each stream, or one number for all")
        count = self.stream_count
        for name, values in (("priorities", self.priorities), ("window_slots", self.windows)):
            if values and (len(values) != count or count > STREAMS_MAX):
                given = ", ".join(map(str, values[:STREAMS_MAX]))
                raise JobError(f"{name} {given}: one for each of {count} streams, of which there may be {STREAMS_MAX}")

    def _check_partial(self) -> None:
        """Raise JobError for what can't go with sums that lack some ranks."""
        spec = self.codec_spec
        for wrong, what in (
            (
                not self.kind.header_only,
                f"link {self.link}: its packets are all of one size; take {_links_with_header_only()}",
            ),
            (self.core == "native", "core native: the Python core alone has them; take auto"),
            (spec.row_codec is None, f"codec {self.codec}: it needs all ranks; take one of rows, as fixed_point"),
            (spec.feedback == "ef21", f"codec {self.codec}: its totals need every rank's difference; take +ef"),
        ):
            if wrong:
                raise JobError(f"backups, close_after_ns: no partial sums with {what}")

    @property
    def partial(self) -> bool:
        """Whether sums may lack some ranks' values."""
        return self.backups > 0 or self.close_after_ns > 0

    @property
    def kind(self) -> LinkKind:
        """The link's description."""
        return LINKS[self.link]

    @property
    def codec_spec(self) -> CodecSpec:
        """The codec of that name, with what surrounds it. Raises JobError for one that a switch can't serve."""
        try:
            return parse_sums(self.codec)
        except ValueError as error:
            raise JobError(str(error)) from None

    @property
    def packet_elements(self) -> int:
        """`elements`, or the link's own."""
        return self.kind.elements if self.elements is None else self.elements

    @property
    def stream_count(self) -> int:
        """`streams`, or what the lists say."""
        return self.streams if self.streams is not None else len(self.priorities or self.windows) or STREAMS

    @property
    def windows(self) -> list[int]:
        """Slots of each stream; [] if one number is for all."""
        if self.window_slots is not None:
            return [] if isinstance(self.window_slots, int) else list(self.window_slots)
        classes = sorted({class_of(priority) for priority in self.priorities}, reverse=True)
        slots = {kind: max(URGENT_SLOTS, WINDOW_SLOTS >> place) for place, kind in enumerate(classes)}
        return [slots[class_of(priority)] for priority in self.priorities] if len(classes) > 1 else []

    @property
    def first_window(self) -> int:
        """Slots of the first stream."""
        each = self.windows or [self.window_slots if isinstance(self.window_slots, int) else WINDOW_SLOTS]
        return each[0]

    @property
    def slots(self) -> int:
        """Slots of all streams together."""
        return sum(self.windows) or self.stream_count * self.first_window

    @property
    def retries(self) -> int:
        """`retry_limit`, or what fills call_timeout_s."""
        return retry_limit_for(self.call_timeout_s) if self.retry_limit is None else self.retry_limit

    @property
    def credit(self) -> int | None:
        """`credit_bytes`, or the default of jobs with priorities."""
        return CREDIT_BYTES if self.credit_bytes is None and self.priorities else self.credit_bytes


def _links_with_header_only() -> str:
    return " or ".join(name for name in links_with("switch") if LINKS[name].header_only)


def retry_limit_for(
    call_timeout_s: float, rto_min_ns: int = JobConfig.rto_min_ns, rto_max_ns: int = JobConfig.rto_max_ns
) -> int:
    """Timeouts in a row that fill call_timeout_s: at worst they double from rto_min_ns up to rto_max_ns (W7)."""
    if not call_timeout_s > 0:
        raise JobError(f"call_timeout_s {call_timeout_s:g}: more than 0")
    at_most = min(call_timeout_s * 1e9 / rto_max_ns, RETRY_LIMIT_MAX)  # also of a timeout that is infinite
    return min(RETRY_LIMIT_MAX, math.ceil(at_most) + math.ceil(math.log2(rto_max_ns / rto_min_ns)))
