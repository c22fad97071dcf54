"""Control messages between worker and switch, and how they are encoded (C11).

A message is two frames: b"SAC" + a version byte, then a msgpack map tagged by "type". `encode`, `decode_request` and
`decode_answer` are total: any frames decode or raise DecodeError.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from switchagg.codecs import FIXED_POINT
from switchagg.errors import DecodeError
from switchagg.job import FRIENDLY, JobConfig, StreamConfig
from switchagg.membership import Departure, Member
from switchagg.priority import BEST_EFFORT
from transport.rdma.places import QueuePairEnd

MAGIC = b"SAC"
CONTROL_VERSION = 5
HEADER = MAGIC + bytes([CONTROL_VERSION])

REASONS = ("frames", "magic", "control_version", "body")
"""Why frames are no message, in the order of the checks."""

TEXT_MAX = 1000
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""Its real range is the Controller's to judge, so that the refusal can name it."""
Counts = Annotated[list[Count], msgspec.Meta(max_length=256)]
Smalls = Annotated[list[Small], msgspec.Meta(max_length=256)]
"""One for each stream."""

SLOTS_REPORTED_MAX = 4096
"""Most slot versions in a status answer (about 150 kB); unfinished ones come first."""


class RankAddress(msgspec.Struct, frozen=True):
    """A rank and the UDP address of its data plane."""

    rank: Small
    host: Text
    port: Small

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.host}:{self.port}"


class QueuePairAddress(msgspec.Struct, frozen=True):
    """One end of an RDMA queue pair; see QueuePairEnd in transport/rdma/places.py (R3)."""

    queue_pair: Count
    psn: Count
    rkey: Count
    base: Count
    any_identification: bool = False


class DepartedMember(msgspec.Struct, frozen=True):
    """A member that left; calls: how many it had finished, by stream (C7)."""

    place: RankAddress
    calls: Counts
    reason: Text


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Request: see JoinRequest. windows, priorities: one for each stream, or none. queue_pair: ours, over RDMA.
    link: what carries packets, where there are no queue pairs. codec: of sums of floats. packets_held: by our
    receive buffer, 0: enough (C17). split: long calls (W11). congestion: control of it (G5). via: name of the
    switch that we send to, "" for this one (C18). job_priority and what follows: as of JoinRequest."""

    job: Text
    place: RankAddress
    workers: Small
    elements: Small
    streams: Small
    window_slots: Small
    incarnation: Count
    timeout_ns: Count
    windows: Smalls = []
    priorities: Smalls = []
    queue_pair: QueuePairAddress | None = None
    link: Text = "udp"
    codec: Text = FIXED_POINT.name
    packets_held: Small = 0
    split: bool = False
    via: Text = ""
    congestion: Text = FRIENDLY
    job_priority: Small = BEST_EFFORT
    can_fall_back: bool = msgspec.field(default=False, name="movable")
    wait_for_slots: bool = msgspec.field(default=False, name="patient")
    weight: Small = 1
    slots_least: Small = 0
    sparing: bool = False
    backups: Small = 0
    close_after_ns: Count = 0


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Request: I live; how do things stand?"""

    incarnation: Count


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Request: I go, or stop waiting. calls: how many I have finished, by stream (C7)."""

    incarnation: Count
    calls: Counts
    reason: Text


class StatusQuery(msgspec.Struct, frozen=True, tag="status"):
    """Request of anyone: the switch's state; with the slots of the job of this name, if given. incarnation: of a
    member, which may know its own job (C14)."""

    token: Count
    job: Text | None = None
    incarnation: Count | None = None


class Register(msgspec.Struct, frozen=True, tag="register"):
    """Request of a switch that shall be below this one: see SwitchOffer, whose control address is `host` and
    `control_port`. link: what carries its packets (C18)."""

    name: Text
    above: Text
    host: Text
    port: Small
    control_port: Small
    incarnation: Count
    slots: Small
    elements: Small
    packets_held: Small = 0
    link: Text = "udp"


class HeldJob(msgspec.Struct, frozen=True):
    """A job that a switch was told to take; fault: why it could not, or ""."""

    job_id: Small
    generation: Count
    fault: Text = ""


class SwitchBeat(msgspec.Struct, frozen=True, tag="switch_beat"):
    """Request of a switch: I live, and these are the jobs that I was told to take (C19)."""

    incarnation: Count
    held: Annotated[list[HeldJob], msgspec.Meta(max_length=1 << 16)]


class JobGathering(msgspec.Struct, frozen=True, tag="gathering"):
    """Answer: not all ranks have joined yet, or something else prevents the start."""

    present: list[RankAddress]
    missing: list[Small]
    reason: str


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """Answer: the job, the switch's data-plane address (host "" : the host of the control address), and all members.

    streams: (first_slot, window_slots) of each. priorities: class of each; none: all best effort.
    queue_pairs: over RDMA the switch's, by rank; else none. narrowed: why the windows are smaller than wished, or "".
    routes: whether packets may have other routes than ALL; else calls travel as W15 says. wire_rank: at the switch
    whose address it is, one of several; None: the rank (H1). backups, close_after_ns: as of JobConfig (Q1).
    """

    name: str
    job_id: Small
    generation: Count
    workers: Small
    elements: Small
    streams: list[tuple[int, int]]
    host: str
    port: Small
    lease_ns: Count
    members: list[RankAddress]
    priorities: Smalls = []
    queue_pairs: Annotated[list[QueuePairAddress], msgspec.Meta(max_length=64)] = []
    narrowed: str = ""
    routes: bool = False
    wire_rank: Small | None = None
    backups: Small = 0
    close_after_ns: Count = 0

    def config(self) -> JobConfig:
        """The job as the core knows it."""
        priorities = self.priorities or [BEST_EFFORT] * len(self.streams)
        streams = tuple(StreamConfig(*place, kind) for place, kind in zip(self.streams, priorities, strict=True))
        return JobConfig(
            self.job_id,
            self.generation,
            self.workers,
            self.elements,
            streams,
            backups=self.backups,
            close_after_ns=self.close_after_ns,
        )


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Answer: the job runs; these members have left it. asked_to_leave: why the others should, or "" (C21)."""

    generation: Count
    departed: list[DepartedMember]
    asked_to_leave: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Answer: the join ends here; lacks_room: only for want of slots."""

    reason: str
    lacks_room: bool = False


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Answer: the job has ended; dead: the members that caused it, if any did."""

    generation: Count
    dead: list[RankAddress]
    reason: str


class JobShare(msgspec.Struct, frozen=True):
    """A job's part at a switch. children: where its ranks there send from. parent: data address of the switch above
    (host "": that of the control address) and our rank there; none at its root. ranks: the job's, below each child."""

    name: str
    job_id: Small
    generation: Count
    workers: Small
    elements: Small
    streams: list[tuple[int, int]]
    priorities: Smalls
    children: Annotated[list[tuple[str, Small]], msgspec.Meta(max_length=64)]
    ranks: list[list[Small]]
    parent: tuple[str, Small, Small] | None = None
    congestion: Text = FRIENDLY


class JobShares(msgspec.Struct, frozen=True, tag="shares"):
    """Answer to a switch below: all that it has to hold, and nothing else (C19)."""

    lease_ns: Count
    jobs: list[JobShare]


class Postponed(msgspec.Struct, frozen=True, tag="postponed"):
    """Answer to a Register: not now, for this reason; ask again."""

    reason: str


class Redirected(msgspec.Struct, frozen=True, tag="redirected"):
    """Answer to a Register: this switch, of that name, is itself below another; ask there (C18)."""

    parent: str
    name: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """Answer: the incarnation is not known here (any more)."""


class SlotStatus(msgspec.Struct, frozen=True):
    """What one version of a slot holds: chunk number modulo 2**32 and the ranks seen."""

    slot: int
    version: int
    chunk: int
    ranks: list[int]


class JobStatus(msgspec.Struct, frozen=True):
    """A running job; slots: the versions that have seen any rank, if the query named the job. asked_slots, least_slots:
    how many its windows would be in all, and with how many it does (C23); 0: it runs below another switch, which knows.
    leaving: why it was asked to, or ""."""

    name: str
    job_id: int
    generation: int
    workers: int
    elements: int
    streams: list[tuple[int, int]]
    members: list[RankAddress]
    departed: list[DepartedMember]
    slots: list[SlotStatus]
    priorities: list[int] = []
    asked_slots: int = 0
    least_slots: int = 0
    weight: int = 1
    job_priority: int = BEST_EFFORT
    leaving: str = ""


class StatusAnswer(msgspec.Struct, frozen=True, tag="status_answer"):
    """Answer to a StatusQuery. running, gathering: how many jobs do. details: whether the rest is known to the asker,
    or empty (C14). switches: those below, with their data addresses."""

    token: Count
    slots: int
    free_slots: int
    running: int
    gathering: int
    details: bool
    jobs: list[JobStatus]
    waiting: dict[str, JobGathering]
    control_counters: dict[str, int]
    data_counters: dict[str, int]
    switches: dict[str, str] = {}


Request = Join | Heartbeat | Leave | StatusQuery | Register | SwitchBeat
Answer = (
    JobGathering | Admitted | Alive | Refused | Failed | Unknown | StatusAnswer | JobShares | Postponed | Redirected
)

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> list[bytes]:
    """The frames of a message."""
    return [HEADER, _ENCODER.encode(message)]


def decode_request(frames: Sequence[bytes]) -> Request:
    """The request in these frames. Raises DecodeError with a reason of `REASONS`."""
    return _decode(frames, _REQUESTS)


def decode_answer(frames: Sequence[bytes]) -> Answer:
    """The answer in these frames. Raises DecodeError with a reason of `REASONS`."""
    return _decode(frames, _ANSWERS)


def as_dict(message: Request | Answer) -> dict[str, Any]:
    """The message as plain dicts, lists, numbers and strings."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def rank_address(member: Member) -> RankAddress:
    """A member as messages name it: without its secret, the incarnation."""
    return RankAddress(member.rank, *member.address)


def rank_addresses(members: Sequence[Member]) -> list[RankAddress]:
    """`place` of each."""
    return [rank_address(member) for member in members]


def departed_members(departures: Sequence[Departure]) -> list[DepartedMember]:
    """Departures as messages name them."""
    return [
        DepartedMember(rank_address(departure.member), list(departure.calls), departure.reason)
        for departure in departures
    ]


def queue_pair(end: QueuePairEnd) -> QueuePairAddress:
    """An end of a queue pair as messages name it."""
    return QueuePairAddress(end.queue_pair, end.psn, end.rkey, end.base, end.any_identification)


def queue_pair_end(queue_pair: QueuePairAddress) -> QueuePairEnd:
    """The end that a message names."""
    return QueuePairEnd(
        queue_pair.queue_pair, queue_pair.psn, queue_pair.rkey, queue_pair.base, queue_pair.any_identification
    )


Message = TypeVar("Message")


def _decode(frames: Sequence[bytes], decoder: "msgspec.msgpack.Decoder[Message]") -> Message:
    if len(frames) != 2:
        raise DecodeError("frames", f"{len(frames)}")
    header, body = frames
    if header[:-1] != MAGIC:
        raise DecodeError("magic")
    if header != HEADER:
        raise DecodeError("control_version", f"{header[-1]}, this side speaks {CONTROL_VERSION}")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: a text that is no UTF-8
        raise DecodeError("body", str(error)) from error
