"""The links, one entry each. A new link is a class in a room of its own, and one entry here that names what opens it.

Importing the table loads no link: entries name what opens them, and facts come from modules without sockets.
"""

from switchagg.wire import HEADER_BYTES
from transport.links.framing import (
    IP_TCP_BYTES,
    IP_UDP_BYTES,
    RELIABLE_BYTES,
    ROCE_BYTES,
    ROCE_EXTENDED_BYTES,
    ROCE_MTUS,
    ROCE_PORT,
    Framing,
)
from transport.links.link_kind import LinkKind

LINKS = {
    kind.name: kind
    for kind in (
        LinkKind(
            "tcp",
            "TCP",
            Framing(IP_TCP_BYTES, stream=True),
            congestion_control=True,
            place="transport.meshes.mesh_opening:bind_tcp",
            mesh="transport.meshes.tcp_mesh:open_mesh",
        ),
        LinkKind(
            "zeromq",
            "ZeroMQ",
            Framing(IP_TCP_BYTES, stream=True),
            keys=True,
            secrets=True,
            link="transport.zeromq.zmq_link:ZeroMqLink",
            place="transport.meshes.mesh_opening:bind_shared",
            mesh="transport.zeromq.zmq_mesh:open_mesh",
            switch="transport.switch.switch_endpoints:open_zeromq",
            worker="transport.worker.worker_endpoints:open_zeromq",
        ),
        LinkKind(
            "udp",
            "UDP",
            Framing(IP_UDP_BYTES, mesh_bytes=RELIABLE_BYTES),
            in_kernel=True,
            impairments=True,
            trees=True,
            packets=True,
            tags=True,
            link="transport.links.udp_link:UdpLink",
            place="transport.meshes.mesh_opening:bind_udp",
            mesh="transport.meshes.udp_mesh:open_mesh",
            switch="transport.switch.switch_endpoints:open_udp",
            worker="transport.worker.worker_endpoints:open_udp",
        ),
        LinkKind(
            "rdma",
            "RDMA",
            Framing(IP_UDP_BYTES + ROCE_BYTES, path_mtus=ROCE_MTUS, extended_bytes=ROCE_EXTENDED_BYTES),
            elements=(1024 - HEADER_BYTES) // 4,  # MTU 1024: the largest whose packets fit an Ethernet MTU of 1500
            port=ROCE_PORT,
            own_address=True,
            only_plane="native",
            messages=True,
            header_only=False,
            place="transport.meshes.mesh_opening:bind_tcp",
            mesh="transport.rdma.rdma_mesh:open_mesh",
            switch="transport.switch.rdma_switch:open_switch",
            worker="transport.worker.rdma_worker:open_worker",
        ),
    )
}
"""By name, in the order in which they are listed to users."""


def links_with(end: str) -> tuple[str, ...]:
    """Names of the links that have such an end: "mesh", "packets" (a mesh that carries them, too) or "switch"."""
    return tuple(name for name, kind in LINKS.items() if getattr(kind, end))
