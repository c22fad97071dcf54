"""The v1model pipeline around a program's routines, in Python; what it decides holds for every back end.

Order and passes
1.  One call of `process`: two first-in-first-out queues. Ingress queue: the packet, then what is resubmitted or
    recirculated. Egress queue: copies. The egress queue is emptied before the next pass through ingress; output is in
    the order in which packets leave egress.
2.  A pass through ingress: standard metadata and metadata zero but for what 3 says; parser; parser_error; verify;
    ingress. Then, in this order: clone (its copies join the egress queue), resubmit, multicast, drop, unicast.
3.  Zero but for: a packet from a port: ingress_port, packet_length, ingress_global_timestamp = now_us. Resubmitted
    (type 6) or recirculated (4): packet_length, instance_type, and the field list's fields of metadata. ingress_port
    and the timestamp are 0 then, as in simple_switch. All values are cut to the field's width.
4.  What ingress asks for ends with its pass, but for recirculate and truncate, which hold for the unicast packet (not
    for multicast copies). The last call of clone, resubmit and recirculate in a pass counts, the smallest of
    truncate. Clone in ingress is always I2E, in egress E2E, whatever its type argument; resubmit in egress does
    nothing. session & 0x7FFF names the session; an unknown one clones nothing.
5.  I2E clone: the bytes as this pass got them are parsed again (standard: zero but for ingress_port as ingress left
    it), then standard and metadata zero but for instance_type 1 and the field list's fields as ingress left them. One
    parse for all copies.
6.  A session's copies: the multicast group's, in order, then its own replicas, in order. Each has egress_rid =
    instance.
7.  Multicast (mcast_grp != 0): a copy of all headers (also what invalid ones store), metadata and standard for each
    replica, egress_rid = instance, instance_type 5. A group without replicas: the packet is dropped.
8.  Unicast: egress_spec is the port, instance_type 0 (also after resubmit and recirculate).
9.  Egress: egress_port (of the copy), egress_spec = 0, packet_length = bytes the packet had when it entered its last
    pass through ingress, enq_timestamp = now_us, deq_timedelta = 0, enq_qdepth = deq_qdepth = the depth set for the
    port, egress_global_timestamp = now_us. Other fields as ingress left them.
10. After egress: clone E2E (headers as they are; standard and metadata zero but for instance_type 2 and the field
    list; the payload; it joins the end of the egress queue), then drop if egress_spec == 511, then compute, deparser,
    then recirculate (whole) or truncate and output on the copy's port (which may be any number given to set_group and
    set_mirror).
11. A field list that doesn't exist keeps nothing. clone, clone3, resubmit, recirculate with data or without keep
    nothing.
12. Bounds. On its way from the port to where it is a copy may have gone through PASSES_MAX resubmissions,
    recirculations and E2E clones; and one incoming packet may cause RUNS_MAX passes through ingress and egress in
    all. Each copy that comes next is dropped: too_many_passes += 1, dropped += 1. It may cause CAUSED_BYTES_MAX bytes:
    of what is sent, resubmitted and recirculated, each packet that goes beyond is dropped: names["too_many_bytes"] +=
    1, dropped += 1. Turns of loops are counted over all
    that one incoming packet causes, in all loops together: the turn after LOOP_TURNS_MAX drops the packet that is
    being processed (and any later one that turns): too_many_turns += 1, dropped += 1.
13. A dropped pass (12, or a failed assert or assume) ends at once: no clones, no compute; what it had written to
    registers, counters, digests and log stays. In the parser of an I2E clone it drops the clones alone (once).

Parser
14. States entered are counted per run of the parser, sub-parsers included; accept and reject are none. Entering one
    more than PARSER_STEPS_MAX: error ParserTimeout, reject. An error's number is its place in program.errors, 0 if
    the program doesn't have it.
15. Reject ends the parser where it stands: the packet goes on, parser_error set (0 after an explicit `transition
    reject`); parser_rejected += 1, for each run of the parser. The statement that failed has changed nothing, and
    moved nothing. After a parser that accepts, parser_error is 0, whatever the program wrote there.
16. extract, lookahead and advance work at any bit. Errors in this order: StackOutOfBounds (of Next),
    ParserInvalidArgument (only extract with varbits: fixed and variable bits together not a multiple of 8),
    PacketTooShort, HeaderTooShort. A lookahead sets a header valid, and reads its varbit as empty.
17. The payload starts at the next whole byte after the parser's cursor. Emitted bits are padded with zeros to whole
    bytes once, before the payload. A packet's own length is packet_in.length(), bytes.
18. Next and Last beyond the stack, wherever they stand in an expression that is evaluated: StackOutOfBounds, reject;
    outside parsers they read zero and write nothing. && || and ?: evaluate only what they need.
19. push_front, pop_front: new elements are zero and invalid, nextIndex = min(size, next + count), max(0, next -
    count). A Build of an array has nextIndex 0.

Externs
20. Register, counter and meter beyond their size: read gives 0, color is 0, nothing is written; counters.names
    register_out_of_range, counter_out_of_range, meter_out_of_range += 1. An instance has at most CELLS_MAX cells.
21. Counters count packets and bytes, whatever their type; bytes: as packet_length in 9, in ingress too. Direct
    counters count each hit once, before the action; direct_counter.count does nothing more. A direct meter takes its
    color at a hit, before the action; direct_meter.read gives the color of the last apply of its table for this pass,
    0 if that missed or wasn't. Values wrap at 2**64.
22. verify_checksum: where condition holds and H differs from the checksum: checksum_error = 1 in standard. Not tested
    where the checksum is a field of an invalid header. update_checksum: where condition holds.
23. digest: queued when called, ingress and egress; all scalars in order, fields of invalid headers too. The oldest of
    more than LOG_MAX are dropped; so with the log's lines.
24. log_msg: each {…} stands for the next value, decimal (bool 1 or 0, int<W> with its sign; records flattened as in
    23); more braces than values stay as written, more values than braces are left out; \\{ and \\} are braces. A
    failed assert or assume: line "FILE:LINE:COLUMN: assert failed" (or assume), counters.names assert_failed or
    assume_failed += 1, and the packet is dropped. mark_to_drop: egress_spec = 511, mcast_grp = 0.
25. `dropped` counts each pass that ends in a drop: by 511, by an empty group, by a bound, by assert; `sent` what
    `process` returns.

Tables
26. Keys are compared as patterns of W bits, ranges of int<W> as signed numbers. Only exact, lpm and selector keys:
    the longest prefix wins (the sum of lengths, were there several lpm keys), then the first entry given. Else the
    smallest priority wins, then the first entry given; lpm is then a mask.
27. A member that doesn't exist, an empty group or one that doesn't exist: a miss. A miss runs the default action, hit
    is false. `action` is the index of what ran. Entries and default of the program are there from the start. reset()
    leaves all entries, profiles, groups, sessions, value sets and the rates of meters; it empties registers and
    counters, fills meters' tokens, restarts the random generator, and forgets digests, log and `counters`.
28. Value sets: entries are alternatives; their kinds of match as those of tables, exact unless annotated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import reduce
from typing import Any

from p4vm.engine import CAUSED_BYTES_MAX, DROP_PORT, PACKET_BYTES_MAX, PASSES_MAX, RUNS_MAX, PacketReplica
from p4vm.ir import ir_nodes as ir
from p4vm.python.python_names import fields_of
from p4vm.python.records import is_scalar
from p4vm.python.runtime import Dropped, PacketBits, Reject, SharedState
from p4vm.source import P4Error

NORMAL, INGRESS_CLONE, EGRESS_CLONE, _, RECIRCULATED, REPLICATION, RESUBMITTED = range(7)
"""Values of standard_metadata.instance_type."""
NEEDED = (
    "ingress_port egress_spec egress_port instance_type packet_length enq_timestamp enq_qdepth deq_timedelta deq_qdepth"
    " ingress_global_timestamp egress_global_timestamp mcast_grp egress_rid checksum_error parser_error"
)

Sent = list[tuple[int, bytes]]
Kept = list[tuple["FieldPath", Any]]


class FieldPath:
    """One field of metadata that a field list names."""

    def __init__(self, metadata: ir.Record, path: tuple[str, ...]) -> None:
        kind: ir.Type = metadata
        self.slots: list[str] = []
        for name in path:
            assert isinstance(kind, ir.Record)
            self.slots.append(fields_of(kind)[name])
            kind = kind.field_type(name)
        self.scalar = is_scalar(kind)

    def get(self, metadata: Any) -> Any:
        value = reduce(getattr, self.slots, metadata)
        return value if self.scalar else value.copy()

    def set(self, metadata: Any, value: Any) -> None:
        holder = reduce(getattr, self.slots[:-1], metadata)
        if self.scalar:
            setattr(holder, self.slots[-1], value)
        else:
            getattr(holder, self.slots[-1]).assign(value)


class Burst:
    """A packet on its way to egress. replicas: a copy for each, with a state of its own; None: itself, to `port`."""

    __slots__ = ("headers", "metadata", "packet", "port", "replicas", "standard")

    def __init__(self, packet: PacketBits, headers: Any, metadata: Any, standard: Any) -> None:
        self.packet = packet
        self.headers = headers
        self.metadata = metadata
        self.standard = standard
        self.port = 0
        self.replicas: tuple[PacketReplica, ...] | None = None


class MirrorSession:
    """What a clone session makes. keep: bytes left of each copy, None: all."""

    def __init__(self, replicas: tuple[PacketReplica, ...], group: int, keep: int | None) -> None:
        self.replicas = replicas
        self.group = group
        self.keep = keep


class Routines:
    """A program's six routines and three record classes, from its module."""

    def __init__(self, program: ir.ProgramIr, find: Callable[[Any], Any]) -> None:
        self.parser = find(program.parser)
        self.verify = find(program.verify)
        self.ingress = find(program.ingress)
        self.egress = find(program.egress)
        self.compute = find(program.compute)
        self.deparser = find(program.deparser)
        self.headers = find(program.headers)
        self.metadata = find(program.metadata)
        self.standard = find(program.standard)


class Pipeline:
    """Runs packets through a program's routines. groups, sessions, depths: as the control plane set them."""

    def __init__(self, program: ir.ProgramIr, routines: Routines, shared: SharedState) -> None:
        self.routines = routines
        self.shared = shared
        self.groups: dict[int, tuple[PacketReplica, ...]] = {}
        self.sessions: dict[int, MirrorSession] = {}
        self.depths: dict[int, int] = {}
        self.direct_meters: list[Any] = []
        self.waiting: deque[tuple[bytes, int, Kept, int]] = deque()
        self.bursts: deque[Burst] = deque()
        self.runs = self.caused = 0
        fields = dict(program.standard.fields)
        lacking = [name for name in NEEDED.split() if name not in fields]
        if lacking:
            raise P4Error(
                f"{program.standard.name} lacks {', '.join(lacking)}: include v1model.p4", program.ingress.position
            )
        self.masks = {name: (1 << of.width) - 1 for name, of in fields.items() if isinstance(of, ir.Bits)}
        self.lists = {
            number: [FieldPath(program.metadata, path) for path in paths]
            for number, paths in program.field_lists.items()
        }

    def process(self, port: int, data: bytes, now_us: int) -> Sent:
        """All that this packet causes."""
        shared = self.shared
        shared.counters.received += 1
        shared.turns = self.runs = self.caused = 0
        sent: Sent = []
        if len(data) > PACKET_BYTES_MAX:
            self.oversize()
            return sent
        standard = self.routines.standard()
        standard.ingress_port = port & self.masks["ingress_port"]
        standard.ingress_global_timestamp = now_us & self.masks["ingress_global_timestamp"]
        self.enter(PacketBits(shared, bytes(data), now_us, 0), standard, [])
        while self.bursts or self.waiting:
            if self.bursts:
                self.leave(self.bursts.popleft(), sent)
            else:
                again, kind, kept, passes = self.waiting.popleft()
                standard = self.routines.standard()
                standard.instance_type = kind
                self.enter(PacketBits(shared, again, now_us, passes), standard, kept)
        shared.counters.transmitted += len(sent)
        return sent

    # ---- bounds

    def drop(self, count: int = 1) -> None:
        self.shared.counters.dropped += count

    def drop_bounded(self, count: int = 1) -> None:
        """Packets beyond what one may cause."""
        self.shared.counters.too_many_passes += count
        self.drop(count)

    def oversize(self) -> None:
        self.shared.count("oversize")
        self.drop()

    def fits(self, size: int) -> bool:
        """Whether a packet of that many bytes may still be caused; if not, it is dropped."""
        if self.caused + size > CAUSED_BYTES_MAX:
            self.shared.count("too_many_bytes")
            self.drop()
            return False
        self.caused += size
        return True

    def run_begins(self) -> None:
        """Counts a pass."""
        self.runs += 1
        for meter in self.direct_meters:
            meter.color = 0

    # ---- ingress

    def parse(self, packet: PacketBits, headers: Any, metadata: Any, standard: Any) -> int:
        """Runs the parser; gives the number of its error."""
        error = 0
        try:
            self.routines.parser(packet, headers, metadata, standard)
        except Reject as reject:
            error = reject.code
            self.shared.counters.parser_rejected += 1
        packet.parsed()
        return error

    def enter(self, packet: PacketBits, standard: Any, kept: Kept) -> None:
        """A pass through ingress, and what follows from it."""
        if self.runs >= RUNS_MAX:
            self.drop_bounded()
            return
        self.run_begins()
        routines = self.routines
        standard.packet_length = len(packet.data) & self.masks["packet_length"]
        packet.standard = standard
        headers, metadata = routines.headers(), routines.metadata()
        for path, value in kept:
            path.set(metadata, value)
        try:
            standard.parser_error = self.parse(packet, headers, metadata, standard)
            routines.verify(packet, headers, metadata)
            routines.ingress(packet, headers, metadata, standard)
        except Dropped:
            self.drop()
            return
        if packet.clone is not None:
            self.clone_ingress(packet, metadata, standard.ingress_port)
        if packet.resubmit is not None:
            self.again(packet, packet.data, packet.resubmit[0], metadata, RESUBMITTED)
        elif standard.mcast_grp:
            replicas = self.groups.get(standard.mcast_grp, ())
            if not replicas:
                self.drop()
            standard.instance_type = REPLICATION
            packet.keep = None
            self.replicate(packet, replicas, headers, metadata, standard)
        elif standard.egress_spec == DROP_PORT:
            self.drop()
        else:
            standard.instance_type = NORMAL
            made = Burst(packet.copy(), headers, metadata, standard)
            made.packet.recirculate = packet.recirculate
            made.port = standard.egress_spec
            self.bursts.append(made)

    def again(self, packet: PacketBits, data: bytes, field_list: int | None, metadata: Any, kind: int) -> None:
        """Another pass through ingress."""
        if packet.passes >= PASSES_MAX:
            self.drop_bounded()
        elif self.fits(len(data)):
            self.waiting.append((data, kind, self.keep(field_list, metadata), packet.passes + 1))

    def keep(self, number: int | None, metadata: Any) -> Kept:
        """The values of metadata that a field list names."""
        return [] if number is None else [(path, path.get(metadata)) for path in self.lists.get(number, ())]

    def replicate(
        self, packet: PacketBits, replicas: tuple[PacketReplica, ...], headers: Any, metadata: Any, standard: Any
    ) -> None:
        if replicas:
            made = Burst(packet, headers, metadata, standard)
            made.replicas = replicas
            self.bursts.append(made)

    def clone_ingress(self, packet: PacketBits, metadata: Any, port: int) -> None:
        """The packet as it came, parsed again."""
        assert packet.clone is not None
        number, field_list = packet.clone
        session = self.sessions.get(number)
        if session is None:
            return
        cloned = PacketBits(self.shared, packet.data, packet.now_us, packet.passes)
        headers = self.routines.headers()
        cloned.standard = self.routines.standard()
        cloned.standard.ingress_port = port
        try:
            self.parse(cloned, headers, self.routines.metadata(), cloned.standard)
        except Dropped:
            self.drop()
            return
        self.clone(cloned, session, headers, self.keep(field_list, metadata), INGRESS_CLONE)

    def clone(self, packet: PacketBits, session: MirrorSession, headers: Any, kept: Kept, kind: int) -> None:
        """A session's copies, with the metadata of the field list alone."""
        packet.keep = session.keep
        metadata, standard = self.routines.metadata(), self.routines.standard()
        standard.instance_type = kind
        for path, value in kept:
            path.set(metadata, value)
        self.replicate(packet, self.replicas(session), headers, metadata, standard)

    def replicas(self, session: MirrorSession) -> tuple[PacketReplica, ...]:
        return self.groups.get(session.group, ()) + session.replicas if session.group else session.replicas

    # ---- egress

    def leave(self, burst: Burst, sent: Sent) -> None:
        """Runs egress for all copies of a burst."""
        if burst.replicas is None:
            if self.runs >= RUNS_MAX:
                self.drop_bounded()
            else:
                self.egress(burst.packet, burst.port, burst.headers, burst.metadata, burst.standard, sent)
            return
        for at, replica in enumerate(burst.replicas):
            if self.runs >= RUNS_MAX:
                self.drop_bounded(len(burst.replicas) - at)
                return
            standard = burst.standard.copy()
            standard.egress_rid = replica.instance & self.masks["egress_rid"]
            headers, metadata = burst.headers.copy(), burst.metadata.copy()
            self.egress(burst.packet.copy(), replica.port, headers, metadata, standard, sent)

    def egress(self, packet: PacketBits, port: int, headers: Any, metadata: Any, standard: Any, sent: Sent) -> None:
        """One packet's pass through egress, and what follows from it."""
        self.run_begins()
        masks = self.masks
        packet.standard = standard
        depth = self.depths.get(port, 0)
        standard.egress_port = port & masks["egress_port"]
        standard.egress_spec = 0
        standard.packet_length = len(packet.data) & masks["packet_length"]
        standard.enq_timestamp = packet.now_us & masks["enq_timestamp"]
        standard.deq_timedelta = 0
        standard.enq_qdepth = depth & masks["enq_qdepth"]
        standard.deq_qdepth = depth & masks["deq_qdepth"]
        standard.egress_global_timestamp = packet.now_us & masks["egress_global_timestamp"]
        routines = self.routines
        try:
            routines.egress(packet, headers, metadata, standard)
            if packet.clone is not None:
                self.clone_egress(packet, headers, metadata)
            if standard.egress_spec == DROP_PORT:
                raise Dropped
            routines.compute(packet, headers, metadata)
            routines.deparser(packet, headers)
        except Dropped:
            self.drop()
            return
        data = packet.deparsed()
        if data is None:
            self.oversize()
        elif packet.recirculate is None:
            data = data if packet.keep is None else data[: packet.keep]
            if self.fits(len(data)):
                sent.append((port, data))
        else:
            self.again(packet, data, packet.recirculate[0], metadata, RECIRCULATED)

    def clone_egress(self, packet: PacketBits, headers: Any, metadata: Any) -> None:
        """The packet as egress left it."""
        assert packet.clone is not None
        number, field_list = packet.clone
        packet.clone = None
        session = self.sessions.get(number)
        if session is None:
            return
        if packet.passes >= PASSES_MAX:
            self.drop_bounded(len(self.replicas(session)))
            return
        cloned = PacketBits(self.shared, packet.data, packet.now_us, packet.passes + 1)
        cloned.payload = packet.payload
        # compute and deparser may still change these headers
        self.clone(cloned, session, headers.copy(), self.keep(field_list, metadata), EGRESS_CLONE)
