"""The meshes that the contract is tested on, all of `transport.links.link_kinds`; what its tests must know of each."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rank_threads import outcomes

from transport.links.link import Address
from transport.links.link_kinds import LINKS, links_with
from transport.meshes.mesh import Event, Mesh, MessageReceived, Place
from transport.meshes.mesh_opening import connect_mesh
from transport.meshes.tcp_mesh import TcpMesh
from transport.meshes.udp_mesh import UdpMesh, UdpMeshOptions
from transport.rdma.rdma_mesh import RdmaMesh
from transport.zeromq.zmq_mesh import ZeroMqMesh

LIVENESS_S = 120.0


def tcp(member: int, addresses: Sequence[Address], **how: Any) -> Mesh:
    return TcpMesh.connect(member, addresses, **how)


def udp(member: int, addresses: Sequence[Address], **how: Any) -> Mesh:
    return UdpMesh.connect(member, addresses, options=UdpMeshOptions(silence_s=3.0), **how)


def zeromq(member: int, addresses: Sequence[Address], **how: Any) -> Mesh:
    return ZeroMqMesh.connect(member, addresses, **how)


def rdma(member: int, addresses: Sequence[Address], **how: Any) -> Mesh:
    return RdmaMesh.connect(member, addresses, **how)


def send_over_tcp(address: Address, data: bytes) -> socket.socket:
    """An unknown peer that connects and sends `data`; the connection stays open."""
    unknown_sender = socket.create_connection(address, timeout=LIVENESS_S)
    with contextlib.suppress(OSError):  # it may have been sent away in the middle
        unknown_sender.sendall(data)
    return unknown_sender


def send_over_udp(address: Address, data: bytes) -> socket.socket:
    """An unknown sender of `data`, as datagrams of many sizes."""
    unknown_sender = socket.socket(type=socket.SOCK_DGRAM)
    unknown_sender.connect(address)
    for size in (len(data), 0, 1, 10, 31, 33):
        with contextlib.suppress(OSError):  # nobody is there yet
            unknown_sender.send(data[:size])
    return unknown_sender


@dataclass(frozen=True)
class MeshKind:
    """connect(member, addresses, job=, method=, timeout_s=): a mesh that finds out within seconds that a peer is dead.

    unknown_sender(address, data): someone who sends bytes to a member's port; has `close`.
    """

    connect: Callable[..., Mesh]
    unknown_sender: Callable[[Address, bytes], Any]


def by_table(name: str) -> MeshKind:
    """The mesh of a link that needs nothing special."""

    def connect(
        member: int, addresses: Sequence[Address], job: str = "", method: str = "", classes: Any = (), **how: Any
    ) -> Mesh:
        options = {"priorities": classes} if classes else {}
        return connect_mesh(name, member, addresses, job=job, method=method, options=options, **how)

    return MeshKind(connect, send_over_tcp if LINKS[name].framing.stream else send_over_udp)


KINDS: dict[str, MeshKind] = {
    **{name: by_table(name) for name in links_with("mesh")},
    "tcp": MeshKind(tcp, send_over_tcp),
    "udp": MeshKind(udp, send_over_udp),
    "zeromq": MeshKind(zeromq, send_over_tcp),
    "rdma": MeshKind(rdma, send_over_tcp),
}

CLASSES = (0, 3, 7)


def free_addresses(count: int) -> list[Address]:
    """Ports that are free for TCP and UDP, below those that the kernel assigns automatically."""
    chance = random.Random(os.getpid() * 1_000_003 + time.monotonic_ns())
    found: list[Address] = []
    while len(found) < count:
        address = ("127.0.0.1", chance.randrange(10_000, 32_000))
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram, contextlib.suppress(OSError):
            stream.bind(address)
            datagram.bind(address)
            if address not in found:
                found.append(address)
    return found


def connect_all(kind: MeshKind, addresses: Sequence[Address], how: Sequence[dict[str, Any]]) -> list[Any]:
    """What each member's connect returned or raised, each in a thread of its own; how: further arguments of each."""

    def run(place: int) -> Any:
        return kind.connect(**{"member": place, "addresses": addresses, "timeout_s": LIVENESS_S, **how[place]})

    return outcomes(len(how), run)


def turn(
    meshes: Sequence[Mesh], done: Callable[[list[list[Event]]], bool], places: Sequence[Place | None] | None = None
) -> list[list[Event]]:
    """Run `wait` and `receive` of these meshes until `done(events)`, one list of events per mesh; or fail."""
    events: list[list[Event]] = [[] for _ in meshes]
    end = time.monotonic() + LIVENESS_S
    while not done(events):
        assert time.monotonic() < end, f"still not done; the last events: {[found[-3:] for found in events]}"
        for number, mesh in enumerate(meshes):
            events[number] += mesh.receive(places[number] if places else None)
        if not done(events):
            meshes[0].wait(0.0005)
    return events


def received(events: Sequence[Event]) -> list[tuple[int, bytes, bytes]]:
    """(sender, head, data) of the messages among them."""
    return [(e.sender, e.head, bytes(e.data)) for e in events if isinstance(e, MessageReceived)]
