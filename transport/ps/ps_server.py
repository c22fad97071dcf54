"""PsServer: one of the servers of a job; sums or keeps weights, slice by slice, each answered as soon as its mode
allows.

The class is a pure `transport.meshes.mesh.Party`. `PsOp` defines the calls, `PsConfig` the modes. A slice's
state is freed when the last worker that may still come has come, so calls without end need no memory; only "backup"
keeps results for late workers, and never many more than `retained_bytes`: above that it waits for all workers again.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from transport.meshes.mesh import URGENT, Buffer, OutgoingMessage
from transport.ps import ps_arithmetic
from transport.ps.aggregate import Aggregate
from transport.ps.coded import PushCodec
from transport.ps.config import BACKUP, SSP, PsConfig, config_from_bytes
from transport.ps.liveness import Liveness
from transport.ps.ps_messages import (
    AUTOMATIC,
    COMBINING,
    DTYPES,
    EVERYBODY,
    LAG_MAX,
    LEAST_URGENT,
    LITTLE,
    SUMMED,
    Head,
    PsMessageKind,
    PsOp,
    call_text,
    unpack,
)
from transport.ps.shared_buffer import Pool, SharedBuffer
from transport.ps.weights import AppliedPush, KeptSlice

WORDS_MAX = 2000

PARTING_NS = 5_000_000_000
"""After a failure: how long a server stays so that workers get the reason and leave."""

_PUSHES = (PsMessageKind.PUSH, PsMessageKind.HELD)

Place = tuple[int, int]
"""Key and number of a slice."""


class PsServer:
    """member: ours, at least config.workers. adopt: take everything but the numbers of members from the first worker's
    hello. names: where each member is, for messages. calculator: for tests.

    `failure`: why the job ended, or None. `done`: nothing will be summed any more. `may_end`: every member knows it.
    `notices`: lines for a log.
    """

    def __init__(
        self,
        member: int,
        config: PsConfig,
        *,
        adopt: bool = False,
        names: Sequence[str] = (),
        calculator: ps_arithmetic.Arithmetic | None = None,
    ) -> None:
        assert config.workers <= member < config.members
        self.member = member
        self.config = config
        self.failure: str | None = None
        self.notices: list[str] = []
        self.counters: Counter[str] = Counter()
        self._adopts = adopt
        self._config_of = -1  # the worker whose configuration was adopted
        self._names = names
        self._arithmetic = calculator or ps_arithmetic.fastest()
        self._liveness = Liveness(range(config.workers), config.heartbeat_s, config.dead_after_s)
        self._pool = Pool()
        self._placed: dict[tuple[int, bytes], tuple[Head, SharedBuffer]] = {}
        self._greeted: set[int] = set()
        self._early: dict[int, list[tuple[bytes, bytes]]] = {}  # pushes that came before the hello, in another class
        self._expected = set(range(config.workers))
        """Workers without which no sum of all is complete."""
        self._coming = set(range(config.workers))
        """Workers that may still send something."""
        self._lowest = [0] * config.workers
        """Of calls without a key, the lowest that each hasn't finished, where slices move."""
        self._open: dict[Place, deque[Aggregate]] = {}
        self._weights: dict[Place, KeptSlice] = {}
        self._holding: set[Place] = set()
        self._complete_slices: dict[int, list[Aggregate]] = {}  # by key: of calls that aren't yet
        self._retained_bytes = 0
        self._waits_for_memory = False
        self._ends_ns: int | None = None
        self._outgoing: list[OutgoingMessage] = []
        self._under_way = 0
        self._lent: dict[int, SharedBuffer] = {}
        self._next_ticket = 0

    @property
    def done(self) -> bool:
        return self.failure is not None or not self._coming

    @property
    def may_end(self) -> bool:
        """All workers have left, or have had time to learn of a failure."""
        return not self._coming and not self._under_way

    @property
    def idle(self) -> bool:
        """No call is under way here, and no answer."""
        return not self._open and not self._under_way

    def has_left(self, worker: int) -> bool:
        """Whether a worker has said that it needs nothing more, or is lost."""
        return worker not in self._coming

    def stop(self, reason: str) -> None:
        """End the job: all workers are notified."""
        if not self.done:
            self._fail(f"{self._who(self.member)} was stopped: {reason}")

    # ---- Party

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        """Memory of the pool for values that were announced with their true size."""
        parsed, name = unpack(head), (sender, bytes(head))
        if parsed is None or parsed.kind not in _PUSHES or size_bytes == 0 or parsed.size_bytes != size_bytes:
            return None
        if sender not in self._greeted or self.failure is not None or name in self._placed:
            return None
        shared = self._take(size_bytes)
        self._placed[name] = parsed, shared
        return shared.view

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        """A worker's message. A message of another protocol is counted and ignored; a contradiction ends its sender, or
        the job."""
        parsed, placed = self._placed.pop((sender, bytes(head)), None) or (unpack(head), None)
        if parsed is None or sender not in self._coming:
            self.counters["bad_heads" if parsed is None else "ignored"] += 1
        elif self.failure is not None:
            if parsed.kind in (PsMessageKind.LEAVE, PsMessageKind.FAIL):
                self._coming.discard(sender)
        else:
            self._liveness.on_message(sender, now_ns)
            if parsed.kind in _PUSHES and sender in self._greeted:
                if fault := self._fault(sender, parsed, len(data)):
                    self._give_up_on(sender, fault)
                elif parsed.op == PsOp.PULL or (parsed.op == PsOp.GRADIENT and self.config.keeps_weights):
                    self._update(sender, parsed, data, now_ns)
                else:
                    values = placed if placed is not None and _lies_in(data, placed) else self._copied(data)
                    placed = None if values is placed else placed
                    self._push(sender, parsed, values, now_ns)
            elif parsed.kind in _PUSHES:
                self._early.setdefault(sender, []).append((bytes(head), bytes(data)))
            elif parsed.kind in (PsMessageKind.HELLO, PsMessageKind.LEAVE, PsMessageKind.FAIL):
                self._administer(sender, parsed, data)
                for early in self._early.pop(sender, ()) if sender in self._greeted else ():
                    self.receive(sender, *early, now_ns)
            elif parsed.kind != PsMessageKind.BEAT:
                self.counters["ignored"] += 1
        if placed is not None:
            self._pool.release(placed)

    def on_sent(self, ticket: int) -> None:
        """An answer's memory is one user less."""
        self._under_way -= 1
        if (shared := self._lent.pop(ticket, None)) is not None:
            self._pool.release(shared)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """A worker that had left is only disconnected; any other is dead. Other servers are watched by the workers."""
        for name in [name for name in self._placed if name[0] == member]:
            self._pool.release(self._placed.pop(name)[1])
        if self.failure is not None:
            self._coming.discard(member)
        elif member in self._coming:
            self._dead(member, reason)

    def messages_to_send(self) -> list[OutgoingMessage]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def next_deadline_ns(self) -> int | None:
        if self.failure is not None and self._coming:
            return 0 if self._ends_ns is None else self._ends_ns
        return None if self.done else self._liveness.deadline_ns

    def handle_timer(self, now_ns: int) -> None:
        """Beat; look for the dead, and for calls that have waited too long for the living."""
        if self.failure is not None:
            if self._ends_ns is None:
                self._ends_ns = now_ns + PARTING_NS
            elif now_ns >= self._ends_ns:
                self._coming.clear()
            return
        if self.done or (dead := self._liveness.turn(now_ns)) is None:
            return
        for worker in dead:
            self._dead(worker, f"silent for {self.config.dead_after_s:g} s")
        if self.failure is None:
            self._end_overdue(now_ns)
        if self.failure is None:
            for worker in sorted(self._coming):
                self._send(worker, Head(PsMessageKind.BEAT, min(self._lowest), priority=URGENT))

    # ---- members

    def _administer(self, sender: int, head: Head, data: Buffer) -> None:
        if head.kind == PsMessageKind.HELLO:
            self._greet(sender, head, data)
        elif head.kind == PsMessageKind.LEAVE:
            self._coming.discard(sender)
            self._liveness.drop(sender)
            if self.config.on_worker_loss == "shrink":
                self._expected.discard(sender)
            self._look_again()
        else:
            words = bytes(data[:WORDS_MAX]).decode(errors="replace")
            if self.config.on_worker_loss == "shrink":
                self._dead(sender, f"it gave up: {words}")
            else:
                self._coming.discard(sender)
                self._fail(f"{self._who(sender)} gave up: {words}", head.root)

    def _greet(self, sender: int, head: Head, data: Buffer) -> None:
        """Compare the worker's configuration with ours, or with that of the worker we have ours from."""
        try:
            config = config_from_bytes(bytes(data))
        except ValueError as error:
            self._give_up_on(sender, f"{self._who(sender)} sent {error}")
            return
        if self._adopts and (config.workers, config.servers) == (self.config.workers, self.config.servers):
            self.config, self._adopts, self._config_of = config, False, sender
            self._liveness.set_times(config.heartbeat_s, config.dead_after_s)
        reference = self._who(self.member if self._config_of < 0 else self._config_of)
        if difference := self.config.difference(config):
            self._fail(f"{reference} has {difference[0]}, {self._who(sender)} has {difference[1]}")
        elif head.clock != LITTLE:
            self._fail(f"{self._who(self.member)} and {self._who(sender)} have different byte orders")
        else:
            self._greeted.add(sender)

    def _dead(self, worker: int, reason: str) -> None:
        self._coming.discard(worker)
        self._liveness.drop(worker)
        self.notices.append(f"{self._who(worker)} is lost: {reason}")
        if self.config.on_worker_loss == "end":
            self._fail(f"{self._who(worker)} is lost: {reason}", worker)
            return
        self._expected.discard(worker)
        words = self.notices[-1].encode()[:WORDS_MAX]
        for other in sorted(self._coming):
            self._send(other, Head(PsMessageKind.WORKER_LOST, root=worker, priority=URGENT), words)
        self._look_again()

    def _give_up_on(self, worker: int, fault: str) -> None:
        """A worker contradicts itself: it gets the reason, and counts as dead."""
        self.counters["faults"] += 1
        if self.config.on_worker_loss == "shrink":
            self._send(worker, Head(PsMessageKind.FAIL, root=worker, priority=URGENT), fault.encode()[:WORDS_MAX])
            self._dead(worker, fault)
        else:
            self._fail(fault, worker)

    def _fail(self, words: str, missing: int = EVERYBODY) -> None:
        """The job is over; all members get the reason. missing: the rank that caused it, if one did."""
        self.failure = words
        self.notices.append(words)
        for worker in sorted(self._coming):
            self._send(worker, Head(PsMessageKind.FAIL, root=missing, priority=URGENT), words.encode()[:WORDS_MAX])
        for aggregates in self._open.values():
            for aggregate in aggregates:
                aggregate.drop(self._pool)
        self._open.clear()
        self._weights.clear()
        self._holding.clear()
        self._complete_slices.clear()

    def _look_again(self) -> None:
        """A worker has left or died: what waited only for it continues; what needs it ends the job."""
        for where in list(self._open):
            for aggregate in list(self._open.get(where, ())):
                if not aggregate.complete:
                    self._go_on(where, aggregate)
                if self.failure is not None:
                    return
                self._free(where, aggregate)
        for where in list(self._holding):
            self._release(where)

    def _end_overdue(self, now_ns: int) -> None:
        limit_ns = round(self.config.call_timeout_s * 1e9)
        for aggregates in self._open.values():
            for aggregate in aggregates:
                if not aggregate.complete and aggregate.waiting and now_ns - aggregate.moved_ns > limit_ns:
                    missing = self._expected - aggregate.arrived
                    self._fail(self._overdue(aggregate.head, missing), min(missing, default=EVERYBODY))
                    return
        for where in self._holding:
            entry = self._weights[where]
            if now_ns - entry.held[0].since_ns > limit_ns:
                slowest = min(entry.clocks[worker] for worker in self._coming)
                late = {worker for worker in self._coming if entry.clocks[worker] == slowest}
                self._fail(self._overdue(entry.held[0].head, late), min(late))
                return

    def _overdue(self, head: Head, missing: set[int]) -> str:
        waiting = ", ".join(map(self._who, sorted(missing)))
        return f"{call_text(head)} has waited {self.config.call_timeout_s:g} s for {waiting}"

    # ---- sums

    def _fault(self, sender: int, head: Head, size_bytes: int) -> str:
        """The fault of a push by itself; "" if there is none."""
        words = ""
        dtype, values = (
            DTYPES[head.dtype],
            head.source in (EVERYBODY, sender) and head.op not in (PsOp.BARRIER, PsOp.PULL),
        )
        entry = self._weights.get((head.key, head.number))
        of_one = head.op in (PsOp.COPY, PsOp.KEEP)
        if head.kind == PsMessageKind.HELD and not self.config.moves:
            words = "a result that no lost server had"
        elif head.number >= head.slices or (head.source >= self.config.workers if of_one else head.source != EVERYBODY):
            words = f"slice {head.number} of {head.slices} from rank {head.source}"
        elif size_bytes != (self._size_bytes(head) if values else 0) and (size_bytes or not self._numbered(head)):
            words = f"{size_bytes} bytes of values"
        elif head.op == PsOp.KEEP and not head.slice_elements:
            words = "no values"
        elif (head.op in COMBINING and dtype not in SUMMED) or (
            head.op in (PsOp.AVG, PsOp.KEEP, PsOp.GRADIENT) and dtype.kind != "f"
        ):
            words = f"{dtype.name} values"
        elif head.op in (PsOp.GRADIENT, PsOp.PULL) and entry is None:
            words = "no weights before, by init"
        elif (
            head.op in (PsOp.GRADIENT, PsOp.PULL)
            and entry is not None
            and (entry.weights.size, entry.weights.dtype) != (head.slice_elements, dtype)
        ):
            words = f"{head.slice_elements} {dtype.name} for {entry.weights.size} {entry.weights.dtype.name} of weights"
        elif head.op == PsOp.GRADIENT and entry is not None and head.clock != entry.clocks[sender]:
            words = f"iteration {head.clock} after {entry.clocks[sender]} of them"
        return f"{self._who(sender)} calls {call_text(head)}, but with {words}" if words else ""

    def _codec_of(self, head: Head) -> PushCodec | None:
        """The codec of a push's values."""
        if not self.config.codec or not self.config.keeps_weights or head.op != PsOp.GRADIENT:
            return None
        codec = _push_codec(self.config.codec)
        return codec if codec.takes(DTYPES[head.dtype], head.elements) else None

    def _size_bytes(self, head: Head) -> int:
        """Size of a push's values."""
        codec = self._codec_of(head)
        return head.size_bytes if codec is None else codec.size_bytes(head.slice_elements)

    def _push(self, sender: int, head: Head, values: SharedBuffer | None, now_ns: int) -> None:
        self.counters["pushes"] += 1
        where = (head.key, head.number)
        if self.config.moves and head.key >= AUTOMATIC and head.kind == PsMessageKind.PUSH:
            self._lowest[sender] = max(self._lowest[sender], head.key - AUTOMATIC - head.clock)
        rounds = self._open.setdefault(where, deque())
        # A worker pushes a key again only after its last result; so its first gap is the round it means. With backup
        # workers it may have had that result before it pushed, and pushes of several rounds may be on their way.
        gaps = (item for item in rounds if sender not in item.arrived and self._may_be_round(item.head, head))
        aggregate = next(gaps, None)
        if values is None and head.size_bytes and self._numbered(head) and not (aggregate and aggregate.complete):
            self._give_up_on(sender, f"{self._who(sender)} calls {call_text(head)}, but with 0 bytes of values")
            return
        if aggregate is None:
            aggregate = Aggregate(sender, head, self.config.order == "rank", now_ns)
            rounds.append(aggregate)
        elif aggregate.head.call != head.call:
            if values is not None:
                self._pool.release(values)
            first = f"{self._who(aggregate.first_rank)} calls {call_text(aggregate.head)}"
            self._fail(f"{first}, {self._who(sender)} calls {call_text(head)}")
            return
        if head.op == PsOp.GRADIENT:
            self._weights[where].clocks[sender] += 1
        if aggregate.complete:  # it is late: dropped, and answered with what the others have
            if values is not None:
                self._pool.release(values)
                self.counters["late_pushes"] += 1
            else:
                self.counters["spared_pushes"] += self._numbered(head)
            aggregate.arrived.add(sender)
            if not self._numbered(head) and head.kind == PsMessageKind.PUSH:  # else it was sent at once
                self._answer(sender, head, aggregate.result, aggregate.contributions)
        else:
            aggregate.join(sender, head, values, now_ns, self._pool)
            self._go_on(where, aggregate)
        if self.failure is None:
            self._free(where, aggregate)

    def _numbered(self, head: Head) -> bool:
        """Whether a call's clock says which round of its key it is."""
        return self.config.has_rounds and head.op in COMBINING

    def _may_be_round(self, first: Head, head: Head) -> bool:
        """Whether a push is for the round that another one opened, as far as their numbers say."""
        if self.config.moves and head.key < AUTOMATIC:
            return first.clock == head.clock
        if not (self._numbered(first) and self._numbered(head)):
            return True
        return (first.op == PsOp.GRADIENT, first.clock) == (head.op == PsOp.GRADIENT, head.clock)

    def _go_on(self, where: Place, aggregate: Aggregate) -> None:
        """Add what can be added; complete what is complete; end the job if it never can be."""
        aggregate.add_what_may_be(self._coming, self._arithmetic, self._pool)
        head, missing = aggregate.head, self._expected - aggregate.arrived
        if head.source != EVERYBODY:
            missing &= {head.source}
            if head.source not in aggregate.arrived and head.source not in self._coming:
                missing = {head.source}
        spare = self.config.backups if self.config.mode == BACKUP and head.op in COMBINING else 0
        if len(missing) <= spare and aggregate.contributions:
            if missing & self._coming and self._retained_bytes >= self.config.retained_bytes:
                self._waits_for_memory = True
            else:
                self._complete(where, aggregate)
        elif len(missing - self._coming) > spare and aggregate.waiting:
            leavers = ", ".join(map(self._who, sorted(missing - self._coming)))
            self._fail(f"{leavers} left the job, but {call_text(head)} waits for it", min(missing - self._coming))

    def _complete(self, where: Place, aggregate: Aggregate) -> None:
        aggregate.finish(self._arithmetic, self._pool)
        self.counters["slices"] += 1
        head = aggregate.head
        if head.op == PsOp.KEEP:
            assert aggregate.result is not None
            self._weights[where] = KeptSlice(self.config, DTYPES[head.dtype], aggregate.result.view)
        elif head.op == PsOp.GRADIENT and aggregate.result is not None:
            total, entry = aggregate.result, self._weights[where]
            self._arithmetic.divide(total.view, aggregate.contributions, DTYPES[head.dtype])
            entry.apply(None, total.view, self._arithmetic)
            self._pool.release(total)
            aggregate.result = entry.snapshot(self._pool)
        if self.config.push_then_pull and head.op in COMBINING:
            self._answer_if_whole(aggregate)
        else:
            self._answer_waiting(aggregate)
        if self._numbered(head):
            notice = head._replace(kind=PsMessageKind.RESULT, root=aggregate.contributions, priority=LEAST_URGENT)
            for worker in sorted(self._coming - aggregate.arrived):
                self._lend(worker, notice, aggregate.result if head.sink in (EVERYBODY, worker) else None)
        self._retained_bytes += aggregate.retained_bytes

    def _answer_waiting(self, aggregate: Aggregate) -> None:
        for part in aggregate.waiting:
            self._answer(part.rank, part.head, aggregate.result, aggregate.contributions)
        aggregate.waiting.clear()

    def _answer_if_whole(self, last: Aggregate) -> None:
        """Answer a call once the last of its slices here, which servers have in turn, is complete."""
        head = last.head
        there = self._complete_slices.setdefault(head.key, [])
        there.append(last)
        if len(there) == len(range(head.number % self.config.servers, head.slices, self.config.servers)):
            del self._complete_slices[head.key]
            for aggregate in there:
                self._answer_waiting(aggregate)
                self._free((head.key, aggregate.head.number), aggregate)

    def _free(self, where: Place, aggregate: Aggregate) -> None:
        """Forget a slice when no other worker will come for it."""
        if not aggregate.complete or aggregate.waiting or not self._coming <= aggregate.arrived:
            return
        rounds = self._open.get(where, deque())
        if aggregate not in rounds:
            return
        rounds.remove(aggregate)
        self._retained_bytes -= aggregate.retained_bytes
        aggregate.drop(self._pool)
        if not rounds:
            del self._open[where]
        if self._waits_for_memory and self._retained_bytes < self.config.retained_bytes:
            self._waits_for_memory = False
            self._look_again()

    # ---- weights

    def _update(self, sender: int, head: Head, gradient: Buffer, now_ns: int) -> None:
        where = (head.key, head.number)
        entry = self._weights[where]
        if head.op == PsOp.PULL:
            self.counters["pulls"] += 1
            self._answer_weights(entry, [AppliedPush(sender, head, 0, now_ns)], sender)
            return
        self.counters["pushes"] += 1
        if (codec := self._codec_of(head)) is not None:
            gradient = codec.decode(gradient, head.slice_elements).data.cast("B")
        push = entry.push(sender, head, gradient, self._arithmetic, now_ns)
        if self.config.mode != SSP:
            self._answer_weights(entry, [push])
            return
        entry.held.append(push)
        self._release(where)
        if entry.held and entry.held[-1].rank == sender:
            self.counters["held"] += 1

    def _release(self, where: Place) -> None:
        """Answer those that are no longer too far ahead."""
        entry = self._weights[where]
        free = [push for push in entry.held if entry.may_go_on(push.rank, self._coming)]
        if free:
            entry.held = [push for push in entry.held if push not in free]
            self._answer_weights(entry, free)
        if entry.held:
            self._holding.add(where)
        else:
            self._holding.discard(where)

    def _answer_weights(self, entry: KeptSlice, to: list[AppliedPush], puller: int | None = None) -> None:
        """All answers share a snapshot, because the weights change while it is on its way."""
        snapshot = entry.snapshot(self._pool, puller)
        for push in to:
            entry.sends(push.rank)
            self._answer(push.rank, push.head, snapshot, push.delay)
        self._pool.release(snapshot)

    # ---- messages

    def _answer(self, worker: int, head: Head, result: SharedBuffer | None, clock: int) -> None:
        """The result to the workers that need it; to the source of a copy only that it arrived. clock: see
        `messages`."""
        if worker not in self._coming or head.sink not in (EVERYBODY, worker):
            return
        self.counters["answers"] += 1
        if self.config.moves and head.key >= AUTOMATIC:
            clock |= min(head.key - AUTOMATIC - min(self._lowest), LAG_MAX) << 16
        answer = head._replace(kind=PsMessageKind.ANSWER, clock=clock)
        self._lend(worker, answer, None if head.source == worker else result)

    def _lend(self, worker: int, head: Head, result: SharedBuffer | None) -> None:
        """Send a result; its memory is in use until it has left."""
        ticket = self._ticket()
        if result is not None:
            result.users += 1
            self._lent[ticket] = result
        self._outgoing.append(
            OutgoingMessage(worker, head.pack(), b"" if result is None else result.view, ticket, head.priority)
        )

    def _send(self, worker: int, head: Head, data: bytes = b"") -> None:
        self._outgoing.append(OutgoingMessage(worker, head.pack(), data, self._ticket(), head.priority))

    def _ticket(self) -> int:
        self._under_way += 1
        self._next_ticket += 1
        return self._next_ticket

    def _take(self, size_bytes: int) -> SharedBuffer:
        shared = self._pool.take(size_bytes)
        self.counters["memory_bytes_most"] = max(self.counters["memory_bytes_most"], self._pool.used_bytes)
        return shared

    def _copied(self, data: Buffer) -> SharedBuffer | None:
        if not len(data):
            return None
        shared = self._take(len(data))
        shared.view[:] = data
        return shared

    def _who(self, member: int) -> str:
        return member_name(member, self.config, self._names)


@lru_cache(maxsize=8)
def _push_codec(text: str) -> PushCodec:
    return PushCodec(text)


def member_name(member: int, config: PsConfig, names: Sequence[str]) -> str:
    """A member as errors name it: "rank 2 (10.0.0.2:7000)", "server 0 (…)"."""
    role = f"rank {member}" if member < config.workers else f"server {member - config.workers}"
    return f"{role} ({names[member]})" if member < len(names) else role


def adopting(workers: int, servers: int) -> PsConfig:
    """The configuration that an adopting server starts with."""
    return replace(PsConfig(workers), servers=servers)


def _lies_in(data: Buffer, shared: SharedBuffer) -> bool:
    return isinstance(data, memoryview) and data.obj is shared.view.obj and len(data) == len(shared.view)
