"""Control messages between worker and switch, and how they are encoded (C11).

A message is two frames: b"SAC" + a version byte, then a msgpack map tagged by "type". `encode`, `decode_request` and
`decode_answer` are total: any frames decode or raise DecodeError.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from switchagg.errors import DecodeError
from switchagg.job import JobConfig
from switchagg.join import JobTerms, Join, QueuePairEnd
from switchagg.membership import Departure, JobAdmitted, Member

MAGIC = b"SAC"
CONTROL_VERSION = 8
HEADER = MAGIC + bytes([CONTROL_VERSION])

REASONS = ("frames", "magic", "control_version", "body")
"""Why frames are no message, in the order of the checks."""

TEXT_MAX = 1000
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""The Controller checks the real range of the number, so that the refusal can name it."""
Counts = Annotated[list[Count], msgspec.Meta(max_length=256)]

HopBytes = Annotated[bytes, msgspec.Meta(max_length=64)]

SLOTS_REPORTED_MAX = 4096
"""Most slot versions in a status answer (about 150 kB); unfinished ones come first."""


class RankAddress(msgspec.Struct, frozen=True):
    """A rank and the UDP address of its data plane."""

    rank: Small
    host: Text
    port: Small

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.host}:{self.port}"


class DepartedMember(msgspec.Struct, frozen=True):
    """A member that left; calls: how many it had finished, by stream (C7)."""

    place: RankAddress
    calls: Counts
    reason: Text


class JoinMessage(msgspec.Struct, frozen=True, tag="join"):
    """Request: a rank joins a job."""

    join: Join


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Request: I live; how do things stand? counters: of my packets, by their fate (C14)."""

    incarnation: Count
    counters: Annotated[dict[Text, Count], msgspec.Meta(max_length=256)] = {}


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Request: I go, or stop waiting. calls: how many I have finished, by stream (C7). wrong_sum: as one was (V7)."""

    incarnation: Count
    calls: Counts
    reason: Text
    wrong_sum: bool = False


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
    tags: bool = False


class HeldJob(msgspec.Struct, frozen=True):
    """A job that a switch was told to take; fault: why it could not, or ""."""

    job_id: Small
    generation: Count
    fault: Text = ""


class SwitchBeat(msgspec.Struct, frozen=True, tag="switch_beat"):
    """Request of a switch: I live, and these are the jobs that I was told to take (C19). draining: why it is to stop,
    or "" (C27)."""

    incarnation: Count
    held: Annotated[list[HeldJob], msgspec.Meta(max_length=1 << 16)]
    draining: Text = ""


class JobGathering(msgspec.Struct, frozen=True, tag="gathering"):
    """Answer: not all ranks have joined yet, or something else prevents the start."""

    present: list[RankAddress]
    missing: list[Small]
    reason: str


class JobFacts(msgspec.Struct, frozen=True):
    """A job as a switch has admitted it."""

    name: str
    job_id: Small
    generation: Count
    workers: Small
    terms: JobTerms
    """As the switch grants them: windows may be smaller than the join's."""
    first_slot: Small
    """The slot ranges of the streams lie side by side from here on."""

    def config(self, **local: int) -> JobConfig:
        """The job as the core knows it. local: further fields of JobConfig. Raises ValueError for numbers that can't
        be."""
        return self.terms.job_config(self.job_id, self.generation, self.workers, self.first_slot, **local)


def facts_of(event: JobAdmitted) -> tuple[str, int, int, int, JobTerms, int]:
    """The fields of JobFacts."""
    job = event.job
    return event.name, job.job_id, job.generation, job.workers, event.terms, job.slots[0]


class Admitted(JobFacts, frozen=True, tag="admitted"):
    """Answer: the job, where its packets go, and all members."""

    host: str
    """Host of the switch's data plane; "": the host of the control address."""
    port: Small
    lease_ns: Count
    members: list[RankAddress]
    queue_pairs: Annotated[list[QueuePairEnd], msgspec.Meta(max_length=64)] = []
    """Over RDMA the switch's ends, by rank."""
    narrowed: str = ""
    """Why the windows are smaller than those of the join, or ""."""
    routes: bool = False
    """Packets may have other routes than ALL; else calls travel as W15 says."""
    wire_rank: Small | None = None
    """The member's rank at the switch whose address this is, one of several; None: its rank (H1)."""
    nonces: list[Count] = []
    """Of all ranks' joins, by rank (C26)."""
    hop_keys: HopBytes = b""
    """Of the member's packets (A2); b"": they have no tags."""

    def fault(self, join: Join) -> str:
        """Why this can't be the answer to a rank's join, or "" (C26): only windows may differ from the join's."""
        if not self.workers == len(self.members) == len(self.nonces) == join.workers:
            return f"answers the join of a job of {join.workers} workers with another number of them"
        for name, value in vars(join.terms).items():
            if name != "window_slots" and getattr(self.terms, name) != value:
                return f"answers the join with another {name}: {getattr(self.terms, name)}, not {value}"
        if self.nonces[join.rank] != join.nonce:
            return (
                f"answers the join of rank {join.rank} with another nonce than the join's: it repeats an earlier "
                "answer, or changes joins; sums of a generation that is not fresh can't be verified"
            )
        return ""


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


class JobShare(JobFacts, frozen=True):
    """A job's part at a switch."""

    children: Annotated[list[tuple[str, Small]], msgspec.Meta(max_length=64)]
    """Where the switch's ranks send from."""
    ranks: list[list[Small]]
    """The job's ranks below each child."""
    parent: tuple[str, Small, Small] | None = None
    """Data address of the switch above (host "": that of the control address) and our rank there; None at the root."""
    hop_secret: HopBytes = b""
    """Of the keys of the switch's children (A2); b"": packets have no tags."""
    parent_keys: HopBytes = b""
    """Of the packets between it and its parent."""


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
    """The contents of a slot version: chunk number modulo 2**32 and the ranks seen."""

    slot: int
    version: int
    chunk: int
    ranks: list[int]


class MemberActivity(msgspec.Struct, frozen=True):
    """How long ago a member was last heard, and the counters of its packets, as far as it tells them."""

    rank: int
    silent_ns: int
    counters: dict[str, int]


class JobStatus(JobFacts, frozen=True):
    """A running job."""

    members: list[RankAddress]
    departed: list[DepartedMember]
    slots: list[SlotStatus]
    """The slot versions that have seen any rank, if the query named the job."""
    requested_slots: int = 0
    """How many slots the job's own windows would be in all; 0: it runs below another switch, which knows."""
    leaving: str = ""
    """Why the job was asked to leave, or ""."""
    packets: str = ""
    """What authenticates its packets; "": it runs below another switch, which knows."""
    activity: list[MemberActivity] = []
    """Of the members, those that were heard; a switch below another hears none."""


class StatusAnswer(msgspec.Struct, frozen=True, tag="status_answer"):
    """Answer to a StatusQuery. running, gathering: how many jobs do. details: whether the rest is known to the asker,
    or empty (C14). switches: those below, with their data addresses. clock_ns: the switch's monotonic clock, by which
    differences of counters are rates. up_ns: since its start. data_plane, link: its own."""

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
    clock_ns: int = 0
    up_ns: int = 0
    data_plane: str = ""
    link: str = ""


Request = JoinMessage | Heartbeat | Leave | StatusQuery | Register | SwitchBeat
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
    """The request in these frames; DecodeError has a reason of `REASONS`."""
    return _decode(frames, _REQUESTS)


def decode_answer(frames: Sequence[bytes]) -> Answer:
    """The answer in these frames; DecodeError has a reason of `REASONS`."""
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
