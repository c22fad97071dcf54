"""The reference switch: the rules S1 to S8, G3, H1 to H6 below another switch and Q1 to Q5.

One packet at a time, a pure function of (slot state, packet) -> verdict: no clock, no threads, no randomness. It is
written in the shape of the weakest target, P4: a few registers, each touched at most once per packet, in the fixed
order held, seen, marked, sums and, with a parent, asked. Every other data plane is compared with this one by the same
packets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from switchagg.errors import JobError
from switchagg.job import MAX_CHILDREN, MODULUS, JobConfig
from switchagg.wire import Op, Packet, Route, Values, givers, kind_of


class Verdict(Enum):
    """The switch's answer to a packet."""

    DROP = "drop"
    REPLY = "reply"
    BROADCAST = "broadcast"
    UP = "up"
    RESEND = "resend"


@dataclass(frozen=True, slots=True)
class Parent:
    """Where a switch sends what its children gave together: the parent's port, and its own rank there (H1)."""

    port: int
    rank: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict; what is sent, each packet to some ports, the one with values first; the name of the counter."""

    verdict: Verdict
    sends: tuple[tuple[Packet, tuple[int, ...]], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SlotView:
    """The contents of a slot version, for diagnosis: the chunk number (modulo 2**32) and the ranks seen.

    The rank after the last says, at a switch with a parent, that its result is there (H1), of a partial sum that the
    chunk is finalised (Q2).
    """

    chunk: int
    ranks: tuple[int, ...]


def _is_header_only(packet: Packet) -> bool:
    """Whether it gives nothing though all ranks do (Q1)."""
    return packet.route is Route.ALL and not len(packet.values)


def older(chunk: int, held: int) -> bool:
    """True if chunk precedes held, both modulo 2**32 (S2)."""
    return (chunk - held) % MODULUS >= MODULUS // 2


def check_admission(
    job: JobConfig,
    ports: Sequence[int],
    jobs: Sequence[JobConfig],
    slots: int,
    elements: int,
    parent: Parent | None = None,
) -> None:
    """Raise JobError unless the switch can hold the job beside the others (S7, H1)."""
    most = min(job.workers, MAX_CHILDREN - (parent is not None))
    if not 1 <= len(ports) <= most or len(set(ports)) != len(ports):
        raise JobError(f"job {job.job_id}: 1 to {most} different ports for {job.workers} workers, got {list(ports)}")
    if parent is not None and (parent.port in ports or not 0 <= parent.rank < MAX_CHILDREN):
        raise JobError(f"job {job.job_id}: a parent on a port of its own, rank 0 to {MAX_CHILDREN - 1}; got {parent}")
    if job.partial and (parent is not None or len(ports) != job.workers):
        raise JobError(f"job {job.job_id}: partial sums need one switch that all workers send to, not a tree")
    if job.elements > elements:
        raise JobError(f"job {job.job_id}: {job.elements} elements per packet; this switch holds {elements}")
    first, end = job.slots
    if end > slots:
        raise JobError(f"job {job.job_id}: slots {first} to {end - 1}; this switch has {slots}")
    for other in jobs:
        if other.job_id != job.job_id and first < other.slots[1] and other.slots[0] < end:
            raise JobError(f"job {job.job_id}: slots {first} to {end - 1} overlap those of job {other.job_id}")


def first_held(offset: int, version: int, window_slots: int) -> int:
    """The chunk number in an unused slot version: two turns before its first chunk, so that that is the next (S7)."""
    return (offset + (version - 2) * window_slots) % MODULUS


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A job, the ports of its ranks here, and where the switch sends their sums; None: to the ranks."""

    job: JobConfig
    ports: tuple[int, ...]
    parent: Parent | None

    @property
    def everyone(self) -> int:
        """Bitmap of the ranks."""
        return (1 << len(self.ports)) - 1


class Aggregator:
    """A switch with `slots` slots of two versions, each of up to `elements` int32.

    Ports are small integers that name where packets come from and go to; `ports[rank]` of an admitted job is the only
    port its rank's packets are taken from. The ranks of a switch are its workers, or the switches below it (H1).
    """

    def __init__(self, slots: int, elements: int) -> None:
        self._slots = slots
        self._elements = elements
        self._jobs: dict[int, _Admitted] = {}
        self._held = [[0] * slots, [0] * slots]
        self._seen = [[0] * slots, [0] * slots]
        self._marked = [[False] * slots, [False] * slots]
        self._requesters = [[0] * slots, [0] * slots]
        self._have = [[0] * slots, [0] * slots]
        self._sums = np.zeros((2, slots, elements), np.int32)
        self.counters: dict[str, int] = {}

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        """Take a job, or a new generation of one, with cleared slots (S7). Raises JobError if it doesn't fit."""
        check_admission(job, ports, [a.job for a in self._jobs.values()], self._slots, self._elements, parent)
        self._jobs[job.job_id] = _Admitted(job, tuple(ports), parent)
        for stream in job.streams:
            for offset in range(stream.window_slots):
                for version in (0, 1):
                    self._held[version][stream.first_slot + offset] = first_held(offset, version, stream.window_slots)
                    self._seen[version][stream.first_slot + offset] = 0
                    self._marked[version][stream.first_slot + offset] = False
                    self._have[version][stream.first_slot + offset] = 0

    def evict(self, job_id: int) -> None:
        """Forget a job: its packets are dropped from now on (S8). Unknown jobs are ignored."""
        self._jobs.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version now."""
        bitmap = self._seen[version][slot]
        return SlotView(self._held[version][slot], tuple(r for r in range(bitmap.bit_length()) if bitmap >> r & 1))

    def accept(self, packet: Packet, port: int) -> Decision:
        """Decide on one packet that came in by `port`. Total: defined for every packet (S1 to S6, H2 to H5)."""
        reason = self._unknown_sender(packet, port)
        if reason:
            decision = Decision(Verdict.DROP, (), f"drop_{reason}")
        else:
            partial = self._jobs[packet.job].job.partial
            take = self._take_down if packet.result else self._aggregate_partly if partial else self._aggregate
            decision = take(packet)
        self.counters[decision.reason] = self.counters.get(decision.reason, 0) + 1
        return decision

    def _unknown_sender(self, packet: Packet, port: int) -> str:
        """Why the packet is not an admitted job's, or "" (S1)."""
        admitted = self._jobs.get(packet.job)
        parent = admitted.parent if admitted else None
        if packet.result and (parent is None or parent.port != port):
            return "result"
        if admitted is None:
            return "job"
        job, ports = admitted.job, admitted.ports
        if packet.generation != job.generation:
            return "generation"
        if packet.stream >= len(job.streams):
            return "stream"
        stream = job.streams[packet.stream]
        if not 0 <= packet.slot - stream.first_slot < stream.window_slots:
            return "slot"
        if not packet.result and ((packet.close and not job.partial) or packet.rank >= len(ports)):
            return "rank"
        if not packet.result and ports[packet.rank] != port:
            return "port"
        if packet.route and parent:
            return "route"
        if packet.route and not packet.owner < len(ports) > 1:
            return "owner"
        gives = packet.result or self._givers(packet) >> packet.rank & 1
        if len(packet.values) != (job.elements if gives else 0) and not (job.partial and _is_header_only(packet)):
            return "elements"
        return ""

    def has_partial_sums(self, job_id: int) -> bool:
        """Whether it is an admitted job with such sums."""
        return job_id in self._jobs and self._jobs[job_id].job.partial

    def _givers(self, packet: Packet) -> int:
        """Bitmap of the ranks that give values for the packet's chunk, as its route says."""
        return givers(kind_of(packet.op, 0, packet.route, packet.owner), self._jobs[packet.job].everyone)

    def _out_of_turn(self, packet: Packet) -> str:
        """Why its chunk is neither the one held nor the next of its slot version, or "" (S2)."""
        held = self._held[packet.version][packet.slot]
        if (packet.chunk - held) % MODULUS in (0, 2 * self._window(packet)):
            return ""
        return "older" if older(packet.chunk, held) else "early"

    def _aggregate(self, packet: Packet) -> Decision:
        slot, version, bit = packet.slot, packet.version, 1 << packet.rank
        # held (S2)
        if reason := self._out_of_turn(packet):
            return Decision(Verdict.DROP, (), f"drop_{reason}")
        fresh = packet.chunk != self._held[version][slot]
        self._held[version][slot] = packet.chunk
        # seen (S3)
        before = 0 if fresh else self._seen[version][slot]
        now = before | bit
        self._seen[version][slot] = now
        # marked (G3): from here on the packet stands for all that came for its chunk
        marked = self._marked[version][slot] = packet.marked or (not fresh and self._marked[version][slot])
        packet = packet if packet.marked == marked else replace(packet, marked=marked)
        # sums (S4)
        gave = self._givers(packet)
        if gave & bit:
            values = self._combine(packet, write=not before & gave, read=bool(before & bit))
        else:
            values = self._combine(packet, clear=not before, read=True)
        # verdict (S5, H3, H4); at a switch with a parent `now` has one bit more once its result is there
        again, admitted = bool(before & bit), self._jobs[packet.job]
        if now & admitted.everyone != admitted.everyone:
            return Decision(Verdict.DROP, (), "drop_duplicate" if again else "absorbed")
        if admitted.parent and now == admitted.everyone:
            return self._send_up(packet, admitted.parent, values, again=again)
        return self._answer(packet, values, again=again)

    def _aggregate_partly(self, packet: Packet) -> Decision:
        """S2 to S6 for a job with partial sums (Q1 to Q5)."""
        slot, version, bit = packet.slot, packet.version, 1 << packet.rank
        admitted, held, seen = self._jobs[packet.job], self._held[version][slot], self._seen[version][slot]
        everyone = admitted.everyone
        if reason := self._out_of_turn(packet):
            return Decision(Verdict.DROP, (), f"drop_{reason}")
        fresh = packet.chunk != held
        if _is_header_only(packet):
            return Decision(Verdict.DROP, (), "drop_early") if fresh else self._take_header_only(packet)
        if fresh and seen and (waiting := everyone & ~(self._having(packet) | bit)):
            return self._resend(packet, waiting)
        before = 0 if fresh else seen
        self._held[version][slot] = packet.chunk
        if fresh:
            self._have[version][slot] = 0
        marked = self._marked[version][slot] = packet.marked or (not fresh and self._marked[version][slot])
        packet = packet if packet.marked == marked else replace(packet, marked=marked)
        again, finalised = bool(before & bit), before > everyone
        now = self._seen[version][slot] = before | bit
        if finalised:
            if again or packet.retransmission:
                return self._answer(packet, self._combine(packet, read=True), again=True)
            return Decision(Verdict.DROP, (), "drop_late")
        gave = self._givers(packet)
        if gave & bit:
            values = self._combine(packet, write=not before & gave, read=again)
        else:
            values = self._combine(packet, clear=not before, read=True)
        least = len(admitted.ports) if packet.route else len(admitted.ports) - admitted.job.backups
        if now.bit_count() < least and not (packet.close and not packet.route):
            return Decision(Verdict.DROP, (), "drop_duplicate" if again else "absorbed")
        self._seen[version][slot] = now | everyone + 1
        return self._answer(packet, values, again=False)

    def _having(self, packet: Packet) -> int:
        """Bitmap of the ranks that are known to have the result of the chunk that this one is to follow (Q4)."""
        slot, other, window = packet.slot, 1 - packet.version, self._window(packet)
        following = (self._held[packet.version][slot] + window) % MODULUS
        seen = self._seen[other][slot] if self._held[other][slot] == following else 0
        return seen | self._have[packet.version][slot]

    def _window(self, packet: Packet) -> int:
        return self._jobs[packet.job].job.streams[packet.stream].window_slots

    def _take_header_only(self, packet: Packet) -> Decision:
        """An abstention, or a request to finalise, of the chunk held (Q3, Q5)."""
        slot, version, everyone = packet.slot, packet.version, self._jobs[packet.job].everyone
        seen = self._seen[version][slot]
        if packet.close and 0 < seen <= everyone:
            self._seen[version][slot] = seen | everyone + 1
            return self._answer(
                replace(packet, marked=self._marked[version][slot]), self._combine(packet, read=True), again=False
            )
        if packet.close or seen <= everyone:
            return Decision(Verdict.DROP, (), "drop_late" if packet.close and seen else "drop_early")
        self._seen[version][slot] |= 1 << packet.rank
        self._have[version][slot] |= 1 << packet.rank
        return Decision(Verdict.DROP, (), "abstained")

    def _resend(self, packet: Packet, waiting: int) -> Decision:
        """Give the result of the chunk held to a rank that may lack it, for which one of a later chunk waits (Q4)."""
        slot, version, admitted = packet.slot, packet.version, self._jobs[packet.job]
        if self._seen[version][slot] <= admitted.everyone:
            return Decision(Verdict.DROP, (), "drop_early")
        rank = (waiting & -waiting).bit_length() - 1
        result = replace(
            packet,
            chunk=self._held[version][slot],
            values=self._combine(packet, read=True),
            result=True,
            retransmission=False,
            route=Route.ALL,
            owner=0,
            close=False,
            marked=self._marked[version][slot],
        )
        return Decision(Verdict.RESEND, ((result, (admitted.ports[rank],)),), "resend")

    def _send_up(self, packet: Packet, parent: Parent, values: Values, *, again: bool) -> Decision:
        """The decision on a packet of a chunk that all children gave, and the parent hasn't answered (H3, H4)."""
        requesters, slot, bit = self._requesters[packet.version], packet.slot, 1 << packet.rank
        if again and requesters[slot] and not requesters[slot] & bit:
            requesters[slot] |= bit
            return Decision(Verdict.DROP, (), "drop_asked")
        requesters[slot] = bit if again else 0
        sums = replace(packet, rank=parent.rank, values=values, retransmission=again)
        return Decision(Verdict.UP, ((sums, (parent.port,)),), "up_again" if again else "up")

    def _take_down(self, packet: Packet) -> Decision:
        """Give the parent's result to all children, if they wait for it (H5)."""
        admitted, slot, version = self._jobs[packet.job], packet.slot, packet.version
        if packet.chunk != self._held[version][slot]:
            return Decision(Verdict.DROP, (), "drop_parent_chunk")
        seen = self._seen[version][slot]
        if seen != admitted.everyone:
            late = seen > admitted.everyone
            return Decision(Verdict.DROP, (), "drop_parent_duplicate" if late else "drop_parent_early")
        self._seen[version][slot] = seen | 1 << len(admitted.ports)
        self._marked[version][slot] = packet.marked
        self._sums[version, slot, : admitted.job.elements] = packet.values
        return Decision(Verdict.BROADCAST, ((replace(packet, retransmission=False), admitted.ports),), "broadcast")

    def _answer(self, packet: Packet, values: Values, *, again: bool) -> Decision:
        """The decision on a packet of a complete chunk; again: the rank's values are in already (S5, S6)."""
        ports = self._jobs[packet.job].ports
        ranks = (packet.rank,) if again else range(len(ports))
        header_only_to = 0 if packet.route is Route.ALL else self._givers(packet)
        result = replace(packet, values=values, result=True, retransmission=False, close=False)
        sends = (
            (result, tuple(ports[rank] for rank in ranks if not header_only_to >> rank & 1)),
            (replace(result, values=values[:0]), tuple(ports[rank] for rank in ranks if header_only_to >> rank & 1)),
        )
        return Decision(
            Verdict.REPLY if again else Verdict.BROADCAST,
            tuple((result, to) for result, to in sends if to),
            "reply" if again else "broadcast",
        )

    def _combine(self, packet: Packet, *, clear: bool = False, write: bool = False, read: bool) -> Values:
        """The sums of the packet's chunk after it (S4)."""
        sums = self._sums[packet.version, packet.slot, : self._jobs[packet.job].job.elements]
        if clear:
            sums[:] = 0
        elif write:
            sums[:] = packet.values
        elif not read and packet.op is Op.SUM:
            sums += packet.values  # wraps modulo 2**32
        elif not read:
            np.maximum(sums, packet.values, out=sums)
        return sums.copy()
