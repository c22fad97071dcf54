"""How the members of a job connect over ZeroMQ: each connects to all others, and both sides check the other's hello.

A connection counts once the other side has answered the hello with its own, whether they fit or not, so that both
sides can name a disagreement. Unknown peers delay nobody.
"""

import contextlib
import time
from collections.abc import Sequence

import zmq

from switchagg.errors import DecodeError, JobError
from transport.links.link import Address
from transport.meshes.hello import TELL_S, Hello, disagreement, unpack
from transport.zeromq.sockets import Connection, Sockets, text

CONTROL = b"switchagg mesh 1"
"""First of the three frames of the meshes' own messages; a member's message has two."""

HELLO, REFUSED, BYE, LOST = b"hello", b"refused", b"bye", b"lost"
FLOW = b"flow"
"""First on a further connection of a member that has begun: whose it is, as a hello."""
DISAGREE = b"disagree"
"""Some two members don't fit; to all others, who would wait for one that won't come."""

LEFT_S = 1.0
"""A member that came and left again for so long has found something wrong."""


def parse_control(frames: Sequence[zmq.Frame]) -> tuple[bytes, bytes] | None:
    """Keyword and body of a mesh's own message; None if it is something else."""
    if len(frames) != 3 or frames[0].bytes != CONTROL:
        return None
    return frames[1].bytes, frames[2].bytes


def member_of_flow(mine: Hello, body: bytes) -> int | None:
    """The other member of this job to which a further connection belongs, or None."""
    try:
        theirs = unpack(body)
    except DecodeError:
        return None
    return None if disagreement(mine, theirs, "") else theirs.member


class Gathering:
    """Connects one member to all others; made, run and left behind.

    early: messages of members that were done before us, with their sender and its identity. flows: their further
    connections' identities.
    """

    def __init__(
        self, mine: Hello, addresses: Sequence[Address], sockets: Sockets, timeout_s: float, tos: int | None = None
    ) -> None:
        """tos: of the connections, as of `Sockets.connect`."""
        self._mine, self._addresses, self._sockets = mine, addresses, sockets
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        others = [member for member in range(mine.members) if member != mine.member]
        self._connections = {member: sockets.connect(addresses[member], tos=tos) for member in others}
        self._member_of = {connection: member for member, connection in self._connections.items()}
        self._hello_due = set(others)  # members that our hello was not sent to
        self._answered: set[int] = set()
        self._identities: dict[int, bytes] = {}
        self._left: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        self._refusal = self._to_others = ""  # why this job can't begin
        self._informed: set[int] = set()  # members that know of it
        self.early: list[tuple[int, bytes, list[zmq.Frame]]] = []
        self.flows: dict[bytes, int] = {}

    def run(self) -> dict[int, tuple[Connection, bytes]]:
        """Connection and identity of every other member. Raises JobError: which members are missing and why, or what
        doesn't fit."""
        try:
            return self._run()
        except JobError as error:
            for connection in self._connections.values():
                if connection.up:
                    with contextlib.suppress(zmq.ZMQError):
                        connection.socket.send_multipart([CONTROL, BYE, str(error).encode()[:1000]], zmq.NOBLOCK)
            raise

    def _run(self) -> dict[int, tuple[Connection, bytes]]:
        connections = dict.fromkeys(self._connections.values())
        while True:
            for connection in connections:
                if connection in self._member_of:
                    self._check(connection)
            self._receive_hellos()
            if self._refusal:
                if time.monotonic() >= self._until or self._informed >= self._connections.keys():
                    raise self._error(self._refusal)
            elif self._answered >= self._identities.keys() >= self._connections.keys():
                return {
                    member: (connection, self._identities[member]) for member, connection in self._connections.items()
                }
            else:
                self._check_timeouts()
            pause_s = self._until - time.monotonic()
            if self._left:
                pause_s = min(pause_s, LEFT_S / 4)
            connections = self._sockets.poll(max(0.0, pause_s))[1]

    def _check(self, connection: Connection) -> None:
        member = self._member_of[connection]
        for came_up in connection.read_monitor():
            self._answered.discard(member)
            self._hello_due.add(member)
            if came_up:
                self._left.pop(member, None)
            else:
                self._left[member] = time.monotonic()
        if member in self._hello_due and connection.up:
            with contextlib.suppress(zmq.ZMQError):
                connection.socket.send_multipart([CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
                self._hello_due.discard(member)
        self._sockets.want_room(connection, member in self._hello_due and connection.up)
        while True:
            try:
                frames = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                return
            self._receive_answer(member, frames)

    def _receive_answer(self, member: int, frames: list[zmq.Frame]) -> None:
        control = parse_control(frames)
        place = text(self._addresses[member])
        if control is None or control[0] not in (HELLO, REFUSED, DISAGREE):
            raise self._error(f"what answers at {place} speaks another protocol")
        if control[0] == REFUSED:
            raise self._error(f"member {member} at {place}: {control[1].decode(errors='replace')}")
        if control[0] == DISAGREE:
            self._informed.add(member)
            words = control[1].decode(errors="replace")
            self._refuse(words, words)
            return
        try:
            theirs = unpack(control[1])
        except DecodeError as error:
            raise self._error(f"what answers at {place} speaks another protocol: {error}") from error
        if fault := disagreement(self._mine, theirs, place, member):
            self._disagree(fault, member)
            return
        self._answered.add(member)

    def _disagree(self, fault: str, member: int) -> None:
        """It has our hello, so it knows."""
        self._informed.add(member)
        self._refuse(fault, f"member {self._mine.member} reports: {fault}")

    def _refuse(self, words: str, to_others: str) -> None:
        """The job can't begin: inform all members that are connected, and for a while those that connect."""
        if not self._refusal:
            self._refusal, self._to_others = words, to_others
            self._until = min(self._until, time.monotonic() + TELL_S)
            for member in self._identities:
                self._inform(member)

    def _inform(self, member: int) -> None:
        frames = [self._identities[member], CONTROL, DISAGREE, self._to_others.encode()[:1000]]
        with contextlib.suppress(zmq.ZMQError):  # it has left
            self._sockets.router.send_multipart(frames, zmq.NOBLOCK)
            self._informed.add(member)

    def _receive_hellos(self) -> None:
        """Handle hellos; keep messages of members that finished before us."""
        while True:
            try:
                identity, *frames = self._sockets.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # a connection broke while it was read
                continue
            control = parse_control(frames)
            of_flow = self.flows.get(identity.bytes)
            sender = next((member for member, name in self._identities.items() if name == identity.bytes), of_flow)
            if control is not None and control[0] == HELLO:
                place = str(frames[0].get("Peer-Address"))
                self._receive_hello(identity.bytes, control[1], place)
            elif control is not None and control[0] == FLOW:
                if (member := member_of_flow(self._mine, control[1])) is not None:
                    self.flows[identity.bytes] = member
            elif sender is not None and control is not None and control[0] == BYE:
                self._left.setdefault(sender, time.monotonic())
                self._reasons[sender] = control[1].decode(errors="replace")
            elif sender is not None:
                self.early.append((sender, identity.bytes, frames))

    def _receive_hello(self, identity: bytes, body: bytes, place: str) -> None:
        try:
            theirs = unpack(body)
        except DecodeError:
            return  # an unknown peer
        with contextlib.suppress(zmq.ZMQError):
            self._sockets.router.send_multipart([identity, CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
        fault = disagreement(self._mine, theirs, place)
        # A member that connects again has a new identity, and its old connection is closed.
        known = self._identities.get(theirs.member, identity)
        if not fault and known != identity and self._is_open(known):
            fault = f"two say they are member {theirs.member}; one is at {place}"
        if fault:
            self._disagree(fault, theirs.member)
            return
        self.early = [item for item in self.early if item[0] != theirs.member]
        self._identities[theirs.member] = identity
        if self._refusal:
            self._inform(theirs.member)

    def _is_open(self, identity: bytes) -> bool:
        """Whether its connection is still open: a ROUTER refuses to send to a closed one."""
        try:
            self._sockets.router.send_multipart([identity, CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        missing = [
            member for member in self._connections if member not in self._answered or member not in self._identities
        ]
        if now >= self._until:
            raise self._error(self._missing_text(missing) + f" within {self._timeout_s:g} s")
        for member, since in self._left.items():
            if now - since >= LEFT_S:
                why = f": {self._reasons[member]}" if self._reasons.get(member) else ""
                lacking = f"{self._missing_text(missing)}, and " if missing else ""
                raise self._error(f"{lacking}member {member} came and left again{why}")

    def _missing_text(self, missing: list[int]) -> str:
        reasons = []
        for member in missing:
            connection = self._connections[member]
            trouble = connection.trouble or ("" if member in self._identities else "it does not reach this member")
            reasons.append(f"member {member} at {text(connection.address)}" + (f" ({trouble})" if trouble else ""))
        return f"no connection with {', '.join(reasons)}"

    def _error(self, reason: str) -> JobError:
        mine = self._mine
        return JobError(f"job {mine.job}, member {mine.member} of {mine.members}: {reason}")
