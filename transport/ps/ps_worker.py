"""PsWorker: a worker's end of a parameter-server job: its calls, slice by slice; a pure `transport.meshes.mesh.Party`.

A call is one message per slice to the slice's server, and one answer per slice that this worker shall have. Slices are
separate messages with the call's priority, answered each by itself and with the same priority, so a more urgent call
overtakes between any two of them. A failure ends all calls: pending and later ones raise the same error.
"""

from collections import Counter
from collections.abc import Sequence

from switchagg import description
from switchagg.calls.call_request import CallRequest
from switchagg.errors import AggregationFailed
from transport.contracts.group_contract import Array
from transport.meshes.mesh import URGENT, Buffer, OutgoingMessage, address_of
from transport.ps import ps_arithmetic
from transport.ps.coded import CodedPushes
from transport.ps.config import PsConfig
from transport.ps.liveness import Liveness
from transport.ps.ps_calls import PsCall, PsCallFinished, Round, name_of, op_of, round_of, slice_head
from transport.ps.ps_messages import (
    AUTOMATIC,
    COMBINING,
    DTYPES,
    EVERYBODY,
    LAG_MAX,
    LITTLE,
    Head,
    PsMessageKind,
    PsOp,
    call_text,
    unpack,
)
from transport.ps.ps_server import WORDS_MAX, member_name
from transport.ps.server_loss import KEYS_MAX, RetainedSlice, ServerLosses, standing_from_bytes
from transport.ps.sharding import ServerSlice, Sharding

PATIENCE_BEATS = 3
"""How much longer than a server a worker waits: the server knows for whom."""


class PsWorker:
    """rank: ours, below config.workers. job: for errors. names: each member's address, for errors.

    `failure`: why every call fails, or None. `notices`: lines for a log. `counters`: where the servers keep weights,
    `delays` is the sum of the delays of our gradients' slices, of which there were `pushed`, and `delay_most` the
    longest (see `messages`). `pushes`: how gradients are coded there; None if they aren't.
    """

    def __init__(self, rank: int, config: PsConfig, *, job: str = "", names: Sequence[str] = ()) -> None:
        assert 0 <= rank < config.workers
        self.rank = rank
        self.config = config
        self.failure: AggregationFailed | None = None
        self.notices: list[str] = []
        self.counters: Counter[str] = Counter()
        self._lost_workers: set[int] = set()
        self._job = job
        self._names = names
        first = config.servers - config.spares
        self._sharding = Sharding(first, config.slice_elements, config.tensor_bytes, spares=config.spares)
        self._servers = range(config.workers, config.members)
        self._losses = ServerLosses(rank, config.workers)
        self._waiting: list[PsCall] = []  # calls that begin once it is agreed where slices are
        self._leavers: set[int] = set()  # workers that have left
        self._unreported: list[int] = []
        self._liveness = Liveness(self._servers, config.heartbeat_s, config.dead_after_s)
        self._arithmetic = ps_arithmetic.fastest()
        self._calls: dict[int, PsCall] = {}
        coded = config.codec and config.keeps_weights
        self.pushes = CodedPushes(config.codec, rank, config.workers) if coded else None
        self._clocks: dict[int, int] = {}
        self._rounds: dict[int, int] = {}  # of sums under a key of the caller's, with backup workers
        self._ahead: dict[Round, dict[int, tuple[int, Head, bytes]]] = {}
        """Results of rounds that we haven't begun, by slice, with the servers they came from."""
        self._unkeyed_calls = 0
        self._finished: list[PsCallFinished] = []
        self._owners: dict[int, PsCall] = {}  # of tickets
        self._next_ticket = 0
        self._under_way = 0
        self._moved_ns = 0
        self._moved = False
        self._leaving = False
        hello = Head(PsMessageKind.HELLO, clock=LITTLE, priority=URGENT)
        self._outgoing: list[OutgoingMessage] = []
        for server in self._servers:
            self._send(server, hello, config.to_bytes())

    def submit(self, request: CallRequest, array: Array, *, now_ns: int) -> PsCall:
        """Begin a call on a 1-D C-contiguous array; it mustn't be touched until its `PsCallFinished`.

        request: its kind is one of KINDS. The result comes in place, or into `target`, of the same type and length
        ("push_pull": gradients in array, weights in target). key: 0 … 2**63 - 1, the same on all ranks, and free again
        when the call has ended; None: the running number of such calls. "init", "push_pull" and "pull" need one: the
        tensor's. root: the source of "broadcast" and "init"; who gets a "reduce". op: "sum", "max", or "avg", which
        divides by the number of workers in the sum. After a failure the call fails at once. Raises ValueError for
        undefined calls."""
        kind, key, root, target = request.kind, request.key, request.root, request.target
        code = op_of(kind, array, request.op, root, target, self.config.workers)
        if self.config.moves:
            self._check_moving(kind, key)
        number = self._number(kind, key)
        shards = kind in ("reduce_scatter", "all_gather")
        if shards:
            slices = self._sharding.cut_shards(number, len(array), self.config.workers, gather=kind == "all_gather")
        else:
            source, sink = (
                root if code in (PsOp.COPY, PsOp.KEEP) else EVERYBODY,
                root if kind == "reduce" else EVERYBODY,
            )
            slices = self._sharding.cut(number, len(array), source, sink)
        head = Head(
            PsMessageKind.PUSH,
            number,
            slices=len(slices),
            elements=len(array),
            clock=self._clock(code, number),
            dtype=DTYPES.index(array.dtype),
            op=code,
            source=slices[0].source,
            sink=slices[0].sink,
            root=root if kind in (*description.ROOTED, "init") else EVERYBODY,
            priority=max(min(request.priority, (1 << 31) - 1), URGENT + 1),
            requested_op=request.requested_op if kind == "allreduce" else 0,
        )
        self._unkeyed_calls += key is None
        call = PsCall(kind, head, slices, array, array if target is None else target)
        if self.failure is not None:
            self._finished.append(PsCallFinished(call, self.failure))
            return call
        if not self._calls:
            self._moved_ns = now_ns
        self._calls[number] = call
        if self._losses.agreed:
            self._start(call)
        else:
            self._waiting.append(call)
        return call

    @property
    def count(self) -> int:
        """Workers that are left, as far as the servers have said."""
        return self.config.workers - len(self._lost_workers)

    @property
    def behind(self) -> int:
        """How many of the next calls without a key the others have finished without us: their results are here.

        They end at once whatever their arrays hold, and nothing but their heads is sent.
        """
        count = 0
        while (results := self._ahead.get((AUTOMATIC + self._unkeyed_calls + count, False, 0))) is not None:
            if len(results) < next(iter(results.values()))[1].slices:
                break
            count += 1
        return count

    def events(self) -> list[PsCallFinished]:
        """Calls that have ended since the last time."""
        finished, self._finished = self._finished, []
        return finished

    def leave(self) -> None:
        """Tell the servers that nothing more will come from here; pending calls fail."""
        if self._leaving:
            return
        self._leaving = True
        if self.failure is None:
            for server in self._live:
                self._send(server, Head(PsMessageKind.LEAVE, priority=(1 << 31) - 1))
            self._end(AggregationFailed(f"{self._who(self.rank)} has left the job", job=self._job))

    def waits_for(self, server: int) -> bool:
        """Whether a call under way needs an answer of this member."""
        return any(
            self._member_of(call.head, call.slices[slice_]) == server
            for call in self._calls.values()
            for slice_ in call.waiting
        )

    @property
    def has_left(self) -> bool:
        """After `leave`: the link has taken all messages."""
        return self._leaving and not self._under_way

    # ---- Party

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        """The place of a slice in its target. The server has all of our values, or it could not answer: so
        nothing reads them from there any more, even if the mesh hasn't said so yet. Where slices of a lost server move,
        none: half a result would have destroyed what is pushed again."""
        if self.config.moves:
            return None
        parsed = unpack(head)
        match = None if parsed is None else self._awaited(sender, parsed)
        if match is None or size_bytes == 0:
            return None
        view = self._view(*match)
        return view if len(view) == size_bytes else None

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        parsed = unpack(head)
        if parsed is not None and parsed.kind == PsMessageKind.HELLO and self.failure is None:
            other = f"{self._who(sender)} takes it for a server: it was told of other numbers of workers and servers"
            self._fail(f"{other} than {self.config.workers} and {self.config.servers}")
        elif self._is_standing(sender, parsed):
            self._take_standing(sender, data, now_ns)
        elif parsed is None or sender not in self._live or self.failure is not None:
            self.counters["bad_heads" if parsed is None else "ignored"] += 1
        else:
            self._liveness.on_message(sender, now_ns)
            self._take(sender, parsed, data, now_ns)

    def on_sent(self, ticket: int) -> None:
        self._under_way -= 1
        call = self._owners.pop(ticket, None)
        if call is not None:
            self._moved = True
            call.tickets.discard(ticket)
            self._end_if_done(call)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """A server's death ends the job, or has its slices move. The servers report lost workers."""
        if member not in self._servers:
            self._leavers.add(member)
            self._go_on_without(now_ns)
        elif member in self._live:
            self._lose(member, reason, now_ns)

    def messages_to_send(self) -> list[OutgoingMessage]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def next_deadline_ns(self) -> int | None:
        return None if self.failure is not None else self._liveness.deadline_ns

    def handle_timer(self, now_ns: int) -> None:
        if self.failure is not None or (dead := self._liveness.turn(now_ns)) is None:
            return
        for server in dead:
            self._lose(server, f"silent for {self.config.dead_after_s:g} s", now_ns)
        limit_s = self.config.call_timeout_s + PATIENCE_BEATS * self.config.heartbeat_s
        if self._moved:
            self._moved, self._moved_ns = False, now_ns
        if self.failure is None and self._calls and now_ns - self._moved_ns > limit_s * 1e9:
            self.give_up(f"nothing has come for {limit_s:g} s")
        if self.failure is None:
            for server in self._live:
                self._send(server, Head(PsMessageKind.BEAT, priority=URGENT))

    def give_up(self, reason: str) -> None:
        """As GroupParty."""
        if call := next(iter(self._calls.values()), None):
            servers = {self._member_of(call.head, call.slices[number]) for number in call.waiting}
            late = ", ".join(map(self._who, sorted(servers if self._losses.agreed else self._losses.missing)))
            self._fail(f"{call_text(call.head)}: {reason}; waiting for {late or 'the link'}")

    # ---- calls

    def _take(self, sender: int, parsed: Head, data: Buffer, now_ns: int) -> None:
        if parsed.kind == PsMessageKind.ANSWER:
            self._moved_ns = now_ns
            self._answered(sender, parsed, data)
        elif parsed.kind == PsMessageKind.RESULT:
            self._moved_ns = now_ns
            self._take_result(sender, parsed, data)
        elif parsed.kind == PsMessageKind.FAIL:
            words = bytes(data[:WORDS_MAX]).decode(errors="replace")
            missing = () if parsed.root == EVERYBODY else (parsed.root,)
            self._fail(f"{self._who(sender)} ends the job: {words}", told_by=sender, missing=missing)
        elif parsed.kind == PsMessageKind.WORKER_LOST:
            if parsed.root < self.config.workers and parsed.root not in self._lost_workers:  # every server reports it
                self._lost_workers.add(parsed.root)
                self.notices.append(bytes(data[:WORDS_MAX]).decode(errors="replace"))
        elif parsed.kind != PsMessageKind.BEAT:
            self.counters["ignored"] += 1
        elif self.config.moves:
            self._losses.forget(parsed.key)

    def _number(self, kind: str, key: int | None) -> int:
        if key is None:
            if kind in ("init", "push_pull", "pull"):
                raise ValueError(f"{kind}: the key of a tensor is needed")
            return AUTOMATIC + self._unkeyed_calls
        if not 0 <= key < AUTOMATIC:
            raise ValueError(f"key {key}: 0 to 2**63 - 1")
        if key in self._calls:
            raise ValueError(f"key {key} is in use by a call that hasn't ended: {call_text(self._calls[key].head)}")
        return key

    def _start(self, call: PsCall) -> None:
        if call.head.op == PsOp.KEEP and self.pushes is not None:
            self.pushes.forget(call.key)
        if call.head.op in (PsOp.KEEP, PsOp.GRADIENT):
            self._clocks[call.key] = 0 if call.head.op == PsOp.KEEP else call.head.clock + 1
        elif (self.config.has_rounds or self.config.moves) and call.head.op in COMBINING and call.key < AUTOMATIC:
            self._rounds[call.key] = call.head.clock + 1
        ahead = self._ahead.pop(round_of(call.head), {}) if call.head.op in COMBINING else {}
        coded = (
            self.pushes.code(call.key, call.array, call.slices)
            if self.pushes and call.head.op == PsOp.GRADIENT
            else None
        )
        for part in call.slices:
            data = b"" if part.number in ahead else self._values(call, part)  # else dropped
            if coded is not None:
                data = coded[part.number]
            if part.sink in (EVERYBODY, self.rank):
                call.waiting.add(part.number)
            self._push(call, part, call.head, data)
        if ahead:
            self.counters["pushes_saved"] += len(ahead)
        for sender, answer, result in ahead.values():
            self._take_result(sender, answer, result)

    def _values(self, call: PsCall, part: ServerSlice) -> Buffer:
        """This worker's part in a slice."""
        if (
            call.head.op in (PsOp.BARRIER, PsOp.PULL)
            or part.source not in (EVERYBODY, self.rank)
            or not len(call.array)
        ):
            return b""
        itemsize = call.array.dtype.itemsize
        return call.array.data.cast("B")[part.low * itemsize : part.high * itemsize]

    def _push(self, call: PsCall, part: ServerSlice, head: Head, data: Buffer) -> None:
        ticket = self._send(self._member_of(head, part), slice_head(head, part), data)
        call.tickets.add(ticket)
        self._owners[ticket] = call

    def _member_of(self, head: Head, part: ServerSlice) -> int:
        """The member that has a slice now."""
        return self.config.workers + self._sharding.server_of(head.key, part, self._losses.moved)

    def _awaited(self, sender: int, head: Head) -> tuple[PsCall, ServerSlice] | None:
        """The slice that an answer is for, if we wait for it."""
        call = self._calls.get(head.key)
        if call is None or head.kind != PsMessageKind.ANSWER or head.number not in call.waiting:
            return None
        part = call.slices[head.number]
        same = head.op == call.head.op and head.slice_elements == part.high - part.low
        return (call, part) if same and sender == self._member_of(head, part) else None

    def _answered(self, sender: int, head: Head, data: Buffer) -> None:
        match = self._awaited(sender, head)
        if match is None:
            self.counters["ignored"] += 1
            return
        if self.config.moves and head.key >= AUTOMATIC:
            lag, count = divmod(head.clock, LAG_MAX + 1)
            head = head._replace(clock=count)
            if lag < LAG_MAX:
                self._losses.forget(head.key - AUTOMATIC - lag)
        self._accept(sender, *match, head, data)

    def _take_result(self, sender: int, head: Head, data: Buffer) -> None:
        """Take the result of a round that ended without us: of the call under way, or of a later one."""
        call = self._calls.get(head.key)
        if call is not None and round_of(call.head) == round_of(head):
            if (match := self._awaited(sender, head._replace(kind=PsMessageKind.ANSWER))) is not None:
                self._accept(sender, *match, head._replace(clock=head.root), data)
        elif not self._has_begun(head):
            self._ahead.setdefault(round_of(head), {})[head.number] = sender, head, bytes(data)

    def _has_begun(self, head: Head) -> bool:
        """Whether we have made the call of a round."""
        if head.key >= AUTOMATIC:
            return head.key < AUTOMATIC + self._unkeyed_calls
        return head.clock < (self._clocks if head.op == PsOp.GRADIENT else self._rounds).get(head.key, 0)

    def _accept(self, sender: int, call: PsCall, part: ServerSlice, head: Head, data: Buffer) -> None:
        """The result of a slice. head.clock: as an answer's."""
        view = self._view(call, part)
        expected = 0 if head.op == PsOp.BARRIER or part.source == self.rank else len(view)
        if len(data) != expected or (head.op == PsOp.AVG and head.clock < 1):
            self._fail(f"{self._who(sender)} answers {call_text(call.head)} with {len(data)} bytes, not {expected}")
            return
        if len(data) and not _lies_in(data, view):
            view[:] = data
        if head.op == PsOp.AVG and expected:
            self._arithmetic.divide(view, head.clock, DTYPES[head.dtype])
        if head.op == PsOp.GRADIENT and self.config.keeps_weights:
            self.counters["pushed"] += 1
            self.counters["delays"] += head.clock
            self.counters["delay_most"] = max(self.counters["delay_most"], head.clock)
        else:
            call.count = head.clock if call.count == 0 else min(call.count, head.clock)
        if self.config.moves:
            call.results[part.number] = data if part.source == EVERYBODY else b""
        call.waiting.discard(part.number)
        self._end_if_done(call)

    def _view(self, call: PsCall, part: ServerSlice) -> memoryview:
        if part.low == part.high:
            return memoryview(b"")
        itemsize = call.target.dtype.itemsize
        return call.target.data.cast("B")[part.low * itemsize : part.high * itemsize]

    def _end_if_done(self, call: PsCall) -> None:
        if not call.waiting and not call.tickets and self._calls.pop(call.key, None) is not None:
            if self.config.moves:
                slices = [RetainedSlice(part, *self._again(call, part, finished=True)) for part in call.slices]
                self._losses.retain(name_of(call.head), slices)
            self._finished.append(PsCallFinished(call, None))

    # ---- lost servers (L11 to L15)

    @property
    def _live(self) -> list[int]:
        """Members that are servers, and not lost as far as we know."""
        return [member for member in self._servers if member - self.config.workers not in self._losses.lost]

    def lost_servers(self) -> list[int]:
        """Members that the mesh must give up, each once: what they still send is of no use."""
        lost, self._unreported = self._unreported, []
        return lost

    def _check_moving(self, kind: str, key: int | None) -> None:
        if kind in ("init", "push_pull", "pull"):
            raise ValueError(f"{kind}: weights at servers don't move to others; leave out on_server_loss")
        if key is not None and kind != "allreduce":
            raise ValueError(f"{kind}: where slices of a lost server move, only allreduce takes a key")
        if key is not None and len(self._rounds) >= KEYS_MAX and key not in self._rounds:
            raise ValueError(f"key {key}: where slices of a lost server move, {KEYS_MAX} keys at most")

    def _clock(self, code: PsOp, number: int) -> int:
        if self.config.moves and number >= AUTOMATIC:
            return number - AUTOMATIC - min(self._lowest, number - AUTOMATIC)
        return (self._clocks if code == PsOp.GRADIENT else self._rounds).get(number, 0)

    @property
    def _lowest(self) -> int:
        """Of calls without a key, the lowest number that we haven't finished."""
        return min((key - AUTOMATIC for key in self._calls if key >= AUTOMATIC), default=self._unkeyed_calls)

    def _lose(self, server: int, reason: str, now_ns: int) -> None:
        words = f"{self._who(server)} is lost: {reason}"
        if not self.config.moves:
            self._fail(words, told_by=server)
            return
        self.notices.append(words)
        self._lose_all(frozenset({server - self.config.workers}), now_ns)

    def _is_standing(self, sender: int, head: Head | None) -> bool:
        words = head is not None and head.kind == PsMessageKind.SERVER_LOST and self.failure is None
        return words and self.config.moves and sender < self.config.workers

    def _take_standing(self, sender: int, data: Buffer, now_ns: int) -> None:
        try:
            standing = standing_from_bytes(data, self.config.servers)
        except ValueError as error:
            self._fail(f"{self._who(sender)} sent {error}")
            return
        self._losses.note(sender, standing)
        for server in sorted(standing.lost - self._losses.lost):
            self.notices.append(f"{self._who(self.config.workers + server)} is lost: {self._who(sender)} says so")
        self._lose_all(standing.lost, now_ns)

    def _lose_all(self, servers: frozenset[int], now_ns: int) -> None:
        """Tell the others where we stand without these servers, too; go on once all have."""
        unfinished = {key: -1 for key in self._calls if key < AUTOMATIC}
        for call in self._waiting:
            unfinished.pop(call.key, None)
        lowest = {key: count + unfinished.get(key, 0) for key, count in self._rounds.items()}
        new = sorted(servers - self._losses.lost)
        if (standing := self._losses.add(servers, {**lowest, AUTOMATIC: self._lowest})) is not None:
            for server in new:
                self._liveness.drop(self.config.workers + server)
                self._unreported.append(self.config.workers + server)
            self.counters["lost_servers"] += len(new)
            head = Head(PsMessageKind.SERVER_LOST, priority=URGENT)
            for other in set(range(self.config.workers)) - {self.rank}:
                self._send(other, head, standing.to_bytes())
        self._go_on_without(now_ns)

    def _go_on_without(self, now_ns: int) -> None:
        """Once all stand alike, push what lost servers had to those that have it now, and begin what waited."""
        losses = self._losses
        if losses.agreed or self.failure is not None:
            return
        if not self._live:
            self._fail("no server is left")
        elif leavers := sorted(losses.missing & self._leavers):
            self._fail(f"{', '.join(map(self._who, leavers))} left, and may have had results that a lost server had")
        if losses.missing or self.failure is not None:
            return
        before = losses.moved
        lowest = losses.move()

        def moves(head: Head, part: ServerSlice) -> bool:
            return self._sharding.server_of(head.key, part, before) in losses.moved

        for part, head, data in losses.retained_from(lowest):
            if moves(head, part):
                self._send(self._member_of(head, part), slice_head(head, part), data)
                self.counters["moved_slices"] += 1
        waiting, self._waiting = self._waiting, []
        for call in self._calls.values():
            for part in call.slices if call not in waiting else ():
                if moves(call.head, part):
                    self._push(call, part, *self._again(call, part))
                    self.counters["moved_slices"] += 1
        self._moved_ns = now_ns
        for call in waiting:
            self._start(call)

    def _again(self, call: PsCall, part: ServerSlice, *, finished: bool = False) -> tuple[Head, Buffer]:
        """What this worker pushes of a slice if another server gets it: the result, if it has it, else what it gave
        (L14). finished: the caller has its array again."""
        held = part.number in call.results
        head = call.head._replace(kind=PsMessageKind.HELD) if held else call.head
        if held and part.source != self.rank:
            return head, call.results[part.number]
        values = self._values(call, part)
        return head, bytes(values) if finished else values

    # ---- failures

    def _fail(self, words: str, told_by: int | None = None, missing: tuple[int, ...] = ()) -> None:
        """Every call fails; the servers that don't know yet are told."""
        if self.failure is not None:
            return
        head = Head(PsMessageKind.FAIL, root=missing[0] if missing else EVERYBODY, priority=URGENT)
        for server in self._live:
            if server != told_by:
                self._send(server, head, words.encode()[:WORDS_MAX])
        self._end(AggregationFailed(f"{self._who(self.rank)}: {words}", job=self._job, missing=missing))

    def _end(self, failure: AggregationFailed) -> None:
        self.failure = failure
        self._finished.extend(PsCallFinished(call, failure) for call in self._calls.values())
        self._calls.clear()
        self._owners.clear()
        self._ahead.clear()
        self._waiting.clear()

    # ---- messages

    def _send(self, server: int, head: Head, data: Buffer = b"") -> int:
        self._next_ticket += 1
        self._under_way += 1
        self._outgoing.append(OutgoingMessage(server, head.pack(), data, self._next_ticket, head.priority))
        return self._next_ticket

    def _who(self, member: int) -> str:
        return member_name(member, self.config, self._names)


def _lies_in(data: Buffer, view: memoryview) -> bool:
    """Whether `data` is that memory already."""
    return isinstance(data, memoryview) and address_of(data) == address_of(view)
