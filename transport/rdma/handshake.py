"""The handshake of an RDMA mesh over TCP, after the rendezvous: the members exchange their ends of queue pairs."""

import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import NamedTuple, Self

from switchagg.errors import JobError
from transport.rdma.soft import mtu_for
from transport.rdma.verbs import MTUS, QPEnd

_IP_MTU = 14
_HOST_BYTES = 46  # an IPv6 address as text
_END = struct.Struct(f">6s{_HOST_BYTES}sHIIIHI")
_MAGIC = b"sardma"


class MeshEnd(NamedTuple):
    """A member's end of the queue pair for one peer, its path's MTU, and the ring in which it receives."""

    end: QPEnd
    mtu: int
    slots: int
    slot_bytes: int

    def pack(self) -> bytes:
        """As it is sent."""
        host, port, number, psn = self.end
        return _END.pack(_MAGIC, host.encode(), port, number, psn, self.mtu, self.slots, self.slot_bytes)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises JobError for what is none."""
        magic, host, port, number, psn, mtu, slots, slot_bytes = _END.unpack(data)
        if magic != _MAGIC or mtu not in MTUS or number >> 24 or psn >> 24:
            raise JobError("a member speaks another version of the RDMA mesh")
        try:
            text = host.rstrip(b"\0").decode("ascii")
        except UnicodeDecodeError:
            raise JobError("a member's address is no text") from None
        return cls(QPEnd(text, port, number, psn), mtu, slots, slot_bytes)


def path_mtu_of(connection: socket.socket) -> int:
    """The largest MTU of RoCE whose packets fit the path of this TCP connection. Raises JobError if none does."""
    return mtu_for(connection.getsockopt(socket.IPPROTO_IP, _IP_MTU))


def exchange(
    connections: Mapping[int, socket.socket], ours: Mapping[int, bytes], until: float, job: str
) -> dict[int, bytes]:
    """Send each member its bytes and receive as many from each, until then. Raises JobError naming those that sent
    nothing."""
    for member, connection in connections.items():
        try:
            connection.send(ours[member])  # far less than any socket takes at once
        except OSError as error:
            raise JobError(f"job {job}: member {member} is gone: {error.strerror}") from error
    theirs = {member: b"" for member in connections}
    while missing := [member for member, data in theirs.items() if len(data) < len(ours[member])]:
        left_s = until - time.monotonic()
        if left_s <= 0:
            who = ", ".join(map(str, missing))
            raise JobError(f"job {job}: no queue pair from member {who} in time, though a connection is there")
        for ready in select.select([connections[member] for member in missing], [], [], left_s)[0]:
            member = next(member for member in missing if connections[member] is ready)
            try:
                data = ready.recv(len(ours[member]) - len(theirs[member]))
            except BlockingIOError:
                continue
            except OSError as error:
                raise JobError(f"job {job}: member {member} is gone: {error.strerror}") from error
            if not data:
                raise JobError(f"job {job}: member {member} has left before its queue pair was connected")
            theirs[member] += data
    return theirs
