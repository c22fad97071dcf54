"""The peers of a member of a UDP mesh, and handshakes (`transport.meshes.mesh_handshake`) over datagrams that get lost.

Both members are dialers (M7): each sends openings until the other's hello is there, and whichever handshake ends first
connects them. A member keeps nothing of an opener until the opener has proved that it has the job's token. Proofs and
answers carry, behind the hello,

    u32 own number | u32 number of the other, 0 while it isn't known | u8 1: answer
    7 u16 ports of the second and further classes, 0 for none
"""

import secrets
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from switchagg.errors import DecodeError
from switchagg.priority import CLASSES
from switchagg.wire import Bundle
from transport.links.link import Address
from transport.links.udp_link import UdpLink
from transport.meshes.gathering import Gathering
from transport.meshes.hello import ANYBODY, Hello, Meeting, unpack
from transport.meshes.mesh_handshake import (
    NONCE_BYTES,
    HandshakeKind,
    Listener,
    PeerSession,
    kind_of,
    nonce_of,
    pack_opening,
)
from transport.meshes.reliable import Receiver, Sender

_NUMBERS = struct.Struct(f">IIB{CLASSES - 1}H")


class UdpFlow:
    """A connection to a member, and one from it: over this link, to that address."""

    def __init__(self, peer: "UdpPeer", link: UdpLink, address: Address, sender: Sender, receiver: Receiver) -> None:
        self.peer, self.link, self.address, self.sender, self.receiver = peer, link, address, sender, receiver
        self.marks: deque[tuple[int, int, int]] = deque()  # per message: end in segments, ticket, bytes of data
        self.segments = 0
        self.unsent: list[Bundle] = []


class UdpPeer:
    """The state of the connection to another member. flows: by class, once its number is known."""

    def __init__(self, member: int, address: Address, now_ns: int) -> None:
        self.member, self.address = member, address
        self.number = 0  # its own, by which it knows frames meant for it; 0 while it is unknown
        self.connected = False
        self.received_ns = self.sent_ns = now_ns
        self.flows: list[UdpFlow] = []


class Greeting(NamedTuple):
    """A hello in the session that it proves. local_number: ours as the peer knows it; 0: unknown."""

    session: PeerSession
    hello: Hello
    number: int
    local_number: int
    asks: bool
    ports: Sequence[int]


class UdpHandshakes(Gathering):
    """number, ports: our own, of the connections to us. dialed, accepted: by member, the sessions of handshakes that
    this side has opened, and the other.
    """

    def __init__(
        self, hello: Hello, terms: Meeting, addresses: Sequence[Address], number: int, ports: Sequence[int]
    ) -> None:
        super().__init__(hello, addresses, terms)
        self._number = number
        self._ports = [*ports, *[0] * (CLASSES - 1 - len(ports))]
        self._listener = Listener(terms.key, secrets.token_bytes(32))
        self._nonces = {member: secrets.token_bytes(NONCE_BYTES) for member in range(hello.members)}
        self.dialed: dict[int, PeerSession] = {}
        self.accepted: dict[int, PeerSession] = {}
        self._openers: set[int] = set()  # members from whose address an opening came

    def greeting(self, member: int, number: int) -> bytes:
        """The opening that this side sends to a member before they are connected. number: as of `hello`."""
        session = self.dialed.get(member) or self.accepted.get(member)
        if number and session is not None:
            return self.hello(session, member, number, True)
        return pack_opening(self._nonces[member])

    def hello(self, session: PeerSession, member: int, number: int, ask: bool) -> bytes:
        """Ours to a member, or ANYBODY. number: that member's, 0 while it isn't known. ask: for an answer."""
        numbers = _NUMBERS.pack(self._number, number, ask, *self._ports)
        kind = HandshakeKind.PROOF if session.dialing else HandshakeKind.ANSWER
        return session.seal(kind, replace(self._hello, to=member).pack() + numbers)

    def answer(self, message: bytes, address: Address, member: int | None) -> bytes | None:
        """The answer to an opening or a challenge; None for another message. member: the one at this
        address. Raises DecodeError."""
        kind = kind_of(message)
        if kind is HandshakeKind.OPENING:
            self._openers |= set() if member is None else {member}
            return self._listener.challenge(message, repr(address).encode())
        if kind is HandshakeKind.CHALLENGE:
            if member is None:
                raise DecodeError("no_hello", "a challenge that no opening asked for")
            session = PeerSession.challenged(self._listener.key, self._nonces[member], message)
            self.dialed[member] = session
            return self.hello(session, member, 0, True)
        return None

    def greeted(self, message: bytes, address: Address, member: int | None) -> Greeting:
        """The hello in a proof or an answer. member: of this address. Raises DecodeError."""
        session = self.dialed.get(ANYBODY if member is None else member)
        if kind_of(message) is HandshakeKind.PROOF:
            session, body = self._listener.session(message, repr(address).encode())
            if member is not None:
                self.accepted[member] = session
        elif session is None:
            raise DecodeError("no_hello", "an answer to no proof of ours")
        else:
            body = session.open(HandshakeKind.ANSWER, message)
        hello, numbers = unpack(body)
        if len(numbers) != _NUMBERS.size:
            raise DecodeError("no_hello", f"{len(numbers)} bytes of numbers")
        number, local_number, asks, *ports = _NUMBERS.unpack(numbers)
        return Greeting(session, hello, number, local_number, bool(asks), ports)

    @property
    def unproved(self) -> int:
        """Members' addresses from which openings came, and no proof."""
        return len(self._openers - self.dialed.keys() - self.accepted.keys())

    # Refusals

    def refusal_to(self, member: int) -> bytes | None:
        """Why the job can't begin, for a member that has proved itself."""
        session = self.dialed.get(member) or self.accepted.get(member)
        return None if session is None else session.refusal(self._to_others)

    def refusal_from(self, member: int, message: bytes) -> str:
        """The words of a member's refusal. Raises DecodeError for what is none."""
        for session in (self.dialed.get(member), self.accepted.get(member)):
            if session is not None and session.dialer_nonce == nonce_of(message):
                return session.open(HandshakeKind.REFUSAL, message).decode(errors="replace")
        raise DecodeError("no_hello", "a refusal before a proof")
