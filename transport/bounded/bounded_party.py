"""BoundedParty: one member's allreduces of float32 sums, which may lack lost values. This module is pure.

The array is cut into a shard for each owner, one rank each. Stage 0: every rank sends each owner its part of the shard.
The owner adds, in the order of ranks, what is there when the method's rule closes the stage. Stage 1: it sends the sum
to every rank. The part of a sum that a rank lacks is 0: its parameters stay as they are in this step.

A packet for a closed transfer is late: dropped, counted, and its sender told to stop. A rank may be ahead of this
one: packets for calls that it hasn't made yet are kept, up to a bound; beyond it packets count as lost on their way.
"""

import zlib
from collections import Counter, deque
from collections.abc import Mapping

import numpy as np

from switchagg.description import shard_range
from switchagg.errors import AggregationFailed
from switchagg.priority import MOST_URGENT
from transport.bounded.bounded_calls import COUNTED, NUMBERED, BoundedCall, BoundedJob, ControlPacket
from transport.bounded.bounded_packets import (
    ACK,
    AHEAD,
    ASK,
    DATA,
    HEADER_BYTES,
    MARK,
    MISSING,
    PING,
    PROBE,
    PROBES,
    RELIABLE,
    STOP,
    BoundedHeader,
    BoundedPacket,
    PathConfig,
    PathReceiver,
    PathSender,
    packed,
    unpacked,
)
from transport.bounded.rules import CallStage, Rule, Sending
from transport.bounded.transfers import IncomingTransfer, OutgoingTransfer, Values, turned
from transport.meshes.mesh import Frame

NOWHERE = BoundedHeader(0, 0, 0)
"""The header of a packet that belongs to no transfer."""

EARLY_BYTES_MAX = 1 << 28
"""Most bytes kept for calls that this rank hasn't made."""

PATIENCE = 10
"""A call that waits while others move gets so many timeouts: it may queue behind them, or have been forgotten."""

_PASSED_MAX = 4096


class BoundedParty:
    """A member of the job. Call `submit`; give it `receive` and `handle_timer`; take `frames_to_send` and `events`.

    owners: how many ranks have a shard; 0: all. windows: of the path to each member, where they differ from path's.
    terms: what all ranks must agree on, in words. `failure`, once it is there, ends everything: a member that is
    silent, has left, or calls something else.
    """

    def __init__(
        self,
        member: int,
        workers: int,
        rule: Rule,
        *,
        job: BoundedJob,
        path: PathConfig,
        windows: Mapping[int, PathConfig] | None = None,
        owners: int = 0,
        terms: str = "",
    ) -> None:
        self.member, self.workers, self.rule, self.path = member, workers, rule, path
        self.failure: AggregationFailed | None = None
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._job, self._name = zlib.crc32(f"{job.name} {job.start}".encode()), job.name
        self._owners = owners or workers
        self._terms = f"{workers} {self._owners} {path.block_bytes} {terms}"
        self._call_timeout_ns, self._moved_ns = job.call_timeout_ns, 0
        self._early_bytes = 0
        self._exit_reasons: dict[int, str] = {}  # members that have left or died, and how
        self._passed: dict[tuple[int, int], str] = {}  # calls of this rank that aren't such sums
        self._block_values = path.block_bytes // 4
        peers = [rank for rank in self._from_here(range(workers)) if rank != member]
        self._senders = {to: PathSender((windows or {}).get(to, path)) for to in peers}
        self._receivers = {sender: PathReceiver() for sender in peers}
        self._calls: dict[tuple[int, int], BoundedCall] = {}
        self._uses: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        self._outgoing: dict[int, list[OutgoingTransfer]] = {to: [] for to in peers}  # by member, the most urgent first
        self._by_place: dict[tuple[int, int, int, int], OutgoingTransfer] = {}
        self._control: dict[int, deque[ControlPacket]] = {to: deque() for to in peers}
        self._acks: dict[int, None] = {}  # to whom
        self._pings: list[int] = []
        self._stop_notices: dict[tuple[int, int, int, int], None] = {}  # who was told to stop what
        self._finished: list[BoundedCall] = []
        self._sequence = 0
        self._turned: tuple[Values, Values] | None = None  # the last, and rotated
        self._turn = -1
        self._waiting: dict[tuple[int, int, int], int] = {}  # stages that a rule looks at later

    # Calls

    def submit(
        self, array: Values, *, key: int | None, priority: int, now_ns: int, name: object = None, signature: str = ""
    ) -> BoundedCall:
        """Sum a 1-D contiguous float32 array with those of the others, in place, until its event.

        key: what the ranks' calls meet by, free again after its event; None: their running number. priority: lower is
        more urgent, and nearer the model's front. name: of the values, the same in each iteration; default: the key.
        signature: what else the ranks compare. Raises ValueError for a key in use, AggregationFailed after a failure.
        """
        place = NUMBERED if key is None else key
        if (place, self._uses[place] - 1) in self._calls and key is not None:
            raise ValueError(f"key {key} is in use")
        for member, reason in self._exit_reasons.items():
            self._fail(f"rank {self.member} lost rank {member}: {reason}", member)
        if self.failure is not None:
            raise self.failure
        use = self._uses[place]
        self._uses[place] += 1
        call = self._calls.setdefault((place, use), BoundedCall(place, use))
        call.array, call.name, call.priority = array, key if name is None else name, priority
        call.terms = zlib.crc32(f"{self._terms} {len(array)} {signature}".encode()) & 0xFFFF
        call.moved_ns = self._moved_ns = now_ns
        call.index = self._sizes[len(array)]
        self._sizes[len(array)] += 1
        if self.member < self._owners:
            low, high = self._shard(call, self.member)
            self._open(call, 0, dict.fromkeys(self._senders, high - low), now_ns)
        else:
            call.summed = True
        for owner in self._from_here(range(self._owners)):
            if owner != self.member:
                low, high = self._shard(call, owner)
                self._send(call, 0, owner, array[low:high])
        self._open(call, 1, {owner: self._length(call, owner) for owner in range(self._owners)}, now_ns)
        early, call.early = call.early, []
        for sender, packet in early:
            self._early_bytes -= len(packet.payload)
            self._take(call, sender, packet, now_ns)
        self._look(call, now_ns)
        return call

    def pass_over(self, key: int | None, words: str) -> None:
        """This rank's next call with this key is none of ours, but one in these words: what comes for it is wrong."""
        at = place, use = NUMBERED if key is None else key, self._uses[NUMBERED if key is None else key]
        self._uses[place] += 1
        self._passed[place, use] = words
        if len(self._passed) > _PASSED_MAX:
            del self._passed[next(iter(self._passed))]
        if (call := self._calls.pop(at, None)) is not None and call.early:
            self._mismatch(call.early[0][0], words)

    def _mismatch(self, sender: int, words: str) -> None:
        self._fail(f"rank {sender} calls a sum of float32, rank {self.member} calls {words}", sender, self.member)

    def events(self) -> list[BoundedCall]:
        """Calls that have ended since the last time."""
        finished, self._finished = self._finished, []
        return finished

    def _shard(self, call: BoundedCall, owner: int) -> tuple[int, int]:
        assert call.array is not None
        return shard_range(len(call.array), owner, self._owners)

    def _length(self, call: BoundedCall, owner: int) -> int:
        low, high = self._shard(call, owner)
        return high - low

    def _from_here(self, ranks: range) -> list[int]:
        """Ranks, this one's successors first: so that not all begin with the same one."""
        return sorted(ranks, key=lambda rank: (rank - self.member) % self.workers)

    def _open(self, call: BoundedCall, number: int, lengths: Mapping[int, int], now_ns: int) -> None:
        assert call.array is not None
        incoming = {
            sender: IncomingTransfer(sender, length, self.path.block_bytes)
            for sender, length in lengths.items()
            if sender != self.member
        }
        call.incoming[number] = incoming
        call.stages[number] = CallStage(number, len(call.array), call.index, now_ns, list(incoming.values()))

    def _send(self, call: BoundedCall, stage: int, to: int, values: Values) -> None:
        assert call.array is not None
        if to in self._exit_reasons:
            return
        name = None if call.name is None else (call.name, to)
        sending = Sending(name, values, stage, len(call.array), call.index, call.priority, self._block_values)
        plan = self.rule.plan(sending)
        if plan.rotated:
            if self._turned is None or self._turned[0] is not values:  # a sum goes to all others
                self._turned = values, turned(values, back=False)
            values = self._turned[1]
        timeout = self.rule.timeout_us(stage, len(call.array))
        place = BoundedHeader(call.key, call.use, stage, terms=call.terms, timeout_us=timeout)
        self._sequence += 1
        transfer = OutgoingTransfer(to, place, plan, values, self.path.block_bytes, (call.priority, self._sequence))
        queue = self._outgoing[to]
        queue.append(transfer)
        queue.sort(key=lambda queued: queued.urgency)
        self._by_place[to, call.key, call.use, stage] = transfer

    # Receiving

    def receive(self, data: bytes, sender: int, now_ns: int, marked: bool = False) -> None:
        """A frame of a member came. marked: with the network's mark (CE)."""
        packet = unpacked(data)
        if packet is None or packet.job != self._job or sender not in self._receivers or sender in self._exit_reasons:
            self.counters["unknown_senders"] += 1
            return
        if self.failure is not None:
            return
        if packet.kind == DATA and packet.place is not None and self._crowded(packet.place):
            self.counters["crowded"] += 1  # not acknowledged, so its sender sees that it is lost
            return
        if packet.kind == ACK:
            path = self._senders[sender]
            arrived, lost = path.acknowledged(packet.number, packet.payload, now_ns)
            self._arrived(arrived)
            self._lost(sender, lost)
            return
        self.counters["marked"] += marked
        at_once = self._receivers[sender].take(packet.number, marked)
        if at_once or packet.flags & ASK:
            self._acks[sender] = None
        place = packet.place
        assert place is not None
        if packet.kind == STOP:
            if (out := self._by_place.pop((sender, place.key, place.use, place.stage), None)) is not None:
                self.counters["stopped"] += out.wants
                out.closed = True
                self._outgoing[sender] = [queued for queued in self._outgoing[sender] if queued is not out]
        elif packet.kind == PING:
            self._acks[sender] = None
        elif packet.kind == MISSING:
            out = self._by_place.get((sender, place.key, place.use, place.stage))
            if out is not None and len(packet.payload) >= 4:
                out.missing(int.from_bytes(packet.payload[:4], "big"), packet.payload[4:])
        else:
            self._take_data(sender, packet, place, now_ns)

    def _crowded(self, place: BoundedHeader) -> bool:
        """Whether there is no room to keep what comes for a call that this rank hasn't made."""
        return place.use >= self._uses[place.key] and self._early_bytes >= EARLY_BYTES_MAX

    def _take_data(self, sender: int, packet: BoundedPacket, place: BoundedHeader, now_ns: int) -> None:
        at = place.key, place.use
        call = self._calls.get(at)
        if call is None and place.use < self._uses[place.key]:
            if (words := self._passed.get(at)) is not None:
                self._mismatch(sender, words)
            else:
                self._late(sender, place, packet.kind)
            return
        if call is None:
            call = self._calls[at] = BoundedCall(*at)
        if call.array is None:
            self._early_bytes += len(packet.payload)
            call.early.append((sender, packet))
            return
        self._take(call, sender, packet, now_ns)
        self._look(call, now_ns)

    def _take(self, call: BoundedCall, sender: int, packet: BoundedPacket, now_ns: int) -> None:
        """DATA or PROBE of a call that this rank has made."""
        place = packet.place
        assert place is not None
        transfer = call.incoming[place.stage].get(sender) if place.stage in (0, 1) else None
        if transfer is None:
            self._fail(f"rank {sender} calls something else than rank {self.member}", sender)
        elif transfer.closed:
            self._late(sender, place, packet.kind)
        elif place.blocks != transfer.blocks:
            self._fail(f"rank {sender} sums an array of another size than rank {self.member}", sender, self.member)
        elif place.terms != call.terms:
            words = f"rank {sender} has other options, other workers or another sum than rank {self.member}"
            self._fail(words, sender, self.member)
        elif packet.kind == PROBE:
            first = int(np.argmin(transfer.here))
            missing = first.to_bytes(4, "big") + transfer.missing_bits(first, self.path.block_bytes - 4)
            self._control[sender].append(ControlPacket(MISSING, place, missing))
        else:
            reliable, marked = bool(packet.flags & RELIABLE), bool(packet.flags & MARK)
            call.moved_ns = self._moved_ns = now_ns
            if transfer.take(place, reliable, marked, packet.payload, now_ns) and transfer.full:
                transfer.closed = True
                if place.style & PROBES:
                    self._tell(sender, place)

    def _late(self, sender: int, place: BoundedHeader, kind: int) -> None:
        if kind == DATA:
            self.counters["late"] += 1
        at = sender, place.key, place.use, place.stage
        if at not in self._stop_notices or kind == PROBE:
            self._tell(sender, place)

    def _tell(self, sender: int, place: BoundedHeader) -> None:
        """It shall stop."""
        if sender in self._exit_reasons:
            return
        self._stop_notices[sender, place.key, place.use, place.stage] = None
        if len(self._stop_notices) > 4096:
            del self._stop_notices[next(iter(self._stop_notices))]
        self._control[sender].append(ControlPacket(STOP, place._replace(style=0, blocks=0, reliable=0, block=0)))

    # Closing

    def _look(self, call: BoundedCall, now_ns: int) -> None:
        """Let the rule close what it will, and go on."""
        for number in (0, 1):
            stage = call.stages[number]
            if stage is None or (number == 1 and not call.summed):
                continue
            open_before = [transfer for transfer in stage.incoming if not transfer.closed]
            again = None
            if open_before:
                rtts = [self._senders[transfer.sender].rtt_min_ns for transfer in stage.incoming]
                again = self.rule.close(stage, rtts, now_ns)
            for transfer in open_before:
                if transfer.closed:
                    self._tell(transfer.sender, BoundedHeader(call.key, call.use, number, terms=call.terms))
                elif transfer.sender in self._exit_reasons and again is None:  # it waits for what won't come
                    words = f"rank {self.member} lost rank {transfer.sender} in {call.words}"
                    self._fail(f"{words}: {self._exit_reasons[transfer.sender]}", transfer.sender)
            at = call.key, call.use, number
            if all(transfer.closed for transfer in stage.incoming):
                self._waiting.pop(at, None)
                call.stages[number] = None
                self.rule.ended(stage, now_ns)
                self._settle(call, stage, now_ns)
            elif again is not None:
                self._waiting[at] = again
            else:
                self._waiting.pop(at, None)

    def _settle(self, call: BoundedCall, stage: CallStage, now_ns: int) -> None:
        assert call.array is not None
        if stage.number == 0:
            self._add(call)
            call.summed = True
            if (down := call.stages[1]) is not None:
                down.begun_ns = now_ns
            return
        for owner, transfer in call.incoming[1].items():
            low, high = self._shard(call, owner)
            call.array[low:high] = transfer.values()[0]
            self.counters["values_down"] += high - low
            self.counters["lost_down"] += transfer.missing_values
        del self._calls[call.key, call.use]
        self._finished.append(call)

    def _add(self, call: BoundedCall) -> None:
        """This owner's shard: the sum of what came, scaled for what didn't if the rule says so; then to all others."""
        assert call.array is not None
        low, high = self._shard(call, self.member)
        total = np.zeros(high - low, np.float32)
        counts = np.zeros(high - low, np.int32)
        for rank in range(self.workers):
            if rank == self.member:
                total += call.array[low:high]
                counts += 1
                continue
            transfer = call.incoming[0][rank]
            values, here = transfer.values()
            total += values
            counts += here
            self.counters["values_up"] += high - low
            self.counters["lost_up"] += transfer.missing_values
        if self.rule.divide == "arrived" and (lacking := counts < self.workers).any():
            total[lacking] *= self.workers / counts[lacking].astype(np.float32)
        call.array[low:high] = total
        for to in self._from_here(range(self.workers)):
            if to != self.member:
                self._send(call, 1, to, total)

    # Failing

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """A member has left or died: fails calls that need it, and later ones. A rule that waits a limited time does
        so."""
        self._exit_reasons[member] = reason
        self._acks.pop(member, None)
        self._control[member].clear()
        self._pings = [to for to in self._pings if to != member]
        for out in self._outgoing[member]:
            out.closed = True
        self._outgoing[member] = []
        self._by_place = {at: out for at, out in self._by_place.items() if at[0] != member}
        self._senders[member] = PathSender(self.path)
        for call in self._local_calls():
            self._look(call, now_ns)

    def end(self, failure: AggregationFailed) -> None:
        """Stop for a reason found elsewhere."""
        self.failure = self.failure or failure

    def _fail(self, words: str, *missing: int) -> None:
        if self.failure is None:
            self.failure = AggregationFailed(words, job=self._name, missing=tuple(sorted(missing)))

    def _local_calls(self) -> list[BoundedCall]:
        """Calls that this rank has begun, and that haven't ended."""
        return [call for call in self._calls.values() if call.array is not None]

    def _look_for_stuck(self, now_ns: int) -> None:
        """Fail if no call has moved for the timeout, or one for PATIENCE of them."""
        if self._call_timeout_ns is None:
            return
        for call in self._local_calls():
            still_ns = now_ns - call.moved_ns
            if now_ns - self._moved_ns < self._call_timeout_ns and still_ns < PATIENCE * self._call_timeout_ns:
                continue
            words = f"{call.words} has not moved for {still_ns / 1e9:g} s on rank {self.member}, waiting for "
            self._fail(words + ", ".join(f"rank {rank}" for rank in call.missing), *call.missing)
            return

    # Sending

    def frames_to_send(self, limit: int, now_ns: int) -> list[Frame]:
        """Up to limit frames; fewer: nothing more may leave now."""
        frames: list[Frame] = []
        if self.failure is not None:
            return frames
        for sender in list(self._acks)[:limit]:
            del self._acks[sender]
            frames.append(Frame(sender, self._receivers[sender].ack(self._job), 0, False, True))
        while self._pings and len(frames) < limit:
            to = self._pings.pop()
            number, priority = self._senders[to].ping(now_ns)
            frames.append(Frame(to, packed(PING, ASK, self._job, number, NOWHERE), priority, False, False))
        for to, queue in self._control.items():
            while queue and len(frames) < limit:
                frames.append(self._controlled(to, queue.popleft(), now_ns))
        members = list(self._outgoing)
        idle = 0
        while members and idle < len(members) and len(frames) < limit:
            self._turn = (self._turn + 1) % len(members)
            to = members[self._turn]
            if self._senders[to].has_room and (out := self._next(to)) is not None:
                frames.append(self._block(to, out, now_ns))
                idle = 0
            else:
                idle += 1
        return frames

    def _next(self, to: int) -> OutgoingTransfer | None:
        """The transfer to a member whose turn it is."""
        for out in self._outgoing[to]:
            if out.wants and self._may_begin(out):
                return out
        return None

    def _may_begin(self, out: OutgoingTransfer) -> bool:
        """Whether so few of a stage's transfers before it are under way (incast)."""
        most = self.rule.together(out.place.stage)
        if most is None or out.first_sent:
            return True
        at = out.place.key, out.place.use, out.place.stage
        under_way = 0
        for other in self._by_place.values():
            if (other.place.key, other.place.use, other.place.stage) != at or other.sent_once:
                continue
            if not other.first_sent and other.urgency < out.urgency:
                return False
            under_way += other.first_sent > 0
        return under_way < most

    def _block(self, to: int, out: OutgoingTransfer, now_ns: int) -> Frame:
        block = out.next_block()
        payload = out.payload(block)
        reliable = bool(out.plan.reliable[block])
        out.in_flight += 1
        more = out.wants or any(queued.wants for queued in self._outgoing[to])
        path = self._senders[to]
        priority = out.class_of(block)
        number, asks = path.track((out, block), len(payload) + HEADER_BYTES, more, now_ns, priority)
        flags = (RELIABLE if reliable else 0) | (MARK if out.marks(block) else 0) | (ASK if asks else 0)
        frame = packed(DATA, flags, self._job, number, out.place._replace(block=block), payload)
        self._after(to, out)
        return Frame(to, frame, priority, out.may_drop(block), False)

    def _after(self, to: int, out: OutgoingTransfer) -> None:
        """A transfer may have nothing more to send."""
        if out.plan.probes and not out.wants and not out.probing and not out.closed:
            out.probing = True
            self._control[to].append(ControlPacket(PROBE, out.place, priority=out.least_urgent))
        if out.done:
            self._outgoing[to] = [queued for queued in self._outgoing[to] if queued is not out]
            self._by_place.pop((to, out.place.key, out.place.use, out.place.stage), None)

    def _controlled(self, to: int, control: ControlPacket, now_ns: int) -> Frame:
        size = HEADER_BYTES + len(control.payload)
        number, _ = self._senders[to].track(control, size, False, now_ns, control.priority)
        frame = packed(control.kind, ASK, self._job, number, control.place, control.payload)
        return Frame(to, frame, max(MOST_URGENT, control.priority), False, control.priority == AHEAD)

    def _arrived(self, things: list[object]) -> None:
        for thing in things:
            if isinstance(thing, tuple) and not isinstance(thing, ControlPacket):
                out, _ = thing
                out.in_flight -= 1
                self._after(out.to, out)

    def _lost(self, to: int, things: list[object]) -> None:
        for thing in things:
            if isinstance(thing, ControlPacket):
                self._control[to].append(thing)
                self.counters["repeated"] += 1
                continue
            assert isinstance(thing, tuple)
            out, block = thing
            out.in_flight -= 1
            if out.lost(block):
                self.counters["repeated"] += 1
                if out not in self._outgoing[to]:
                    self._outgoing[to].append(out)
            else:
                self._after(to, out)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for something of ours, as far as is known: this rank may leave."""
        return self.failure is not None or not (self._by_place or self._acks or any(self._control.values()))

    @property
    def in_flight(self) -> int:
        """See `PacketParty.in_flight`."""
        return sum(path.in_flight for path in self._senders.values())

    # Time

    def next_deadline_ns(self) -> int | None:
        if self.failure is not None:
            return None
        deadlines = [path.next_deadline_ns() for path in self._senders.values()]
        if self._call_timeout_ns is not None and (calls := self._local_calls()):
            forgotten_ns = min(call.moved_ns for call in calls) + PATIENCE * self._call_timeout_ns
            deadlines.append(min(self._moved_ns + self._call_timeout_ns, forgotten_ns))
        return min((at for at in (*deadlines, *self._waiting.values()) if at is not None), default=None)

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due. Raises nothing: a failure is `failure`."""
        self._look_for_stuck(now_ns)
        for to, path in self._senders.items():
            if path.handle_timer(now_ns):
                self._pings.append(to)
                if path.timeouts > path.config.retry_limit:
                    self._fail(f"rank {to} has acknowledged nothing for {path.timeouts} timeouts in a row", to)
        for at, due_ns in list(self._waiting.items()):
            call = self._calls.get(at[:2])
            if due_ns <= now_ns and call is not None:
                self._look(call, now_ns)
