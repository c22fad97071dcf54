"""The handshake of two members of a mesh: each proves that it has the job's token before the other says who it is.

The *dialer* connects, the *listener* is connected to; they exchange four messages (M1 to M5), each

     0 6 bytes magic "sahelo" | 6 u8 kind | 7 u8 version | 8 16 bytes nonce | 24, but for an opening: 32 bytes digest
    56 of all but opening and challenge: u16 length | 58 body

An opening has 40 zeros behind its nonce, so that no challenge is longer. The nonce is the dialer's, but for a
challenge's. The token itself is never sent. Later messages are not protected (M8). This module is pure.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from switchagg.errors import DecodeError

MAGIC = b"sahelo"
VERSION = 3
NONCE_BYTES, DIGEST_BYTES = 16, 32
BODY_BYTES_MAX = 1000
MESSAGE_BYTES_MAX = 58 + BODY_BYTES_MAX
NO_PROOF = "it has another token (SWITCHAGG_TOKEN) than this job, or came for a job of another name"

_START = struct.Struct(f">6sBB{NONCE_BYTES}s")
_LENGTH = struct.Struct(">H")
_BODY = _START.size + DIGEST_BYTES + _LENGTH.size
_OPENING_BYTES, _CHALLENGE_BYTES = 64, _START.size + DIGEST_BYTES


class HandshakeKind(IntEnum):
    """PROOF and ANSWER carry a hello and what the mesh adds; REFUSAL says why the job can't begin; FLOW opens a further
    connection between two members that have met."""

    OPENING, CHALLENGE, PROOF, ANSWER, REFUSAL, FLOW = range(6)


def trouble_of(error: DecodeError) -> str:
    """The fault of a peer whose message raised it, as a text."""
    return error.detail if error.reason in ("no_proof", "version") else "what answers there speaks another protocol"


def unknown_senders_text(unknown_senders: int) -> str:
    """For an error about members that didn't come; "" without unknown senders."""
    return f"; peers that did not prove that they have this job's token: {unknown_senders}" if unknown_senders else ""


def size_bytes(prefix: bytes | bytearray) -> int:
    """How long the message is that begins so; less than that while its start isn't there yet. Raises DecodeError as
    soon as it can be none."""
    if prefix[: len(MAGIC)] != MAGIC[: len(prefix)]:
        raise DecodeError("no_hello", "wrong magic")
    if len(prefix) < _START.size:
        return _START.size
    kind, version = prefix[6], prefix[7]
    if kind == HandshakeKind.OPENING:
        return _OPENING_BYTES
    if version != VERSION:
        raise DecodeError("version", f"it speaks version {version} of the handshake, this member version {VERSION}")
    if kind == HandshakeKind.CHALLENGE:
        return _CHALLENGE_BYTES
    if kind > max(HandshakeKind):
        raise DecodeError("no_hello", f"kind {kind}")
    if len(prefix) < _BODY:
        return _BODY
    length = int.from_bytes(prefix[_BODY - _LENGTH.size : _BODY], "big")
    if length > BODY_BYTES_MAX:
        raise DecodeError("no_hello", f"a body of {length} bytes")
    return _BODY + length


def kind_of(message: bytes | bytearray) -> HandshakeKind:
    """The kind of a whole message. Raises DecodeError for other bytes."""
    if len(message) < _START.size or len(message) != size_bytes(message):
        raise DecodeError("no_hello", f"{len(message)} bytes")
    return HandshakeKind(message[6])


def nonce_of(message: bytes | bytearray) -> bytes:
    """The nonce of a whole message."""
    return bytes(message[8 : _START.size])


@dataclass(frozen=True, slots=True)
class PeerSession:
    """The session of two members that have proved themselves; it seals what one sends to the other.

    dialing: whether this side is the dialer.
    """

    key: bytes
    dialer_nonce: bytes
    listener_nonce: bytes
    dialing: bool

    def seal(self, kind: HandshakeKind, body: bytes) -> bytes:
        """A message to the other side; body: at most BODY_BYTES_MAX."""
        digest = self._digest(self.dialing, kind, body)
        start = _START.pack(MAGIC, kind, VERSION, self.dialer_nonce)
        return start + digest + _LENGTH.pack(len(body)) + body

    def refusal(self, words: str) -> bytes:
        """Why the job can't begin, as a message; long words are cut."""
        return self.seal(HandshakeKind.REFUSAL, words.encode()[:BODY_BYTES_MAX])

    def open(self, kind: HandshakeKind, message: bytes | bytearray) -> bytes:
        """The body of a message of the other side. Raises DecodeError for what isn't of this kind and sealed by it."""
        if kind_of(message) is not kind or nonce_of(message) != self.dialer_nonce:
            raise DecodeError("no_hello", f"kind {message[6]}, or of another handshake")
        body = bytes(message[_BODY:])
        digest = bytes(message[_START.size : _START.size + DIGEST_BYTES])
        if not hmac.compare_digest(digest, self._digest(not self.dialing, kind, body)):
            raise DecodeError("no_proof", NO_PROOF)
        return body

    def _digest(self, by_dialer: bool, kind: HandshakeKind, body: bytes) -> bytes:
        sealed = bytes((by_dialer, kind)) + self.dialer_nonce + self.listener_nonce + body
        return hashlib.blake2b(sealed, digest_size=DIGEST_BYTES, key=self.key, person=b"sa handshake").digest()

    def challenge(self) -> bytes:
        """The listener's: its nonce, and its proof."""
        start = _START.pack(MAGIC, HandshakeKind.CHALLENGE, VERSION, self.listener_nonce)
        return start + self._digest(False, HandshakeKind.CHALLENGE, b"")

    @classmethod
    def challenged(cls, key: bytes, dialer_nonce: bytes, message: bytes | bytearray) -> Self:
        """The dialer's, when the challenge has come. Raises DecodeError where it doesn't prove that the listener has
        the key."""
        if kind_of(message) is not HandshakeKind.CHALLENGE:
            raise DecodeError("no_hello", f"kind {message[6]}")
        nonce = nonce_of(message)
        if not hmac.compare_digest(bytes(message), cls(key, dialer_nonce, nonce, False).challenge()):
            raise DecodeError("no_proof", NO_PROOF)
        return cls(key, dialer_nonce, nonce, True)


def pack_opening(nonce: bytes) -> bytes:
    """The first message of a dialer; nonce: NONCE_BYTES random bytes, new for every attempt."""
    return _START.pack(MAGIC, HandshakeKind.OPENING, VERSION, nonce).ljust(_OPENING_BYTES, b"\0")


@dataclass(frozen=True, slots=True)
class Listener:
    """The listening side of one member. It keeps nothing about who opens a handshake: its nonce follows from `secret`,
    random bytes of this process, from the place where the opening came from, and from the dialer's nonce.
    """

    key: bytes
    secret: bytes

    def challenge(self, opening: bytes | bytearray, place: bytes) -> bytes:
        """The answer to an opening, which is shorter than that. place: the same as of `session`, of no other
        connection. Raises DecodeError."""
        if kind_of(opening) is not HandshakeKind.OPENING:
            raise DecodeError("no_hello", f"kind {opening[6]}")
        return self._session(nonce_of(opening), place).challenge()

    def session(self, proof: bytes | bytearray, place: bytes) -> tuple[PeerSession, bytes]:
        """The session that a proof begins, and the proof's body. Raises DecodeError where it proves nothing."""
        session = self._session(nonce_of(proof), place)
        return session, session.open(HandshakeKind.PROOF, proof)

    def _session(self, dialer_nonce: bytes, place: bytes) -> PeerSession:
        nonce = hashlib.blake2b(dialer_nonce + place, digest_size=NONCE_BYTES, key=self.secret).digest()
        return PeerSession(self.key, dialer_nonce, nonce, False)
