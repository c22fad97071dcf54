"""The contracts of a mesh, which carries messages between the members of a job, and of a party, which uses them.

Host methods send messages of any size, from any member to any other. A `Mesh` carries them reliably and in order in
real time (over TCP, ZeroMQ, UDP, RDMA); in virtual time `emulation.sim.network` does. A `Party` is what a member does
with messages: a collective, a parameter server. It is pure: messages and the time are its inputs. So it runs on every
mesh; `transport.meshes.mesh_loop` is its event loop. Members are numbered from 0: first the workers, by rank, then
servers, if a method has any.

tests/transport/contracts/test_mesh_contract.py holds every mesh to this.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from switchagg.priority import BEST_EFFORT, MOST_URGENT, class_of

Buffer = bytes | bytearray | memoryview
"""A memoryview here is of single bytes ("B") and contiguous."""


def address_of(data: Buffer) -> int:
    """The address of the first byte, for C, while something refers to `data`. data: not empty."""
    if type(data) is memoryview and not data.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))  # a fifth of the time that NumPy takes
    return np.frombuffer(data, np.uint8).ctypes.data


HEAD_BYTES_MAX = 64
"""A message has a short head, which describes it, and data of any length, 0 included."""


URGENT = -(1 << 31)
"""Priority of what must not wait for anything below to leave: heartbeats, and why a job has failed."""


class OutgoingMessage(NamedTuple):
    """A message to be sent. `data` must not change until `ticket` came back: links may send from the memory itself."""

    to: int
    head: bytes
    data: Buffer
    ticket: int
    """The party's own name for this message, handed back once; unique among those in flight."""
    priority: int = 0
    """Lower is more urgent, as of streams; equal ones keep their order."""


class MessageReceived(NamedTuple):
    """A whole message. `data` lies in the memory that `place` gave, or else in memory of the receiver's own."""

    sender: int
    head: bytes
    data: Buffer


class MessageSent(NamedTuple):
    """The memory of a message may be used again: the kernel, the peer or a copy has it."""

    ticket: int


class MemberLost(NamedTuple):
    """A member can't be reached any more. Comes once; nothing of it follows."""

    member: int
    reason: str


class PacketsMoved(NamedTuple):
    """Something happened to the packets that the mesh carries beside messages: their party may have finished a call."""


Event = MessageReceived | MessageSent | MemberLost | PacketsMoved

Place = Callable[[int, bytes, int], memoryview | None]
"""place(sender, head, size_bytes): where the data of a message that has begun to arrive shall lie, writable and of that
size exactly; None for memory of the mesh's own. Asked at most once per message; a link may also not ask."""


class Mesh(Protocol):
    """The end of a mesh at one member. A single thread uses it; any thread may call `wake` at any time.

    Messages from one member to another arrive in order, whole and once, or the member is `Lost`: a peer that died, that
    uses another protocol or belongs to another job, or that sends nothing for longer than the mesh allows. With
    `classes` each priority class is a *flow*: a connection of its own between each pair, its packets marked with the
    class (W10), in order by itself; flows overtake each other. Made by a function or class method
    `connect(member, addresses, …, timeout_s)` that raises JobError naming who is missing.
    """

    @property
    def member(self) -> int:
        """Our own number."""

    @property
    def members(self) -> int:
        """How many there are."""

    @property
    def link(self) -> str:
        """The link that carries the messages: a name in `transport.links.link_kinds`."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The priority classes that are flows, the most urgent first; () if there is one flow, unmarked."""

    @property
    def message_bytes_max(self) -> int:
        """Most data of one message."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters of traffic and faults so far; at least tx_messages, tx_bytes, rx_messages, rx_bytes (of data)."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Settings in use below, such as the congestion control."""

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """Take a message for another member. Never blocks or refuses: the sender bounds what is in flight, by `Sent`.
        flow: a place in `classes`; of several, the most urgent is served first.

        Sending to a member that is lost does nothing but hand the ticket back. Raises ValueError for what no mesh can
        carry (head or data too long, no such member, ourselves), LinkClosed after `close`.
        """

    def give_up(self, member: int) -> None:
        """End all connections with a member that may never answer; the tickets of what was queued for it come back.
        Where it isn't lost yet, it is by this."""

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """The events so far, a bounded number per call, in order per member; [] if none. The call never blocks.

        Sends on what `send` has queued. Raises LinkClosed.
        """

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until `receive` may have something to do, a `wake`, or the timeout (False). Raises LinkClosed."""

    def wake(self) -> None:
        """End the present or else the next `wait`. Any thread; after `close` it does nothing."""

    def close(self, linger_s: float = 1.0) -> None:
        """Send what is queued, for linger_s at most, then end all connections. Again does nothing."""


def checked_classes(priorities: Sequence[int]) -> tuple[int, ...]:
    """Priority classes as a mesh has them, each once. Raises ValueError for what is none."""
    if any(type(priority) is not int or class_of(priority) != priority for priority in priorities):
        raise ValueError(f"priorities {list(priorities)}: {MOST_URGENT} (most urgent) to {BEST_EFFORT}")
    return tuple(sorted(set(priorities)))


def link_text(link: str, classes: Sequence[int]) -> str:
    """The text that members must agree on besides job and method, as their hellos have it."""
    return f"{link}, classes {' '.join(map(str, classes))}" if classes else link


class Frame(NamedTuple):
    """A packet of a `PacketParty`. priority: its class. droppable: a queue that fills may drop it first. ahead: it is
    short, and somebody waits for it."""

    to: int
    data: bytes
    priority: int
    droppable: bool
    ahead: bool


class PacketParty(Protocol):
    """The handling of packets that may be lost, which a mesh carries beside its messages. An implementation is pure."""

    @property
    def counters(self) -> Mapping[str, int]: ...

    @property
    def idle(self) -> bool:
        """Whether nobody waits for something of ours, as far as is known."""

    @property
    def in_flight(self) -> int:
        """How many packets have left and neither arrived nor are lost, as far as is known."""

    def receive(self, data: bytes, sender: int, now_ns: int, marked: bool = False) -> None:
        """A packet of a member came. marked: with the network's mark (CE). Raises nothing."""

    def frames_to_send(self, limit: int, now_ns: int) -> list[Frame]:
        """Up to limit packets; fewer: nothing more may leave now. The number in flight is bounded."""

    def next_deadline_ns(self) -> int | None:
        """When handle_timer must be called, or None."""

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""


class Party(Protocol):
    """The message handling of a member. An implementation is pure: no sockets, threads, clock or randomness of its own.

    Give it what arrives, then send all of `messages_to_send`; call `handle_timer` at the deadline.
    """

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        """As `Place`. Never raises: what is wrong with a message is reported by `receive`."""

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        """A message came. Raises nothing for a peer's bad ones: fails what they concern, naming both sides."""

    def on_sent(self, ticket: int) -> None:
        """A message's memory may be used again."""

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """A member has left or died."""

    def messages_to_send(self) -> list[OutgoingMessage]:
        """Messages that may be sent, each handed out once."""

    def next_deadline_ns(self) -> int | None:
        """When handle_timer must be called, or None."""

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""
