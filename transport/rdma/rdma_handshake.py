"""The handshake of an RDMA mesh over TCP, after the rendezvous: the members exchange their ends of queue pairs."""

import socket
import struct
from typing import NamedTuple, Self

from switchagg.errors import JobError
from transport.links.framing import ROCE_MTUS
from transport.rdma.soft import mtu_for
from transport.rdma.verbs import QPEnd

_IP_MTU = 14
_HOST_BYTES = 46  # an IPv6 address as text
_END = struct.Struct(f">6s{_HOST_BYTES}sHIIIHI")
_MAGIC = b"sardma"


class MeshQueuePair(NamedTuple):
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
        if magic != _MAGIC or mtu not in ROCE_MTUS or number >> 24 or psn >> 24:
            raise JobError("a member speaks another version of the RDMA mesh")
        try:
            text = host.rstrip(b"\0").decode("ascii")
        except UnicodeDecodeError:
            raise JobError("a member's address is no text") from None
        return cls(QPEnd(text, port, number, psn), mtu, slots, slot_bytes)


def path_mtu_of(connection: socket.socket) -> int:
    """The largest MTU of RoCE whose packets fit the path of this TCP connection. Raises JobError if none does."""
    return mtu_for(connection.getsockopt(socket.IPPROTO_IP, _IP_MTU))
