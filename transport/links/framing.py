"""Framing: what a link puts around the bytes it carries, on Ethernet and IPv4. All sizes are bytes."""

from dataclasses import dataclass

from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.links.ethernet import ETHERNET_BYTES

IP_UDP_BYTES = 28
RELIABLE_BYTES = 32
"""Bytes that transport/meshes/reliable.py adds to every packet."""

IP_TCP_BYTES = 52
"""With the timestamp option, as Linux sends it."""

ROCE_PORT = 4791
ROCE_BYTES, ROCE_EXTENDED_BYTES = 16, 20
"""Of RoCEv2: BTH and ICRC in every packet; RETH and immediate data in some."""

ROCE_MTUS = (256, 512, 1024, 2048, 4096)
"""Payload bytes of a packet. A path's IP MTU must be at least 64 more (84 over IPv6): 1024 suits 1500."""

DATAGRAM_BYTES_MAX = 65_507
"""Largest UDP payload over IPv4; every link takes chunk frames up to it."""


@dataclass(frozen=True)
class Framing:
    """How chunk frames of the switch, and messages of a mesh, become packets.

    packet_bytes: headers of every packet from IP on. mesh_bytes: what a mesh over this link adds in every packet.
    stream: chunk frames lie in a TCP stream, whose packets fill the MTU; else each is a packet. path_mtus: the only
    sizes of a full packet's payload, ascending; (): any. extended_bytes: further headers, which only some packets have.
    """

    packet_bytes: int
    mesh_bytes: int = 0
    stream: bool = False
    path_mtus: tuple[int, ...] = ()
    extended_bytes: int = 0

    def payload_bytes(self, mtu_bytes: int) -> int:
        """The most that one packet carries at an IP MTU, headers of a mesh included."""
        room = mtu_bytes - self.packet_bytes - self.extended_bytes
        if not self.path_mtus:
            return room
        return max((size for size in self.path_mtus if size <= room), default=self.path_mtus[0])

    def ethernet_bytes(self, payload_bytes: int) -> int:
        """A packet with so much payload, as the interface counts it."""
        return payload_bytes + self.packet_bytes + ETHERNET_BYTES

    def elements_for(self, mtu_bytes: int, elements: int) -> int:
        """E of a job that asks for `elements`: those, or as many as fill the path MTU where frames must."""
        return (self.payload_bytes(mtu_bytes) - HEADER_BYTES) // 4 if self.path_mtus else elements

    def elements_fault(self, elements: int, link: str) -> str:
        """Why chunk frames of so many values can't be carried, and what to do; "" if they can."""
        size = frame_bytes(elements)
        if self.path_mtus and size not in self.path_mtus:
            fitting = ", ".join(f"{(mtu - HEADER_BYTES) // 4} (MTU {mtu})" for mtu in self.path_mtus)
            return f"elements {elements}: over {link} a frame fills the path MTU, so one of {fitting}"
        if size > DATAGRAM_BYTES_MAX:
            return f"elements {elements}: over {link} at most {(DATAGRAM_BYTES_MAX - HEADER_BYTES) // 4}"
        return ""
