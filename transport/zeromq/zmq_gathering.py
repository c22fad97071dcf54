"""How the members of a job connect over ZeroMQ: each connects to all others, as the dialer of a handshake
(`transport.meshes.mesh_handshake`), and both sides check the other's hello.

A connection counts once the other side has answered the hello with its own, whether they fit or not, so that both
sides can name a disagreement. Unknown senders, who don't prove that they have the job's token, learn nothing, delay
nobody and are counted.
"""

import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import zmq

from switchagg.errors import DecodeError, JobError
from transport.links.link import Address
from transport.meshes.gathering import LEFT_S, Gathering, address_text
from transport.meshes.hello import Hello, Meeting, disagreement, unpack
from transport.meshes.mesh_handshake import (
    NONCE_BYTES,
    HandshakeKind,
    Listener,
    PeerSession,
    kind_of,
    nonce_of,
    pack_opening,
    trouble_of,
)
from transport.zeromq.zmq_sockets import Sockets, ZmqConnection

CONTROL = b"switchagg mesh 2"
"""First of the three frames of the meshes' own messages; a member's message has two."""

HELLO, REFUSED, BYE, LOST = b"hello", b"refused", b"bye", b"lost"
"""HELLO: with a message of a handshake, of any of its first four kinds."""
FLOW = b"flow"
"""First on a further connection of a member that has begun: sealed, and its place among those of this member."""
DISAGREE = b"disagree"
"""Some two members don't fit; to all others, who would wait for one that won't come."""

OPENINGS_MAX = 256
"""Identities that have opened a handshake and are remembered, to be counted."""

RECEIVED_MAX = 256
"""Messages read at once: who sends without end delays nobody."""


def parse_control(frames: Sequence[zmq.Frame]) -> tuple[bytes, bytes] | None:
    """Keyword and body of a mesh's own message; None if it is something else."""
    if len(frames) != 3 or frames[0].bytes != CONTROL:
        return None
    return frames[1].bytes, frames[2].bytes


class ZmqGathering(Gathering):
    """Connects one member to all others; made, run, and kept for those that come later.

    early: messages of members that were done before us, with their sender and its identity. flows: their further
    connections' identities. dialed: by member, the session of our connection to it.
    """

    def __init__(
        self,
        local_hello: Hello,
        terms: Meeting,
        addresses: Sequence[Address],
        sockets: Sockets,
        tos: int | None = None,
    ) -> None:
        """tos: of the connections, as of `Sockets.connect`."""
        super().__init__(local_hello, addresses, terms)
        self.listener = Listener(terms.key, secrets.token_bytes(32))
        self.dialed: dict[int, PeerSession] = {}
        self._dropped = 0
        self._openings: dict[bytes, None] = {}  # identities that have not proved themselves, the oldest first
        self._nonces: dict[int, bytes] = {}
        self._sessions: dict[int, PeerSession] = {}  # sessions of the members' connections to us
        self._flows_opened: set[tuple[int, bytes]] = set()
        self._sockets = sockets
        peers = sorted(self.other_members)
        self._connections = {member: sockets.connect(addresses[member], tos=tos) for member in peers}
        self._member_of = {connection: member for member, connection in self._connections.items()}
        self._hello_due = set(peers)  # members that no opening was sent to
        self._answered: set[int] = set()
        self._identities: dict[int, bytes] = {}
        self.early: list[tuple[int, bytes, list[zmq.Frame]]] = []
        self.flows: dict[bytes, int] = {}

    def run(self) -> dict[int, tuple[ZmqConnection, bytes]]:
        """Connection and identity of every other member. Raises JobError: which members are missing and why, or what
        doesn't fit."""
        try:
            return self._run()
        except JobError as error:
            for member, connection in self._connections.items():
                if connection.up and member in self.dialed:
                    with contextlib.suppress(zmq.ZMQError):
                        connection.socket.send_multipart([CONTROL, BYE, str(error).encode()[:1000]], zmq.NOBLOCK)
            raise

    def _run(self) -> dict[int, tuple[ZmqConnection, bytes]]:
        connections = dict.fromkeys(self._connections.values())
        while True:
            for connection in connections:
                if connection in self._member_of:
                    self._check(connection)
            self._receive_hellos()
            if self.refusal:
                if self.is_refused:
                    raise self.error(self.refusal)
            elif self._answered >= self._identities.keys() >= self._connections.keys():
                return {
                    member: (connection, self._identities[member]) for member, connection in self._connections.items()
                }
            else:
                present = self._answered & self._identities.keys()
                self.check_time(sorted(self.other_members - present), self.unknown_senders)
            pause_s = min(self.until - time.monotonic(), LEFT_S / 4)
            connections = self._sockets.poll(max(0.0, pause_s))[1]

    def _check(self, connection: ZmqConnection) -> None:
        member = self._member_of[connection]
        for came_up in connection.read_monitor():
            self._answered.discard(member)
            self._hello_due.add(member)
            if came_up:
                self._left.pop(member, None)
                self.dialed.pop(member, None)
            elif member in self.dialed:  # kept: what the member has sent before it left may be read after that
                self._left[member] = time.monotonic()
        if member in self._hello_due and connection.up:
            self._nonces[member] = secrets.token_bytes(NONCE_BYTES)
            self._send(member, pack_opening(self._nonces[member]))
        self._sockets.want_room(connection, member in self._hello_due and connection.up)
        while True:
            try:
                frames = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                return
            self._receive_answer(member, frames)

    def _send(self, member: int, message: bytes) -> None:
        """A message of our handshake; if there is no room, it begins again."""
        try:
            self._connections[member].socket.send_multipart([CONTROL, HELLO, message], zmq.NOBLOCK)
            self._hello_due.discard(member)
        except zmq.ZMQError:
            self._hello_due.add(member)

    def _receive_answer(self, member: int, frames: list[zmq.Frame]) -> None:
        word, message = parse_control(frames) or (b"", b"")
        try:
            if word == HELLO and kind_of(message) is HandshakeKind.CHALLENGE:
                session = PeerSession.challenged(self.listener.key, self._nonces[member], message)
                self.dialed[member] = session
                self._send(member, session.seal(HandshakeKind.PROOF, replace(self._hello, to=member).pack()))
            elif word == HELLO and member in self.dialed:
                self._greeted(member, unpack(self.dialed[member].open(HandshakeKind.ANSWER, message))[0])
            elif word in (REFUSED, DISAGREE) and member in self.dialed:
                words = self.dialed[member].open(HandshakeKind.REFUSAL, message).decode(errors="replace")
                if word == REFUSED:
                    raise self.error(f"member {member} at {address_text(self._addresses[member])}: {words}")
                self.refuse(words, words, member)
            else:
                raise DecodeError("no_hello", "no message of the mesh")
        except DecodeError as error:
            self.drop()
            self._trouble[member] = trouble_of(error)

    def _greeted(self, member: int, hello: Hello) -> None:
        if fault := disagreement(self._hello, hello, address_text(self._addresses[member]), member):
            self.disagree(fault, member)
        else:
            self._answered.add(member)

    def _reached(self) -> Iterable[int]:
        return self._identities

    def _inform(self, member: int) -> None:
        frames = [self._identities[member], CONTROL, DISAGREE, self._sessions[member].refusal(self._to_others)]
        with contextlib.suppress(zmq.ZMQError):  # it has left
            self._sockets.router.send_multipart(frames, zmq.NOBLOCK)
            self.informed.add(member)

    def _receive_hellos(self) -> None:
        """Handle hellos; keep messages of members that finished before us."""
        for _ in range(RECEIVED_MAX):
            try:
                identity, *frames = self._sockets.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # a connection broke while it was read
                continue
            control = parse_control(frames)
            of_flow = self.flows.get(identity.bytes)
            sender = next((member for member, name in self._identities.items() if name == identity.bytes), of_flow)
            try:
                if control is not None and control[0] == HELLO:
                    place = str(frames[0].get("Peer-Address"))
                    if (greeting := self.greeting(identity.bytes, control[1])) is not None:
                        self._receive_hello(identity.bytes, *greeting, place)
                elif control is not None and control[0] == FLOW:
                    self.flows[identity.bytes] = self.member_of_flow(control[1])
                elif sender is None:
                    self.drop()
                elif control is not None and control[0] == BYE:
                    self._left.setdefault(sender, time.monotonic())
                    self._reasons[sender] = control[1].decode(errors="replace")
                else:
                    self.early.append((sender, identity.bytes, frames))
            except DecodeError:
                self.drop()

    def greeting(self, identity: bytes, message: bytes) -> tuple[PeerSession, Hello] | None:
        """The session and hello of a proof; answers an opening. Raises DecodeError."""
        if kind_of(message) is HandshakeKind.OPENING:
            self._openings[identity] = None
            if len(self._openings) > OPENINGS_MAX:
                del self._openings[next(iter(self._openings))]
                self.drop()
            with contextlib.suppress(zmq.ZMQError):
                frames = [identity, CONTROL, HELLO, self.listener.challenge(message, identity)]
                self._sockets.router.send_multipart(frames, zmq.NOBLOCK)
            return None
        session, body = self.listener.session(message, identity)
        self._openings.pop(identity, None)
        return session, unpack(body)[0]

    @property
    def unknown_senders(self) -> int:
        """Messages of those that prove nothing, and openings without a proof."""
        return self._dropped + len(self._openings)

    def drop(self) -> None:
        """Count a message of an unknown sender."""
        self._dropped += 1

    def member_of_flow(self, message: bytes) -> int:
        """The member to which a further connection belongs. Raises DecodeError for what opens none."""
        kind_of(message)
        nonce = nonce_of(message)
        for member, session in self._sessions.items():
            if session.dialer_nonce == nonce:
                flow = (member, session.open(HandshakeKind.FLOW, message))
                if flow not in self._flows_opened:
                    self._flows_opened.add(flow)
                    return member
        raise DecodeError("no_hello", "a flow of no member, or once more")

    def _receive_hello(self, identity: bytes, session: PeerSession, hello: Hello, place: str) -> None:
        with contextlib.suppress(zmq.ZMQError):
            frames = [identity, CONTROL, HELLO, session.seal(HandshakeKind.ANSWER, self._hello.pack())]
            self._sockets.router.send_multipart(frames, zmq.NOBLOCK)
        fault = disagreement(self._hello, hello, place)
        # A member that connects again has a new identity, and its old connection is closed.
        known = self._identities.get(hello.member, identity)
        if not fault and known != identity and self._is_open(known, self._sessions[hello.member]):
            fault = f"two say they are member {hello.member}; one is at {place}"
        if fault:
            self.disagree(fault, hello.member)
            return
        self.early = [item for item in self.early if item[0] != hello.member]
        self._identities[hello.member], self._sessions[hello.member] = identity, session
        if self.refusal:
            self._inform(hello.member)

    def _is_open(self, identity: bytes, session: PeerSession) -> bool:
        """Whether its connection is still open: a ROUTER refuses to send to a closed one."""
        try:
            frames = [identity, CONTROL, HELLO, session.seal(HandshakeKind.ANSWER, self._hello.pack())]
            self._sockets.router.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _trouble_of(self, member: int) -> str:
        trouble = self._connections[member].trouble or super()._trouble_of(member)
        return trouble or ("" if member in self._identities else "it does not reach this member")
