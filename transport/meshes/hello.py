"""The handshake of two members of a mesh: who they are, and which job and method they belong to. Pure.

Both sides send a hello and check the other's with `disagreement`, so that both can name what doesn't fit. A hello is

     0 6 bytes magic "sahelo" | 6 u16 version | 8 u16 member | 10 u16 members | 12 u16 whom it is meant for
    14 u8 lengths of job, method, link | 17 job, method, link in UTF-8

Who finds a disagreement passes it on to all others, who would wait for a member that won't come. A refusal is

     0 6 bytes magic "sarefu" | 6 u16 length | 8 words in UTF-8
"""

import struct
from dataclasses import dataclass

from switchagg.errors import DecodeError

MAGIC = b"sahelo"
VERSION = 2
HELLO_BYTES_MAX = 17 + 3 * 255
ANYBODY = 0xFFFF
REFUSAL_BYTES_MAX = 1008

TELL_S = 3.0
"""How long who knows of a disagreement waits for members that don't, to tell them."""

_START = struct.Struct(">6sHHHHBBB")
_REFUSAL = struct.Struct(">6sH")
_REFUSAL_MAGIC = b"sarefu"


@dataclass(frozen=True)
class Hello:
    """Member `member` of `members`, which came for `job`, to do `method` over `link` (each at most 255 bytes).

    to: the member for whom it is meant, or ANYBODY.
    """

    job: str
    method: str
    link: str
    member: int
    members: int
    to: int = ANYBODY
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in ("job", "method", "link"):
            if len(getattr(self, name).encode()) > 255:
                raise ValueError(f"{name} of more than 255 bytes")
        if not 0 <= self.member < self.members < ANYBODY:
            raise ValueError(f"member {self.member} of {self.members}")
        if not 0 <= self.to <= ANYBODY:
            raise ValueError(f"meant for member {self.to}")

    def pack(self) -> bytes:
        """As it is sent."""
        texts = [text.encode() for text in (self.job, self.method, self.link)]
        start = _START.pack(MAGIC, self.version, self.member, self.members, self.to, *map(len, texts))
        return start + b"".join(texts)


def size_bytes(begun: bytes | bytearray) -> int:
    """How long the hello is that begins so; of the first part while that isn't there yet.

    Raises DecodeError as soon as it can be none.
    """
    if begun[: len(MAGIC)] != MAGIC[: len(begun)]:
        raise DecodeError("no_hello", "wrong magic")
    if len(begun) < _START.size:
        return _START.size
    return _START.size + sum(begun[_START.size - 3 : _START.size])


def unpack(data: bytes | bytearray) -> Hello:
    """The hello that `data` is, exactly. One of another version has no names. Raises DecodeError."""
    if len(data) < _START.size or len(data) != size_bytes(data):
        raise DecodeError("no_hello", f"{len(data)} bytes")
    _, version, member, members, to, *lengths = _START.unpack_from(data)
    texts = []
    at = _START.size
    try:
        for length in lengths:
            texts.append(bytes(data[at : at + length]).decode() if version == VERSION else "")
            at += length
        return Hello(texts[0], texts[1], texts[2], member, members, to, version)
    except ValueError as error:
        raise DecodeError("no_hello", str(error)) from error


def pack_refusal(words: str) -> bytes:
    """As it is sent; long words are cut."""
    text = words.encode()[: REFUSAL_BYTES_MAX - _REFUSAL.size]
    return _REFUSAL.pack(_REFUSAL_MAGIC, len(text)) + text


def refusal_in(begun: bytes) -> str:
    """The words of the refusal that `begun` starts with; "" if that is none, or not whole."""
    if len(begun) < _REFUSAL.size or begun[: len(_REFUSAL_MAGIC)] != _REFUSAL_MAGIC:
        return ""
    text = begun[_REFUSAL.size :][: _REFUSAL.unpack_from(begun)[1]]
    return text.decode(errors="replace") if len(text) == _REFUSAL.unpack_from(begun)[1] else ""


def disagreement(mine: Hello, theirs: Hello, place: str, expected: int | None = None) -> str:
    """Why two members don't fit, as a text that names both sides; "" if they do.

    place: where theirs came from. expected: the number that the one there should have, if that is known.
    """
    they, we = f"member {theirs.member} at {place}", f"this member {mine.member}"
    if theirs.version != mine.version:
        return f"{they} speaks version {theirs.version} of the protocol, {we} version {mine.version}"
    differing = [
        (f"{label} '{getattr(theirs, name)}'", f"'{getattr(mine, name)}'")
        for name, label in (("job", "job"), ("method", "method"), ("link", "link"), ("members", "members"))
        if getattr(theirs, name) != getattr(mine, name)
    ]
    if differing:
        return f"{they} came for {', '.join(a for a, _ in differing)}, {we} for {', '.join(b for _, b in differing)}"
    if theirs.member == mine.member:
        return f"the one at {place} says it is member {theirs.member}, as {we} is"
    if expected is not None and theirs.member != expected:
        return f"the one at {place} says it is member {theirs.member}; {we} was told that member {expected} is there"
    if theirs.to not in (ANYBODY, mine.member):
        return f"{they} looks for member {theirs.to} where {we} is"
    return ""
