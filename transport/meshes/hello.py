"""The two members of a handshake, and the job and method that they belong to. This module is pure.

The two send a hello once the other has proved that it has the job's token (`transport.meshes.mesh_handshake`), and
check the other's with `disagreement`, so that both can name what doesn't fit. A hello is

     0 u16 member | 2 u16 members | 4 u16 whom it is meant for | 6 u8 lengths of job, method, link
     9 job, method, link in UTF-8

A member that finds a disagreement passes it on to all others, which would wait for a member that won't come.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from switchagg.errors import DecodeError
from transport.meshes.job_key import job_key
from transport.meshes.mesh import link_text

HELLO_BYTES_MAX = 9 + 3 * 255
ANYBODY = 0xFFFF

TELL_S = 3.0
"""How long who knows of a disagreement waits for members that don't, to tell them."""

_START = struct.Struct(">HHHBBB")


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
        start = _START.pack(self.member, self.members, self.to, *map(len, texts))
        return start + b"".join(texts)


@dataclass(frozen=True)
class Meeting:
    """The terms of a mesh's members. job, method, token: the same on all. timeout_s: they meet within it. sleeper_s:
    over TCP, how long a member may take whose process has its port and doesn't answer: it was stopped. cancelled: once
    it is set, nobody is waited for."""

    job: str = ""
    method: str = ""
    token: str = field(default="", repr=False)
    timeout_s: float = 30.0
    sleeper_s: float = 0.0
    cancelled: threading.Event | None = None

    @property
    def key(self) -> bytes:
        """The key that members prove to each other."""
        return job_key(self.token, self.job)

    def hello(self, link: str, classes: Sequence[int], member: int, members: int) -> Hello:
        """The hello of a member, over a link with these classes. Raises ValueError."""
        return Hello(self.job, self.method, link_text(link, classes), member, members)


def unpack(data: bytes) -> tuple[Hello, bytes]:
    """The hello that `data` begins with, and what follows it. Raises DecodeError."""
    if len(data) < _START.size:
        raise DecodeError("no_hello", f"{len(data)} bytes")
    member, members, to, *lengths = _START.unpack_from(data)
    texts = []
    at = _START.size
    if len(data) < at + sum(lengths):
        raise DecodeError("no_hello", f"{len(data)} bytes")
    try:
        for length in lengths:
            texts.append(data[at : at + length].decode())
            at += length
        return Hello(texts[0], texts[1], texts[2], member, members, to), data[at:]
    except ValueError as error:
        raise DecodeError("no_hello", str(error)) from error


def disagreement(local: Hello, remote: Hello, place: str, expected: int | None = None) -> str:
    """Why two members don't fit (M6), as a text that names both sides; "" if they do.

    place: where theirs came from. expected: the number that the one there should have, if that is known.
    """
    they, we = f"member {remote.member} at {place}", f"this member {local.member}"
    differing = [
        (f"{label} '{getattr(remote, name)}'", f"'{getattr(local, name)}'")
        for name, label in (("job", "job"), ("method", "method"), ("link", "link"), ("members", "members"))
        if getattr(remote, name) != getattr(local, name)
    ]
    if differing:
        return f"{they} came for {', '.join(a for a, _ in differing)}, {we} for {', '.join(b for _, b in differing)}"
    if remote.member == local.member:
        return f"the one at {place} says it is member {remote.member}, as {we} is"
    if expected is not None and remote.member != expected:
        return f"the one at {place} says it is member {remote.member}; {we} was told that member {expected} is there"
    if remote.to not in (ANYBODY, local.member):
        return f"{they} looks for member {remote.to} where {we} is"
    return ""
