"""The pipeline around a program's routines, in Python, as its architecture describes it; what it decides holds for
every back end. The numbers below say what v1model's description comes to; psa.py says where PSA differs.

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

from collections import deque
from collections.abc import Callable
from functools import reduce
from typing import Any

from p4vm.architectures.description import Input, Move, PacketPath, Pass, Source, Step
from p4vm.engine import CAUSED_BYTES_MAX, PACKET_BYTES_MAX, PASSES_MAX, RUNS_MAX, PacketReplica
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import width_of
from p4vm.python.python_names import fields_of
from p4vm.python.records import is_scalar
from p4vm.python.runtime import Dropped, PacketBits, Reject, SharedState

Outputs = list[tuple[int, bytes]]
State = dict[str, Any]
"""Name of a record -> the record."""


class FieldPath:
    """A scalar or struct within a record."""

    def __init__(self, record: ir.Record, path: tuple[str, ...]) -> None:
        kind: ir.Type = record
        self.slots: list[str] = []
        for name in path:
            assert isinstance(kind, ir.Record)
            self.slots.append(fields_of(kind)[name])
            kind = kind.field_type(name)
        self.scalar = is_scalar(kind)

    def get(self, record: Any) -> Any:
        value = reduce(getattr, self.slots, record)
        return value if self.scalar else value.copy()

    def set(self, record: Any, value: Any) -> None:
        holder = reduce(getattr, self.slots[:-1], record)
        if self.scalar:
            setattr(holder, self.slots[-1], value)
        else:
            getattr(holder, self.slots[-1]).assign(value)


class StateField:
    """A field of the state, written in the description as "record.field"."""

    def __init__(self, program: ir.ProgramIr, path: str) -> None:
        self.record, _, name = path.partition(".")
        kind = program.field_type(path)
        assert kind is not None, path
        self.slot = fields_of(program.state[self.record])[name]
        self.mask = (1 << width_of(kind)) - 1
        self.boolean = isinstance(kind, ir.Bool)

    def get(self, state: State) -> int:
        return int(getattr(state[self.record], self.slot))

    def set(self, state: State, value: int) -> None:
        setattr(state[self.record], self.slot, bool(value) if self.boolean else value & self.mask)


class Burst:
    """A packet on its way to a pass. state: what of it the step before kept. replicas: a copy for each, with a state of
    its own; None: the packet itself, to `port`."""

    __slots__ = ("packet", "path", "port", "replicas", "state")

    def __init__(self, packet: PacketBits, state: State, path: PacketPath, port: int) -> None:
        self.packet = packet
        self.state = state
        self.path = path
        self.port = port
        self.replicas: tuple[PacketReplica, ...] | None = None


class MirrorSession:
    """What a clone session makes. keep: bytes left of each copy, None: all."""

    def __init__(self, replicas: tuple[PacketReplica, ...], group: int, keep: int | None) -> None:
        self.replicas = replicas
        self.group = group
        self.keep = keep


class PreparedInput:
    """An input of a pass, and the program's fields that it names."""

    def __init__(self, program: ir.ProgramIr, described: Input) -> None:
        self.source = described.source
        self.paths = frozenset(described.paths)
        self.field = StateField(program, described.field)
        self.other = StateField(program, described.other) if described.other else None


class PreparedStep:
    """A step of a pass, its routine, and the program's fields that it names."""

    def __init__(self, program: ir.ProgramIr, find: Callable[[Any], Any], described: Step) -> None:
        self.move = described.move
        self.records = described.records
        self.equals = described.equals
        self.routine = find(program.blocks[described.role]) if described.role else None
        self.field = StateField(program, described.field) if described.field else None
        self.session = StateField(program, described.session) if described.session else None
        self.parsed_with = StateField(program, described.parsed_with) if described.parsed_with else None
        self.parsed_records = program.architecture.step_of(described.role).records if described.role else ()

    def holds(self, state: State, requested: bool) -> bool:
        """Whether the packet's fate is this one. requested: an extern has requested it."""
        if self.field is None:
            return requested
        value = self.field.get(state)
        return bool(value) if self.equals is None else value == self.equals


class PreparedPass:
    """A pass of the architecture, ready to run."""

    def __init__(self, program: ir.ProgramIr, find: Callable[[Any], Any], described: Pass) -> None:
        self.inputs = [PreparedInput(program, entry) for entry in described.inputs]
        self.steps = [PreparedStep(program, find, step) for step in described.steps]


class Pipeline:
    """Runs packets through a program's routines. groups, sessions, depths: as the control plane set them. find: the
    program's routine or record -> what the module calls it.
    """

    def __init__(self, program: ir.ProgramIr, find: Callable[[Any], Any], shared: SharedState) -> None:
        self.shared = shared
        self.groups: dict[int, tuple[PacketReplica, ...]] = {}
        self.sessions: dict[int, MirrorSession] = {}
        self.depths: dict[int, int] = {}
        self.direct_meters: list[Any] = []
        self.waiting: deque[Burst] = deque()
        self.bursts: deque[Burst] = deque()
        self.runs = self.caused = 0
        self.ingress, self.egress = (
            PreparedPass(program, find, described) for described in program.architecture.passes
        )
        self.numbers = program.architecture.paths
        self.records = {name: find(record) for name, record in program.state.items()}
        self.listed = program.architecture.listed
        self.lists = {
            number: [FieldPath(program.state[self.listed], path) for path in paths]
            for number, paths in program.field_lists.items()
        }
        self.outputs: Outputs = []

    def process(self, port: int, data: bytes, now_us: int) -> Outputs:
        """All that this packet causes."""
        shared = self.shared
        shared.counters.received += 1
        shared.turns = self.runs = self.caused = 0
        outputs: Outputs = []
        self.outputs = outputs
        if len(data) > PACKET_BYTES_MAX:
            self.oversize()
            return outputs
        packet = PacketBits(shared, bytes(data), now_us, 0)
        self.waiting.append(Burst(packet, self.zeros(), PacketPath.NORMAL, port))
        while self.bursts or self.waiting:
            if self.bursts:
                self.leave(self.bursts.popleft())
            else:
                burst = self.waiting.popleft()
                self.run(self.ingress, burst.packet, burst.state, burst.path, burst.port)
        shared.counters.transmitted += len(outputs)
        return outputs

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

    # ---- the state

    def zeros(self) -> State:
        return {name: record() for name, record in self.records.items()}

    def rest_of(self, state: State, names: tuple[str, ...], field_list: int | None, *, copied: bool) -> State:
        """A state with these records of another, and the fields of a field list; all else is zero."""
        remainder = self.zeros()
        for name in names:
            remainder[name] = state[name].copy() if copied else state[name]
        if field_list is not None and self.listed not in names:
            for path in self.lists.get(field_list, ()):
                path.set(remainder[self.listed], path.get(state[self.listed]))
        return remainder

    def fill(self, inputs: list[PreparedInput], packet: PacketBits, path: PacketPath, port: int, instance: int) -> None:
        """Writes what a pass begins with into its packet's state."""
        state = packet.state
        for entry in inputs:
            if path not in entry.paths:
                continue
            match entry.source:
                case Source.PORT:
                    value = port
                case Source.LENGTH:
                    value = len(packet.data)
                case Source.TIME_US:
                    value = packet.now_us
                case Source.PATH:
                    value = self.numbers[path]
                case Source.INSTANCE:
                    value = instance
                case Source.DEPTH:
                    value = self.depths.get(port, 0)
                case Source.FIELD:
                    assert entry.other is not None
                    value = entry.other.get(state)
                case Source.ZERO | Source.TRUE:
                    value = int(entry.source == Source.TRUE)
            entry.field.set(state, value)

    # ---- passes

    def leave(self, burst: Burst) -> None:
        """Runs egress for all copies of a burst."""
        if burst.replicas is None:
            self.run(self.egress, burst.packet, burst.state, burst.path, burst.port)
            return
        for at, replica in enumerate(burst.replicas):
            if self.runs >= RUNS_MAX:
                self.drop_bounded(len(burst.replicas) - at)
                return
            state = {name: record.copy() for name, record in burst.state.items()}
            self.run(self.egress, burst.packet.copy(), state, burst.path, replica.port, replica.instance)

    def run(
        self, described: PreparedPass, packet: PacketBits, state: State, path: PacketPath, port: int, instance: int = 0
    ) -> None:
        """One packet's pass, and what follows from it."""
        if self.runs >= RUNS_MAX:
            self.drop_bounded()
            return
        self.runs += 1
        for meter in self.direct_meters:
            meter.color = 0
        packet.state = state
        self.fill(described.inputs, packet, path, port, instance)
        try:
            for step in described.steps:
                if self.step(step, packet, state, port):
                    return
        except Dropped:
            self.drop()

    def step(self, step: PreparedStep, packet: PacketBits, state: State, port: int) -> bool:
        """Does one step; gives whether the packet has gone. Raises Dropped."""
        match step.move:
            case Move.PARSE | Move.RUN | Move.DEPARSE:
                return self.block(step, packet, state)
            case Move.CLONE:
                self.clone(step, packet, state)
            case Move.DROP:
                if step.holds(state, False):
                    raise Dropped
            case Move.RESUBMIT:
                return self.again(step, packet, state, port, PacketPath.RESUBMIT, packet.resubmit, packet.data)
            case Move.MULTICAST:
                return self.multicast(step, packet, state)
            case Move.UNICAST:
                assert step.field is not None
                onward = packet.onward()
                onward.recirculate = packet.recirculate
                remainder = self.rest_of(state, step.records, None, copied=False)
                self.bursts.append(Burst(onward, remainder, PacketPath.UNICAST, step.field.get(state)))
                return True
            case Move.RECIRCULATE:
                request, data = packet.recirculate, packet.deparsed
                return self.again(step, packet, state, port, PacketPath.RECIRCULATE, request, data)
            case Move.SEND:
                assert packet.deparsed is not None
                data = packet.deparsed if packet.keep is None else packet.deparsed[: packet.keep]
                if self.fits(len(data)):
                    self.outputs.append((port, data))
                return True
        return False

    def block(self, step: PreparedStep, packet: PacketBits, state: State) -> bool:
        """Runs a block of the program; gives whether the packet has gone. Raises Dropped."""
        assert step.routine is not None
        if step.move == Move.PARSE:
            error = self.parse(step, packet, state)
            if step.field is not None:
                step.field.set(state, error)
            return False
        step.routine(packet, *[state[name] for name in step.records])
        if step.move == Move.DEPARSE and not packet.deparse():
            self.oversize()
            return True
        return False

    def parse(self, step: PreparedStep, packet: PacketBits, state: State) -> int:
        """Runs a parser; gives the number of its error."""
        assert step.routine is not None
        error = 0
        try:
            step.routine(packet, *[state[name] for name in step.parsed_records])
        except Reject as reject:
            error = reject.code
            self.shared.counters.parser_rejected += 1
        packet.parsed()
        return error

    def again(
        self,
        step: PreparedStep,
        packet: PacketBits,
        state: State,
        port: int,
        path: PacketPath,
        request: tuple[int | None] | None,
        data: bytes | None,
    ) -> bool:
        """Another pass through ingress, if the packet is to make one."""
        if not step.holds(state, request is not None):
            return False
        assert data is not None
        if packet.passes >= PASSES_MAX:
            self.drop_bounded()
        elif self.fits(len(data)):
            remainder = self.rest_of(state, step.records, None if request is None else request[0], copied=False)
            entering = PacketBits(self.shared, data, packet.now_us, packet.passes + 1)
            self.waiting.append(Burst(entering, remainder, path, port))
        return True

    # ---- copies

    def replicate(self, burst: Burst, replicas: tuple[PacketReplica, ...]) -> None:
        if replicas:
            burst.replicas = replicas
            self.bursts.append(burst)

    def multicast(self, step: PreparedStep, packet: PacketBits, state: State) -> bool:
        assert step.field is not None
        group = step.field.get(state)
        if not group:
            return False
        replicas = self.groups.get(group, ())
        if not replicas:
            self.drop()
        onward = packet.onward()
        onward.keep = None
        remainder = self.rest_of(state, step.records, None, copied=False)
        self.replicate(Burst(onward, remainder, PacketPath.MULTICAST, 0), replicas)
        return True

    def clone(self, step: PreparedStep, packet: PacketBits, state: State) -> None:
        """Copies for a clone session, if the packet asks for them."""
        if not step.holds(state, packet.clone is not None):
            return
        number, field_list = (step.session.get(state), None) if step.session is not None else packet.clone or (0, None)
        packet.clone = None
        session = self.sessions.get(number)
        if session is None:
            return
        from_ingress = step in self.ingress.steps
        replicas = self.groups.get(session.group, ()) + session.replicas if session.group else session.replicas
        if not from_ingress and packet.passes >= PASSES_MAX:
            self.drop_bounded(len(replicas))
            return
        path = PacketPath.CLONE_I2E if from_ingress else PacketPath.CLONE_E2E
        remainder = self.rest_of(state, step.records, field_list, copied=True)
        if from_ingress:
            cloned = PacketBits(self.shared, packet.data, packet.now_us, packet.passes)
            if step.routine is not None and not self.parse_again(step, cloned, remainder, state):
                return
        else:
            cloned = packet.onward()
            cloned.passes += 1
        cloned.keep = session.keep
        self.replicate(Burst(cloned, remainder, path, 0), replicas)

    def parse_again(self, step: PreparedStep, cloned: PacketBits, remainder: State, state: State) -> bool:
        """Puts the headers of the bytes as they entered into `remainder`; gives whether the parser came through."""
        cloned.state = parsed = self.zeros()
        if step.parsed_with is not None:
            step.parsed_with.set(parsed, step.parsed_with.get(state))
        try:
            self.parse(step, cloned, parsed)
        except Dropped:
            self.drop()
            return False
        remainder |= {name: parsed[name] for name in step.records}
        return True
