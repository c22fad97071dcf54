"""CollectiveParty: all collective calls of one member, matched with the others' by key. This module is pure.

Every message's head carries the description of its call, so ranks that make different calls under one key
notice with the first message. Any fault fails all calls: the member that finds it sends it to all others, pending calls
fail with the same error, and later calls are refused; after a fault no member can know what the others still do.

Calls that this rank hasn't made yet may already be in progress on others: their messages are kept, up to a bound in
bytes.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from switchagg.description import COMPARED_KINDS, ROOTED, CallSignature, Kind, details_of, requested_op_text
from switchagg.errors import AggregationFailed
from switchagg.priority import BEST_EFFORT, flow_of
from transport.collectives.collective import Task
from transport.collectives.collective_table import COLLECTIVES, NAMES, program
from transport.collectives.execution import OPS, NativeExecution, Op, Runner
from transport.collectives.programs import SEGMENT_BYTES
from transport.meshes.mesh import URGENT, Buffer, OutgoingMessage

EARLY_BYTES_MAX = 1 << 30
"""Most bytes held for calls that this rank has not made. A rank that is further ahead of another fails the job."""

CALL_TIMEOUT_NS = 300_000_000_000
PATIENCE = 10
"""A call that waits while others move gets so many timeouts: it may queue behind them, or have been forgotten."""

LOOKS = 8
"""Looks per timeout at which calls have sent something: by so much of it a failure may come late."""

_MESSAGE_COST_BYTES = 256  # of a held message beside its data, for the bound
_MAGIC = 0x5AC2
_FAILURE = 0xFF
_REASON_BYTES_MAX = 2000

# magic, kind, algorithm, op and requested op * 2, sizes, dtype, segment size, elements, root, option, numbered, key
_CALL = struct.Struct(">HBBBB4sIQHHxBQ")
_PLACE = struct.Struct(">iII")  # priority, step, segment
_PRIORITY = slice(36, 40)
_KEY = slice(26, 36)  # where the key lies in a head
_NUMBERED = 27
HEAD_BYTES = _CALL.size + _PLACE.size
assert HEAD_BYTES == 48
_EXECUTION = 0xFFFFFFFF
"""In the place of a node in the ticket of an execution that a runner has."""

_OP_NAMES = tuple(OPS)


class CollectiveCall:
    """A collective call of this member, which `submit` returns and the event that ends the call names."""

    __slots__ = (
        "algorithm",
        "array",
        "execution",
        "head",
        "key",
        "kind",
        "moved_ns",
        "moves",
        "number",
        "op",
        "option",
    )

    def __init__(self, kind: Kind, algorithm: str, op: Op, array: NDArray[Any], option: int, number: int) -> None:
        self.kind: Kind = kind
        self.algorithm = algorithm
        self.op: Op = op
        self.array = array
        self.option = option
        self.number = number
        self.execution: NativeExecution
        self.head = b""  # the head of all its messages, without the place
        self.key = b""
        self.moved_ns = 0
        self.moves = 0  # of its messages, as far as moved_ns knows of them


class CollectiveFinished(NamedTuple):
    """A call ended: its array holds the result, or, after a failure, nothing that means anything."""

    call: CollectiveCall
    failure: AggregationFailed | None


class CollectiveParty:
    """A Party. Call `submit`, and take `events` after every input.

    member: 0 … workers-1. job: its name, for errors. option: for the collectives that take one (`Option`).
    segment_bytes: most data of a message; equal on all members, as option is. classes: of the mesh. Messages of one key
    in different classes belong to different calls: those of the next may overtake. runner: set before the first call,
    it carries the messages of all executions.
    """

    def __init__(
        self,
        member: int,
        workers: int,
        *,
        job: str = "collective",
        call_timeout_ns: int = CALL_TIMEOUT_NS,
        option: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        early_bytes_max: int = EARLY_BYTES_MAX,
        classes: Sequence[int] = (),
    ) -> None:
        if not 0 <= member < workers:
            raise ValueError(f"member {member} of {workers} workers")
        self.failure: AggregationFailed | None = None
        self.member = member
        self.workers = workers
        self._job = job
        self.call_timeout_ns = call_timeout_ns
        self._look_ns = max(1, call_timeout_ns // LOOKS)
        self._option = option
        self._segment_bytes = segment_bytes
        self._early_bytes_max = early_bytes_max
        self._classes = classes
        self.runner: Runner | None = None
        self._early_bytes = 0
        self._early: dict[bytes, deque[tuple[int, bytes, Buffer]]] = {}
        self._calls: dict[bytes, CollectiveCall] = {}  # by key
        self._by_number: dict[int, CollectiveCall] = {}
        self._unkeyed_calls = 0  # calls submitted without a key
        self._numbers = 0
        self._lost: dict[int, str] = {}
        self._ready: list[CollectiveCall] = []  # whose messages may be sent
        self._notices: list[OutgoingMessage] = []
        self._finished: list[CollectiveFinished] = []
        self._moved_ns = 0
        self._has_moved = False  # since the timer was last checked
        self._deadline_ns: int | None = None

    def submit(self, request: CallRequest, algorithm: str, array: NDArray[Any], *, now_ns: int) -> CollectiveCall:
        """Begin a call on a 1-D C-contiguous array, in place; it must not be touched until its event.

        request: its key is 0 … 2**63 - 1, matched across ranks, in any order, and free again once the call has ended;
        None: the running number of such calls. Its priority is that of the messages. After a failure the call fails at
        once. Raises ValueError for what isn't defined, or a key that is in use."""
        key, priority = request.key, request.priority
        if key is None:
            numbered, value = 1, self._unkeyed_calls
        else:
            numbered, value = 0, key
            if not 0 <= key < 1 << 63:
                raise ValueError(f"key {key}: 0 to 2**63 - 1")
        if not URGENT < priority < 1 << 31:
            raise ValueError(f"priority {priority}: more than -2**31, less than 2**31")
        call = self._new_call(request, algorithm, array)
        self._describe(call, request.signature_of(array), numbered, value, priority)
        if call.key in self._calls:
            raise ValueError(f"key {key} is in use by {self._text(self._calls[call.key].head)}")
        self._unkeyed_calls += numbered
        if self.failure is not None:
            self._finished.append(CollectiveFinished(call, self.failure))
            return call
        if self._lost:
            self._fail_all(self._lost_failure(call, min(self._lost)))
            self._finished.append(CollectiveFinished(call, self.failure))
            return call
        self._begin(call, now_ns)
        self._take_early(call.key, now_ns)
        return call

    def fail(self, detail: str, missing: tuple[int, ...]) -> None:
        """Fail every call, pending and later, here and on all others. missing: whom `detail` blames."""
        if self.failure is None:
            self._fail(detail, missing)

    def events(self) -> list[CollectiveFinished]:
        """Calls that have ended since the last time."""
        if not self._finished:
            return []
        finished, self._finished = self._finished, []
        return finished

    # Party

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        """As Party: the array itself, where a message overwrites and nothing is in its way."""
        call = self._calls.get(head[_KEY])
        if call is None or len(head) != HEAD_BYTES or head[: _CALL.size] != call.head[: _CALL.size]:
            return None
        if self._classes and self._class_of(head) != self._class_of(call.head):
            return None
        _, step, segment = _PLACE.unpack_from(head, _CALL.size)
        return call.execution.place(sender, step, segment, size_bytes)

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        """As Party. `data` may be kept: for a call not made yet, or until what comes before it is there."""
        if self.failure is not None:
            return
        self._moved_ns = now_ns
        call = self._calls.get(head[_KEY])
        if call is not None and head[: _CALL.size] == call.head[: _CALL.size] and len(head) == HEAD_BYTES:
            other = self._classes and self._class_of(head) != self._class_of(call.head)
            if call.execution.expects(sender) and not other:
                self._take(call, sender, head, data, now_ns)
            else:  # of the next call under this key
                self._hold(sender, head, data)
        else:
            self._receive_other(call, sender, head, data, now_ns)

    def on_sent(self, ticket: int) -> None:
        """As Party."""
        call = self._by_number.get(ticket >> 32)
        if call is None:
            return  # a notice, or of a call that failed
        if (node := ticket & _EXECUTION) == _EXECUTION:
            self._has_moved = True
        else:
            call.execution.on_sent(node)
        self._advance(call)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """As Party: fails the calls that still need the member. A member that has done its part may leave."""
        self._lost[member] = reason
        if self.failure is not None:
            return
        for call in self._by_number.values():
            if call.execution.expects(member) or call.execution.sends_left_to(member):
                self._fail_all(self._lost_failure(call, member))
                return

    def messages_to_send(self) -> list[OutgoingMessage]:
        """As Party."""
        out = []
        if self._notices:
            out, self._notices = self._notices, []
        if not self._ready:
            return out
        ready, self._ready = self._ready, []
        pack = _PLACE.pack
        for call in ready:
            head, first = call.head, call.number << 32
            (priority,) = struct.unpack_from(">i", head, _CALL.size)
            head = head[: _CALL.size]
            for to, step, segment, data, node in call.execution.messages_to_send():
                out.append(OutgoingMessage(to, head + pack(priority, step, segment), data, first | node, priority))
        return out

    def next_deadline_ns(self) -> int | None:
        """As Party."""
        return self._deadline_ns if self._calls else None

    def handle_timer(self, now_ns: int) -> None:
        """As Party: fails everything if nothing moved for the timeout, or one call for PATIENCE of them."""
        if self._deadline_ns is None or now_ns < self._deadline_ns or not self._calls:
            return
        if self._has_moved:
            self._moved_ns, self._has_moved = now_ns, False
        for call in self._calls.values():
            if (moves := call.execution.moves) != call.moves:  # when isn't known: not longer ago than the last check
                call.moves = moves
                call.moved_ns = self._moved_ns = now_ns
        stuck = min(self._calls.values(), key=lambda call: call.moved_ns)
        still_ns = now_ns - self._moved_ns
        alone_ns = now_ns - stuck.moved_ns
        if still_ns >= self.call_timeout_ns or alone_ns >= PATIENCE * self.call_timeout_ns:
            self._fail_stuck(stuck, f"has not moved for {alone_ns / 1e9:g} s")
            return
        fails_ns = min(self._moved_ns + self.call_timeout_ns, stuck.moved_ns + PATIENCE * self.call_timeout_ns)
        self._deadline_ns = min(fails_ns, now_ns + self._look_ns)

    def give_up(self, reason: str) -> None:
        """As GroupParty."""
        if self._calls:
            self._fail_stuck(min(self._calls.values(), key=lambda call: call.moved_ns), reason)

    # Calls

    def _new_call(self, request: CallRequest, algorithm: str, array: NDArray[Any]) -> CollectiveCall:
        kind, op = cast(Kind, request.kind), cast(Op, request.op)
        assert array.ndim == 1
        assert array.flags.c_contiguous
        if op not in OPS:
            raise ValueError(f"op {op}: {', '.join(OPS)}")
        if len(array.dtype.str) > 4 or array.dtype.hasobject:
            raise ValueError(f"dtype {array.dtype} can't be sent")
        option = self._option if COLLECTIVES[algorithm].option else 0
        call = CollectiveCall(kind, algorithm, op, array, option, self._numbers)
        root = request.root if kind in ROOTED else 0
        task = Task(kind, algorithm, self.member, self.workers, len(array), root, option)
        self._prepare(call, task)
        self._numbers += 1
        return call

    def _prepare(self, call: CollectiveCall, task: Task) -> None:
        """Give a new call its execution."""
        compiled = program(task, call.array.itemsize, self._segment_bytes)
        call.execution = NativeExecution(compiled, call.array, call.op)

    def _describe(self, call: CollectiveCall, signature: CallSignature, numbered: int, key: int, priority: int) -> None:
        call.head = _CALL.pack(
            _MAGIC,
            COMPARED_KINDS.index(signature.kind),
            NAMES.index(call.algorithm),
            _OP_NAMES.index(signature.op) | signature.requested_op << 1,
            signature.sizes,
            signature.dtype.str.encode(),
            self._segment_bytes,
            signature.elements,
            signature.root,
            call.option,
            numbered,
            key,
        ) + struct.pack(">i", priority)
        call.key = call.head[_KEY]

    def _class_of(self, head: bytes) -> int:
        """The class in which a mesh with `classes` carries a message."""
        classes = self._classes or (BEST_EFFORT,)
        return classes[flow_of(int.from_bytes(head[_PRIORITY], "big", signed=True), classes)]

    def _begin(self, call: CollectiveCall, now_ns: int) -> None:
        self._calls[call.key] = call
        self._by_number[call.number] = call
        self._moved_ns = call.moved_ns = now_ns
        if self._deadline_ns is None or len(self._calls) == 1:
            self._deadline_ns = now_ns + self._look_ns
        if self.runner is not None:
            self.runner.run(call.execution, call.head, call.number << 32 | _EXECUTION)
        call.execution.start()
        self._advance(call)

    def _take(self, call: CollectiveCall, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        _, step, segment = _PLACE.unpack_from(head, _CALL.size)
        call.moved_ns = now_ns
        call.moves += 1
        try:
            call.execution.receive(sender, step, segment, data)
        except ValueError as error:
            self._fail(
                f"{self._name(sender)} sends {self._own_name()} a wrong message of {self._text(call.head)}: {error}",
                (sender,),
            )
            return
        self._advance(call)

    def _advance(self, call: CollectiveCall) -> None:
        """Note that it may have messages, or be done."""
        if not call.execution.carried and (not self._ready or self._ready[-1] is not call):
            self._ready.append(call)
        if not call.execution.done or self._by_number.pop(call.number, None) is None:
            return
        del self._calls[call.key]
        self._finished.append(CollectiveFinished(call, None))

    def _receive_other(self, call: CollectiveCall | None, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        """Handle a message that isn't the next of a call: a failure, one for a later call, or an invalid one."""
        if len(head) == HEAD_BYTES and head[:3] == _FAILURE_HEAD:
            self._receive_failure(sender, head, bytes(data[:_REASON_BYTES_MAX]))
        elif not _is_call(head):
            self._fail(f"{self._name(sender)} sends {self._own_name()} what is no message of a collective", (sender,))
        elif call is not None and (head[_NUMBERED] or call.execution.expects(sender)):  # no other call has its number
            remote, local = self._text(head), self._text(call.head)
            self._fail(f"{self._name(sender)} calls {remote}, {self._own_name()} calls {local}", (sender, self.member))
        else:
            self._hold(sender, head, data)

    def _hold(self, sender: int, head: bytes, data: Buffer) -> None:
        self._early_bytes += len(data) + _MESSAGE_COST_BYTES
        if self._early_bytes > self._early_bytes_max:
            self._fail(
                f"{self._name(sender)} is ahead of {self._own_name()} by more than {self._early_bytes_max} bytes of "
                f"messages, the last of {self._text(head)}",
                (self.member,),
            )
            return
        self._early.setdefault(head[_KEY], deque()).append((sender, head, data))

    def _take_early(self, key: bytes, now_ns: int) -> None:
        """Give a new call the messages that arrived before it; those of the next call under its key stay held."""
        for sender, head, data in self._early.pop(key, ()):
            self._early_bytes -= len(data) + _MESSAGE_COST_BYTES
            self.receive(sender, head, data, now_ns)

    # Failing

    def _lost_failure(self, call: CollectiveCall, member: int) -> AggregationFailed:
        detail = f"{self._own_name()} lost {self._name(member)} in {self._text(call.head)}: {self._lost[member]}"
        return AggregationFailed(detail, job=self._job, missing=(member,))

    def _fail(self, detail: str, missing: tuple[int, ...]) -> None:
        self._fail_all(AggregationFailed(detail, job=self._job, missing=tuple(sorted(set(missing)))))

    def _fail_stuck(self, stuck: CollectiveCall, reason: str) -> None:
        missing = tuple(stuck.execution.missing())
        whom = f"waiting for {self._names(missing)}"
        if not missing:
            missing = tuple(stuck.execution.leaving_to())
            whom = f"waiting for its messages to {self._names(missing)} to leave"
        words = f"{self._text(stuck.head)} {reason}"
        for sender, head, _ in self._early.get(stuck.key, ()):
            if len(head) == HEAD_BYTES and self._class_of(head) != self._class_of(stuck.head):
                words += f" in class {self._class_of(stuck.head)}, and {self._name(sender)} calls it in class "
                words += f"{self._class_of(head)},"
                break
        self._fail(f"{words} on {self._own_name()}, {whom}", missing)

    def _fail_all(self, failure: AggregationFailed) -> None:
        """Fail every call, and notify the others."""
        self._end(failure)
        blamed = failure.missing[:_BLAMED_MAX]
        head = _FAILURE_HEAD + struct.pack(f">B{1 + len(blamed)}H", len(blamed), self.member, *blamed)
        self._tell_all(head.ljust(HEAD_BYTES, b"\0"), failure.detail.encode()[:_REASON_BYTES_MAX])

    def _end(self, failure: AggregationFailed) -> None:
        self.failure = failure
        if self.runner is not None:
            self.runner.stop()
        self._finished.extend(CollectiveFinished(call, failure) for call in self._calls.values())
        self._calls.clear()
        self._by_number.clear()
        self._ready.clear()
        self._early.clear()

    def _tell_all(self, head: bytes, reason: bytes, but: int = -1) -> None:
        for member in range(self.workers):
            if member not in (self.member, but) and member not in self._lost:
                ticket = self._numbers << 32 | member  # no call has this number
                self._notices.append(OutgoingMessage(member, head, reason, ticket, URGENT))
        self._numbers += 1

    def _receive_failure(self, sender: int, head: bytes, reason: bytes) -> None:
        """Fail for the reason that `sender` reports, and pass it on: a member that sees only that we leave would blame
        us."""
        finder, *blamed = struct.unpack_from(f">{1 + min(head[3], _BLAMED_MAX)}H", head, 4)
        missing = tuple(member for member in blamed if member < self.workers)
        text = "".join(c if c.isprintable() else "?" for c in reason.decode(errors="replace"))
        said_by = self._name(finder if finder < self.workers else sender)
        self._end(AggregationFailed(f"{text} (said by {said_by})", job=self._job, missing=missing))
        self._tell_all(head, reason, but=sender)

    # Words

    def _name(self, member: int) -> str:
        return f"rank {member}"

    def _own_name(self) -> str:
        return self._name(self.member)

    def _names(self, members: tuple[int, ...]) -> str:
        return ", ".join(map(self._name, members))

    def _text(self, head: bytes) -> str:
        """A call as a text: "ring allreduce 7 of 1000 float32 (sum)"."""
        _, number, algorithm, ops, sizes, dtype, segment_bytes, *rest = _CALL.unpack_from(head)
        elements, root, option, numbered, key = rest
        kind = COMPARED_KINDS[number]
        try:
            name = np.dtype(dtype.rstrip(b"\0").decode("ascii")).name
        except (TypeError, ValueError):
            name = "values of an unknown type"
        op_name, name = requested_op_text(ops >> 1, _OP_NAMES[ops & 1], name)
        which = f"{key}" if numbered else f"with key {key}"
        details = details_of(kind, op_name, root, sizes)
        details += [f"option {option}"] if option else []
        details += [f"segments of {segment_bytes} bytes"] if segment_bytes != self._segment_bytes else []
        words = f" ({', '.join(details)})" if details else ""
        return f"{NAMES[algorithm]} {kind} {which} of {elements} {name}{words}"


# then u8 how many are to blame; u16s: the member that reports it, those to blame
_FAILURE_HEAD = struct.pack(">HB", _MAGIC, _FAILURE)
_BLAMED_MAX = 20


def begins_transfer(head: bytes) -> bool:
    """Whether a message is the first segment of one of a plan's."""
    return len(head) == HEAD_BYTES and _PLACE.unpack_from(head, _CALL.size)[2] == 0


def _is_call(head: bytes) -> bool:
    if len(head) != HEAD_BYTES:
        return False
    magic, kind, algorithm = struct.unpack_from(">HBB", head)
    return bool(magic == _MAGIC and kind < len(COMPARED_KINDS) and algorithm < len(NAMES))
