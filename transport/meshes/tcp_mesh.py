"""TcpMesh: messages over one TCP connection per pair, or one for each class (see `transport.meshes.mesh.Mesh`), in C.

It also queues messages by urgency and runs collectives without Python: a message of an execution that runs here never
reaches Python; others are handed out as from any mesh. transport/native/hosts/mesh.h has what is on the wire.
"""

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from switchagg.native import headers
from switchagg.native.library import load, require
from switchagg.priority import flow_of
from transport.links.link import Address
from transport.meshes.credit_queue import ticket_in_use
from transport.meshes.hello import Hello, Meeting
from transport.meshes.mesh import (
    Buffer,
    Event,
    MemberLost,
    MessageReceived,
    MessageSent,
    OutgoingMessage,
    Place,
    address_of,
)
from transport.meshes.mesh_base import MeshBase
from transport.meshes.mesh_opening import BoundPlace
from transport.meshes.spare_memory import SpareMemory
from transport.meshes.tcp_gathering import TcpOptions, congestion_control_of, gather, listen

MESSAGE_BYTES_MAX = 1 << 26

COUNTERS = headers.names("sa_mesh_counter", "SA_MESH_")
_EVENT = headers.packed("sa_mesh_event")
_OUTGOING = headers.packed("sa_mesh_outgoing")


class MeshEvent(NamedTuple):
    """`struct sa_mesh_event`."""

    kind: int
    member: int
    connection: int
    reason: int
    number: int
    head_bytes: int
    ticket: int
    size_bytes: int
    head: bytes


def _why_gone(event: MeshEvent) -> str:
    """Why the member of an event is gone."""
    if event.reason == headers.SA_GONE_ERROR:
        return f"the connection ended: {os.strerror(event.number)}"
    if event.reason == headers.SA_GONE_NO_MESSAGE:
        return f"it sent what is no message ({event.head[:8].hex()})"
    return "it left" if event.reason == headers.SA_GONE_LEFT else "it closed the connection, or died"


class Runnable(Protocol):
    """An execution in C: `transport.collectives.execution`."""

    carried: bool

    @property
    def handle(self) -> int: ...


class _Counters(Mapping[str, int]):
    """As they are now; also after the mesh is closed."""

    def __init__(self, unknown_senders: int) -> None:
        self.values_in_c = (ctypes.c_uint64 * len(COUNTERS))()
        self._unknown_senders = unknown_senders

    def __getitem__(self, name: str) -> int:
        if name == "drop_unknown_sender":
            return self._unknown_senders
        if name not in COUNTERS:
            raise KeyError(name)
        return self.values_in_c[COUNTERS.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter((*COUNTERS, "drop_unknown_sender"))

    def __len__(self) -> int:
        return len(COUNTERS) + 1


class TcpMesh(MeshBase):
    """The end of a TCP mesh at one member, opened by `connect`; also a `credit_queue.Sends` and a
    `execution.Runner`. details: the congestion control that its sockets use.

    Besides what every mesh counts: `sends` and `receives`, system calls; `send_would_block`; `drop_unknown_sender`:
    peers that did not prove that they have the job's token, while the members met. Raises MemoryError.
    """

    link = "tcp"
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        hello: Hello,
        flows: Sequence[Mapping[int, socket.socket]],
        classes: tuple[int, ...] = (),
        unknown_senders: int = 0,
    ) -> None:
        """Arguments as `meet` returns them. The connections are non-blocking, and the mesh's from now on."""
        super().__init__(hello, classes)
        self._flows = flows
        self._library = load()
        self._counters = _Counters(unknown_senders)
        self.counters: Mapping[str, int] = self._counters
        self._credit_bytes: int | None = None
        self._memory: dict[int, memoryview] = {}  # by connection: of the message that arrives
        self._data: dict[int, Buffer] = {}  # by ticket: what C reads
        self._runs: dict[int, Runnable] = {}  # by ticket
        self._events_in_c = ctypes.c_void_p()
        self._spare = SpareMemory()
        self._wake_lock = threading.Lock()
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._handle = self._library.sa_mesh_new(
            self.members,
            len(flows),
            bytes(classes or (0,)),
            MESSAGE_BYTES_MAX,
            self._wake_descriptor,
            self._counters.values_in_c,
        )
        if self._handle is None:
            os.close(self._wake_descriptor)
            raise MemoryError("no memory or descriptor for a mesh")
        for flow, connections in enumerate(flows):
            for member, connection in connections.items():
                self._check(self._library.sa_mesh_add(self._handle, connection.fileno(), member, flow))
        first = next(iter(flows[0].values()), None)
        if first is not None:
            self.details["congestion_control"] = congestion_control_of(first)

    @classmethod
    def connect(cls, member: int, addresses: Sequence[Address], **how: Any) -> Self:
        """Meet the others: see `meet`."""
        return cls(*meet(member, addresses, **how))

    # Sending

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """See `Mesh.send`."""
        self._send(OutgoingMessage(to, head, data, ticket), flow % len(self._flows), False)

    def carry(self, messages: Iterable[OutgoingMessage]) -> None:
        """See `Sends.carry`."""
        for message in messages:
            flow = flow_of(message.priority, self.classes) if len(self._flows) > 1 else 0
            self._send(message, flow, True)

    def _send(self, message: OutgoingMessage, flow: int, waits_for_credit: bool) -> None:
        to, head, data, ticket, priority = message
        size = len(data)
        self._check_send(to, head, size)
        if ticket in self._data or ticket in self._runs:  # else nothing would keep the first one's memory
            raise ValueError(ticket_in_use(ticket))
        outgoing = _OUTGOING.pack(address_of(data) if size else 0, size, ticket, to, flow, priority, len(head), head)
        self._data[ticket] = data
        self._check(self._library.sa_mesh_send(self._handle, outgoing, waits_for_credit))

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Sends.set_credit`."""
        self._credit_bytes = credit_bytes

    @property
    def waiting_bytes(self) -> int:
        """See `Sends.waiting_bytes`."""
        with self._wake_lock:
            return 0 if self._closed else self._library.sa_mesh_below_bytes(self._handle)

    def give_up(self, member: int) -> None:
        """See `Mesh.give_up`."""
        self._require_open()
        for flow in self._flows:
            with contextlib.suppress(OSError):  # it ended by itself
                flow[member].shutdown(socket.SHUT_RDWR)

    # Running

    def run(self, execution: Runnable, head: bytes, ticket: int) -> None:
        """See `Runner.run`."""
        self._require_open()
        self._runs[ticket] = execution
        self._check(self._library.sa_mesh_run(self._handle, execution.handle, head, ticket))
        execution.carried = True

    def stop(self) -> None:
        """See `Runner.stop`. C reads their queued messages until `close`: they stay referenced."""
        if not self._closed:
            self._library.sa_mesh_stop(self._handle)

    # Receiving

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Mesh.receive`."""
        self._require_open()
        self._turn(0)
        events: list[Event] = []
        while count := self._library.sa_mesh_take_events(self._handle, ctypes.byref(self._events_in_c)):
            for fields in _EVENT.iter_unpack(ctypes.string_at(self._events_in_c, count * _EVENT.size)):
                self._take(MeshEvent(*fields), place, events)
        return events

    def _take(self, event: MeshEvent, place: Place | None, events: list[Event]) -> None:
        if event.kind == headers.SA_MESH_SENT:
            if self._runs.pop(event.ticket, None) is None:
                del self._data[event.ticket]
            events.append(MessageSent(event.ticket))
        elif event.kind == headers.SA_MESH_GONE:
            for flow in self._flows:
                flow[event.member].close()
            events.append(MemberLost(event.member, _why_gone(event)))
        else:
            head = event.head[: event.head_bytes]
            if event.kind == headers.SA_MESH_RECEIVED:
                data: Buffer = self._memory.pop(event.connection) if event.size_bytes else b""
                events.append(MessageReceived(event.member, head, data))
                return
            size = event.size_bytes
            memory = (place(event.member, head, size) if place is not None else None) or self._spare.take(size)
            assert len(memory) == size, "a place has another size than its message"
            self._memory[event.connection] = memory
            self._check(self._library.sa_mesh_give(self._handle, event.connection, address_of(memory)))

    def _turn(self, timeout_ns: int) -> bool:
        credit = -1 if self._credit_bytes is None else self._credit_bytes
        return bool(self._check(self._library.sa_mesh_turn(self._handle, timeout_ns, credit)))

    @staticmethod
    def _check(result: int) -> int:
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    # Waiting and closing

    def wait(self, timeout_s: float | None) -> bool:
        """See `Mesh.wait`. Messages of executions are received and sent meanwhile."""
        self._require_open()
        return self._turn(-1 if timeout_s is None else max(0, round(timeout_s * 1e9)))

    def wake(self) -> None:
        """See `Mesh.wake`."""
        with self._wake_lock:  # after close the descriptor's number may already belong to someone else
            if not self._closed:
                os.eventfd_write(self._wake_descriptor, 1)

    def close(self, linger_s: float = 1.0) -> None:
        """See `Mesh.close`."""
        if self._closed:
            return
        self._library.sa_mesh_linger(self._handle, round(linger_s * 1e9))
        with self._wake_lock:
            self._closed = True
            self._library.sa_mesh_free(self._handle)
            os.close(self._wake_descriptor)
        for flow in self._flows:
            for connection in flow.values():
                connection.close()
        for buffers in (self._memory, self._data, self._runs):
            buffers.clear()


def meet(
    member: int,
    addresses: Sequence[Address],
    *,
    options: TcpOptions | None = None,
    classes: tuple[int, ...] = (),
    listener: socket.socket | None = None,
    **meeting: Any,
) -> tuple[Hello, Sequence[Mapping[int, socket.socket]], tuple[int, ...], int]:
    """Listen at addresses[member] and connect to all others: our hello, connections of each flow by
    member, the classes, and how many unknown senders were sent away.

    meeting: fields of `Meeting`. listener: made by `tcp_gathering.listen`, where the port had to be
    known before; ours from now on. Raises JobError that names the members that are missing, or both sides of a
    disagreement, or says that the compiled core is missing.
    """
    options = options or TcpOptions()
    try:
        require("the link tcp")
        terms = Meeting(**meeting)
        hello = terms.hello("tcp", classes, member, len(addresses))
        if len(addresses) > 1 and listener is None:
            listener = listen(addresses[member], options)
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    if len(addresses) == 1 or listener is None:
        if listener is not None:
            listener.close()
        return hello, [{}], classes, 0
    flows, unknown_senders = gather(hello, terms, addresses, listener, options.for_classes(classes))
    return hello, flows, classes, unknown_senders


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> TcpMesh:
    """See `opening.connect_mesh`; options: fields of TcpOptions."""
    checked = TcpOptions(**options)  # first: an error here must leave no listener open
    listener = bound.take() if bound is not None else None
    return TcpMesh.connect(member, addresses, options=checked, listener=listener, **how)
