"""UdpMesh: messages over UDP sockets, made reliable by `transport.meshes.reliable`; a `transport.meshes.mesh.Mesh`.

Every pair of members has a connection in each direction, whose number the receiver has chosen at random, or one for
each class, with the numbers that follow: datagrams of an earlier process of a member, or of unknown senders, don't fit
and are counted. Each class has a socket, so that nothing waits in a buffer of the kernel behind less urgent datagrams;
the most urgent one's is at the member's address, hellos name the ports of the others, on the same host. On the wire a
message is u8 bytes of head | head | data, cut into segments; beside those, datagrams are

    a message of a handshake: `transport.meshes.udp_handshakes`
    "saping" or "sabye!" | u32 number of the receiver
    packets of a `PacketParty`, known by what they begin with, of any class: they may get lost
"""

import contextlib
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from switchagg.errors import AggregationFailed, DecodeError, JobError
from switchagg.priority import CE, CLASSES, ECN_MASK, ECT_0, flow_of
from switchagg.wire import Bundle
from transport.links.framing import RELIABLE_BYTES
from transport.links.link import Address
from transport.links.outages import BEAT_NS, NEIGHBOUR_S
from transport.links.udp_link import UdpLink
from transport.meshes.gathering import address_text
from transport.meshes.hello import ANYBODY, Hello, Meeting, disagreement
from transport.meshes.mesh import (
    HEAD_BYTES_MAX,
    Buffer,
    Event,
    MemberLost,
    MessageSent,
    PacketParty,
    PacketsMoved,
    Place,
)
from transport.meshes.mesh_base import GIVEN_UP, MeshBase
from transport.meshes.mesh_handshake import MAGIC, HandshakeKind, kind_of
from transport.meshes.mesh_opening import BoundPlace
from transport.meshes.reliable import DATA, KIND_OFFSET, Receiver, ReliableConfig, Sender
from transport.meshes.udp_handshakes import Greeting, UdpFlow, UdpHandshakes, UdpPeer

MESSAGE_BYTES_MAX = 1 << 24
CONFIG = ReliableConfig(segment_bytes=1440, window_bytes=1 << 19, retry_limit=1 << 30)
"""With header, UDP and IP 1440 bytes fill an Ethernet MTU of 1500. The window, 4 ms at 1 Gb/s, is all that bounds what
is in flight. A dead member is detected by silence, not by counting timeouts."""

CREDIT_BYTES = 1 << 17
"""How much may lie in a socket: what waits there delays acknowledgements and other peers' data by as long."""

HELLO_EVERY_S = 0.05
_WORD = struct.Struct(">6sI")
_PING, _BYE = b"saping", b"sabye!"
_RELIABLE = b"RT"
_CONNECTION = slice(4, 8)  # of a datagram of `transport.meshes.reliable`
_FRAMES_PER_TURN = 128
_GATHER_S, _FEW_FRAMES, _MANY_FRAMES = 0.0002, 16, 32
"""Waking costs as much as a frame or two: while many are in flight, the next few are waited for, and taken together."""


@dataclass(frozen=True)
class UdpMeshOptions:
    """config: of the connections. silence_s: an outage so long ends no connection; a peer of which nothing comes for a
    second more counts as dead. tos: the TOS byte of every packet."""

    config: ReliableConfig = CONFIG
    silence_s: float = 15.0
    tos: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tos <= 255:
            raise ValueError(f"tos {self.tos}: 0 to 255")


class UdpMesh(MeshBase):
    """The end of a UDP mesh at one member, opened by `connect`.

    Besides what every mesh counts: `retransmitted` and `timeouts` of segments, `drop_unknown_sender` (datagrams that
    are none of this job's), and the links' counters, added up, with the prefix link_.
    """

    link = "udp"
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(
        self,
        hello: Hello,
        terms: Meeting,
        addresses: Sequence[Address],
        links: Sequence[UdpLink],
        options: UdpMeshOptions,
        classes: tuple[int, ...] = (),
    ) -> None:
        """Private: see `connect`. links: of the classes, or the only one."""
        super().__init__(hello, classes)
        self._links, self._config = links, options.config
        self._silence_ns = round(options.silence_s * 1e9)
        self._number = secrets.randbelow((1 << 32) - CLASSES) + 1
        self._unknown_senders = 0
        ports = [link.address[1] for link in links[1:]]
        self._handshakes = UdpHandshakes(hello, terms, addresses, self._number, ports)
        now_ns = time.monotonic_ns()
        self._peers = {
            member: UdpPeer(member, links[0].resolve(address), now_ns)
            for member, address in enumerate(addresses)
            if member != hello.member
        }
        self._by_address = {peer.address: peer for peer in self._peers.values()}
        self._past = dict.fromkeys(("retransmitted", "timeouts"), 0)  # of peers that are lost
        self._deadline_ns = self._look_ns = 0
        self._arrivals = 0  # datagrams since the last wait
        self._turns = [0] * len(links)  # the member whose turn it is to be sent to, by class
        self._packets: PacketParty | None = None
        self._magic = b""
        self._unsent: deque[tuple[UdpFlow, Bundle]] = deque()  # packets that a link had no room for

    @classmethod
    def connect(
        cls,
        member: int,
        addresses: Sequence[Address],
        *,
        options: UdpMeshOptions | None = None,
        classes: tuple[int, ...] = (),
        link: UdpLink | None = None,
        **meeting: Any,
    ) -> "UdpMesh":
        """Bind addresses[member] and connect to all others.

        meeting: fields of `Meeting`. link: bound, where the port had to be known before; the mesh's from
        now on. Raises JobError that names the members that are missing, or both sides of a disagreement.
        """
        options, terms = options or UdpMeshOptions(), Meeting(**meeting)
        links = [link or UdpLink(addresses[member])]
        with contextlib.ExitStack() as failing:
            failing.callback(_close_all, links)
            for _ in classes[1:]:
                links.append(UdpLink((links[0].address[0], 0)))
            for place, flow_link in enumerate(links):
                if options.tos:
                    flow_link.set_tos(options.tos)
                if classes:
                    flow_link.set_class(classes[place])
                flow_link.set_credit(CREDIT_BYTES)
            hello = terms.hello(cls.link, classes, member, len(addresses))
            mesh = cls(hello, terms, addresses, links, options, classes)
            mesh._connect_all()
            failing.pop_all()
        return mesh

    @property
    def counters(self) -> Mapping[str, int]:
        """See the class."""
        unknown_senders = self._unknown_senders + self._handshakes.unproved
        counted = {**self._counted, **self._past, "drop_unknown_sender": unknown_senders}
        for peer in list(self._peers.values()):  # any thread may ask, while the loop's loses a peer
            for flow in peer.flows:
                for name in self._past:
                    counted[name] += flow.sender.counters[name]
        if self._packets is not None:
            counted |= {f"packets_{name}": count for name, count in self._packets.counters.items()}
        for name in self._links[0].counters:
            counted[f"link_{name}"] = sum(link.counters[name] for link in self._links)
        return counted

    # Packets beside messages

    @property
    def start(self) -> int:
        """A number of this start of the job, the same on all members and of no earlier one."""
        numbers = {self.member: self._number} | {member: peer.number for member, peer in self._peers.items()}
        return zlib.crc32(repr(sorted(numbers.items())).encode())

    @property
    def config(self) -> ReliableConfig:
        """Window and timeouts of the connections, which packets keep, too."""
        return self._config

    @property
    def packet_bytes_max(self) -> int:
        """Most bytes of a packet beside messages: a segment with its header."""
        return self._config.segment_bytes + RELIABLE_BYTES

    def carry_packets(self, party: PacketParty, magic: bytes) -> None:
        """Carry this party's packets, too, which begin with two bytes of their own; its timer is the mesh's from now
        on. Earlier packets count as unknown senders'. Before the mesh gets an event loop."""
        assert magic not in (_RELIABLE, MAGIC[:2], _PING[:2], _BYE[:2]), magic
        self._packets, self._magic = party, magic

    def _flush_packets(self, party: PacketParty, now_ns: int) -> None:
        for _ in range(_FRAMES_PER_TURN // 64):
            while self._unsent:
                flow, bundle = self._unsent.popleft()
                if (accepted := flow.link.send(bundle, flow.address, flow.link.tos & ~ECN_MASK | ECT_0)) < len(bundle):
                    self._unsent.appendleft((flow, bundle[accepted:]))
                    return
            frames: dict[tuple[int, int], list[bytes]] = {}
            for to, data, priority, _, ahead in (batch := party.frames_to_send(64, now_ns)):
                place = 0 if ahead or not self.classes else flow_of(priority, self.classes)
                frames.setdefault((to, place), []).append(data)
            for (to, place), several in frames.items():
                if (peer := self._peers.get(to)) is not None:
                    peer.sent_ns = now_ns
                    self._unsent.extend((peer.flows[place], bundle) for bundle in _bundles(several))
            if not batch:
                return
        self._deadline_ns = 0  # there may be more

    # Meeting

    def _connect_all(self) -> None:
        handshakes, hello_at = self._handshakes, 0.0
        while missing := [peer.member for peer in self._peers.values() if not peer.connected]:
            handshakes.check_time(missing, self.counters["drop_unknown_sender"])
            now = time.monotonic()
            if now >= hello_at:
                hello_at = now + HELLO_EVERY_S
                self._greet()
            self._run_once(connecting=True)
            if handshakes.refusal:
                self._pass_refusal_on()
            if lost := next((event for event in self._events if isinstance(event, MemberLost)), None):
                raise JobError(f"job {self._hello.job}: member {lost.member} came and left again: {lost.reason}")
            self._wait(max(0.0, min(hello_at, handshakes.until) - time.monotonic()))

    def _greet(self) -> None:
        for peer in self._peers.values():
            if not peer.connected:
                self._transmit(self._handshakes.greeting(peer.member, peer.number), peer.address)

    def _pass_refusal_on(self) -> None:
        """Inform all others, until they know, or for a while. Raises JobError."""
        handshakes = self._handshakes
        while True:
            for peer in self._peers.values():  # also those that know: who was the last to come may not have it
                if message := handshakes.refusal_to(peer.member):
                    self._transmit(message, peer.address)
            if handshakes.is_refused or handshakes.informed >= set(self._peers):
                raise JobError(f"job {self._hello.job}: {handshakes.refusal}")
            self._greet()
            self._wait(HELLO_EVERY_S)
            self._run_once(connecting=True)

    def _handshake(self, frame: bytes, address: Address, connecting: bool) -> None:
        """A message of a handshake came, of a member or of an unknown sender. Raises DecodeError."""
        peer = self._by_address.get(address)
        member = None if peer is None else peer.member
        if connecting and member is not None and kind_of(frame) is HandshakeKind.REFUSAL:
            words = self._handshakes.refusal_from(member, frame)
            self._handshakes.refuse(words, words, member)
        elif answer := self._handshakes.answer(frame, address, member):
            self._unknown_senders += peer is None
            self._transmit(answer, address)
        else:
            self._take_hello(peer, address, connecting, self._handshakes.greeted(frame, address, member))

    def _take_hello(self, peer: UdpPeer | None, address: Address, connecting: bool, greeting: Greeting) -> None:
        session, hello, number, local_number, asks, ports = greeting
        text = address_text(address)
        fault = disagreement(self._hello, hello, text, None if peer is None else peer.member)
        if not fault and (peer is None or not number):
            fault = f"member {hello.member} came from {text}, where no member is expected"
        if fault:
            self._unknown_senders += 1
            if connecting:
                for _ in range(3):  # a datagram may get lost
                    self._transmit(self._handshakes.hello(session, ANYBODY, 0, False), address)
                self._handshakes.disagree(fault, hello.member)
            return
        assert peer is not None
        if peer.number not in (0, number):
            self._unknown_senders += 1  # the member was started again: it can't come back into this job
            if local_number == 0 and peer.connected:
                self._lose(peer, "it was started again")
            return
        news = not peer.number
        if news:
            peer.number = number
            for place, link in enumerate(self._links):
                at = (address[0], ports[place - 1]) if place else address
                self._by_address[at] = peer
                sender = Sender(self._config, number + place, self._hello.job, peer.member)
                peer.flows.append(UdpFlow(peer, link, at, sender, Receiver(self._config, self._number + place)))
        peer.connected = peer.connected or local_number == self._number
        peer.received_ns = time.monotonic_ns()
        if asks or (news and not peer.connected):
            message = self._handshakes.hello(session, peer.member, number, news and not peer.connected)
            self._transmit(message, address)

    def _transmit(self, frame: bytes, address: Address, link: UdpLink | None = None) -> None:
        """A datagram that may get lost; by default in the most urgent class."""
        (link or self._links[0]).send(np.frombuffer(frame, np.uint8).reshape(1, -1), address, overdraw=True)

    # Sending

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        """See `Mesh.send`."""
        size = len(data)
        self._check_send(to, head, size)
        peer = self._peers.get(to)
        if peer is None:
            self._events.append(MessageSent(ticket))
            return
        segments = peer.flows[flow]
        message = b"".join((bytes((len(head),)), head, data))
        segments.segments += -(-len(message) // self._config.segment_bytes)
        segments.marks.append((segments.segments, ticket, size))
        segments.sender.submit(0, message)
        self._deadline_ns = 0

    def give_up(self, member: int) -> None:
        """See `Mesh.give_up`."""
        self._require_open()
        if (peer := self._peers.get(member)) is not None:
            self._lose(peer, GIVEN_UP)

    def _acknowledge(self, flow: UdpFlow, now_ns: int) -> None:
        for frame in flow.receiver.frames_to_send(now_ns):
            flow.peer.sent_ns = now_ns
            self._transmit(frame, flow.address, flow.link)

    def _take_turns(self, place: int, now_ns: int) -> None:
        """Send what is due to all peers, as far as their windows and the link have room.

        Peers take turns, a send each, as connections of TCP do. What the link had no room for goes first next time. A
        peer whose whole window left at once would keep all others' links idle for as long as that takes.
        """
        first = self._turns[place]
        flows = [peer.flows[place] for peer in self._peers.values() if peer.flows]
        flows.sort(key=lambda flow: (flow.peer.member < first, flow.peer.member))
        waiting, rows = deque(flows), self._links[place].segments_max
        for _ in range(_FRAMES_PER_TURN // rows * len(flows)):
            if not waiting:
                return
            flow = waiting.popleft()
            if not flow.unsent and (frames := flow.sender.frames_to_send(now_ns, rows)):
                flow.peer.sent_ns = now_ns
                flow.unsent = list(_bundles(frames))
            if not flow.unsent:
                continue
            if not self._push(flow):
                self._turns[place] = flow.peer.member
                return
            waiting.append(flow)
        if waiting:
            self._turns[place] = waiting[0].peer.member
            self._deadline_ns = 0  # there may be more

    def _push(self, flow: UdpFlow) -> bool:
        """Send the flow's bundles; False if the link is full."""
        while flow.unsent:
            bundle = flow.unsent[0]
            accepted = flow.link.send(bundle, flow.address)
            if accepted < len(bundle):
                flow.unsent[0] = bundle[accepted:]
                return False
            flow.unsent.pop(0)
        return True

    # Receiving

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        """See `Mesh.receive`. Doesn't ask for a place."""
        self._require_open()
        self._run_once(connecting=False)
        return self._take_events()

    def _run_once(self, connecting: bool) -> None:
        now_ns, moved = time.monotonic_ns(), False
        for bundle, address, tos in chain.from_iterable(link.receive() for link in self._links):  # urgent ones first
            peer = self._by_address.get(address)
            self._arrivals += len(bundle)
            for row in bundle:
                frame = row.tobytes()
                if frame[:2] == _RELIABLE and peer is not None and peer.number:
                    self._take(peer, frame, now_ns)
                elif self._packets is not None and frame[:2] == self._magic and peer is not None and peer.number:
                    self._packets.receive(frame, peer.member, now_ns, tos & ECN_MASK == CE)
                    peer.received_ns, moved = now_ns, True
                else:
                    self._take_other(peer, frame, address, connecting, now_ns)
        due = now_ns >= self._deadline_ns
        self._deadline_ns = self._look_ns = now_ns + BEAT_NS if due else self._look_ns  # for silent peers
        if due:
            for peer in list(self._peers.values()):
                if peer.flows:
                    self._timer(peer, now_ns)
        if (packets := self._packets) is not None:
            self._run_packets(packets, moved, now_ns)
        for flow in self._flows():
            self._acknowledge(flow, now_ns)
        for place in range(len(self._links)):
            self._take_turns(place, now_ns)
        for flow in self._flows():
            self._note_deadline(flow)

    def _take_other(self, peer: UdpPeer | None, frame: bytes, address: Address, connecting: bool, now_ns: int) -> None:
        if frame.startswith(MAGIC):
            try:
                self._handshake(frame, address, connecting)
            except DecodeError:
                self._unknown_senders += 1
        else:
            self._receive_control(peer, frame, now_ns)

    def _run_packets(self, party: PacketParty, moved: bool, now_ns: int) -> None:
        if (due_ns := party.next_deadline_ns()) is not None and now_ns >= due_ns:
            party.handle_timer(now_ns)
            moved = True
        self._flush_packets(party, now_ns)
        if (due_ns := party.next_deadline_ns()) is not None:
            self._deadline_ns = min(self._deadline_ns, due_ns)
        if moved:
            self._events.append(PacketsMoved())

    def _take(self, peer: UdpPeer, frame: bytes, now_ns: int) -> None:
        data = len(frame) > KIND_OFFSET and frame[KIND_OFFSET] == DATA
        place = int.from_bytes(frame[_CONNECTION], "big") - (self._number if data else peer.number)
        if not 0 <= place < len(peer.flows):
            self._unknown_senders += 1
            return
        flow = peer.flows[place]
        if data:
            before = flow.receiver.counters["segments"]
            flow.receiver.receive(frame, now_ns)
            if flow.receiver.counters["segments"] == before:
                self._unknown_senders += 1
                return
            while (message := flow.receiver.next_message()) is not None:
                self._received(peer, message.data)
        else:
            before = flow.sender.counters["acks"]
            flow.sender.receive(frame, now_ns)
            if flow.sender.counters["acks"] == before:
                self._unknown_senders += 1
                return
            self._acknowledged(flow)
        peer.connected = True
        peer.received_ns = now_ns

    def _received(self, peer: UdpPeer, message: bytes) -> None:
        if not message or message[0] > HEAD_BYTES_MAX or len(message) < 1 + message[0]:
            self._lose(peer, "it sent what is no message")
            return
        begin = 1 + message[0]
        self._note_received(peer.member, message[1:begin], memoryview(message)[begin:])

    def _acknowledged(self, flow: UdpFlow) -> None:
        marks, arrived = flow.marks, flow.sender.acknowledged
        while marks and marks[0][0] <= arrived:
            _, ticket, size = marks.popleft()
            self._note_sent(ticket, size)

    def _receive_control(self, peer: UdpPeer | None, frame: bytes, now_ns: int) -> None:
        """Handle a heartbeat or a leave message; count what is not of our protocol."""
        if peer is None or len(frame) != _WORD.size or _WORD.unpack(frame)[1] != self._number:
            self._unknown_senders += 1
            return
        word, _ = _WORD.unpack(frame)
        peer.received_ns = now_ns
        if word == _BYE:
            self._lose(peer, "it left")

    def _timer(self, peer: UdpPeer, now_ns: int) -> None:
        """Handle what is due: losses, acknowledgements, heartbeats, timeouts of peers."""
        if peer.connected and now_ns - peer.received_ns >= self._silence_ns + NEIGHBOUR_S * 1e9:
            self._lose(peer, f"nothing came from it for {self._silence_ns / 1e9:g} s")
            return
        for flow in peer.flows:
            try:
                flow.sender.handle_timer(now_ns)
            except AggregationFailed as error:
                self._lose(peer, error.detail)
                return
            flow.receiver.handle_timer(now_ns)
        if now_ns - peer.sent_ns >= BEAT_NS:
            peer.sent_ns = now_ns
            self._transmit(_WORD.pack(_PING, peer.number), peer.address)

    def _note_deadline(self, flow: UdpFlow) -> None:
        for at_ns in (flow.sender.next_deadline_ns(), flow.receiver.next_deadline_ns()):
            if at_ns is not None and at_ns < self._deadline_ns:
                self._deadline_ns = at_ns

    def _lose(self, peer: UdpPeer, reason: str) -> None:
        if self._peers.pop(peer.member, None) is None:
            return
        for address in {peer.address, *(flow.address for flow in peer.flows)}:
            del self._by_address[address]
        self._unsent = deque(packet for packet in self._unsent if packet[0].peer is not peer)
        for flow in peer.flows:
            for name in self._past:
                self._past[name] += flow.sender.counters[name]
            self._events += [MessageSent(ticket) for _, ticket, _ in flow.marks]
        self._note_lost(peer.member, reason)

    # Waiting and closing

    def wait(self, timeout_s: float | None) -> bool:
        """See `Mesh.wait`."""
        self._require_open()
        if self._events:
            return True
        if 0 < self._arrivals < _FEW_FRAMES and self._in_flight >= _MANY_FRAMES:
            time.sleep(_GATHER_S)
        self._arrivals = 0
        left_s = max(0, self._deadline_ns - time.monotonic_ns()) / 1e9
        if timeout_s is None or left_s <= timeout_s:
            self._wait(left_s)
            return True
        return self._wait(timeout_s)

    @property
    def _in_flight(self) -> int:
        packets = self._packets.in_flight if self._packets is not None else 0
        return packets + sum(flow.sender.in_flight for flow in self._flows())

    def _wait(self, timeout_s: float) -> bool:
        full = {flow.link for flow in self._flows() if flow.unsent} | {flow.link for flow, _ in self._unsent}
        first, *more = self._links
        return first.wait(timeout_s, writable=first in full, also=[(link, link in full) for link in more])

    def wake(self) -> None:
        """See `Mesh.wake`."""
        self._links[0].wake()

    def close(self, linger_s: float = 1.0) -> None:
        """See `Mesh.close`."""
        if self._closed:
            return
        until = time.monotonic() + linger_s
        try:
            while self._owes:
                self._run_once(connecting=False)
                left_s = min(until, self._deadline_ns / 1e9) - time.monotonic()
                if time.monotonic() >= until:
                    break
                if self._owes:
                    self._wait(max(0.0, left_s))
            for peer in self._peers.values():
                for _ in range(3 if peer.number else 0):  # without it, silence is noticed
                    self._transmit(_WORD.pack(_BYE, peer.number), peer.address)
        finally:
            self._closed = True
            _close_all(self._links)

    @property
    def _owes(self) -> bool:
        """Whether something isn't known to have arrived that a member may wait for."""
        packets = self._packets is not None and not (self._packets.idle and not self._unsent)
        return packets or any(flow.marks for flow in self._flows())

    def _flows(self) -> Iterator[UdpFlow]:
        return (flow for peer in self._peers.values() for flow in peer.flows)


def _close_all(links: Iterable[UdpLink]) -> None:
    for link in links:
        link.close()


def _bundles(frames: list[bytes]) -> Iterator[Bundle]:
    """Frames of equal size that follow each other, as one bundle each."""
    first = 0
    for at in range(1, len(frames) + 1):
        if at == len(frames) or len(frames[at]) != len(frames[first]):
            yield np.frombuffer(b"".join(frames[first:at]), np.uint8).reshape(at - first, -1)
            first = at


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> UdpMesh:
    """See `opening.connect_mesh`; options: fields of UdpMeshOptions."""
    checked = UdpMeshOptions(**options)  # first: an error here must leave no link open
    link = bound.take() if bound is not None else None
    return UdpMesh.connect(member, addresses, options=checked, link=link, **how)
