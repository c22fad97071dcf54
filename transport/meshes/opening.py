"""The meshes by name: connected with one call, and places that are bound before their address is told to others."""

import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from switchagg.errors import JobError
from transport.links.link import Address
from transport.links.udp import UdpLink
from transport.meshes.mesh import Mesh
from transport.meshes.tcp import TcpMesh
from transport.meshes.tcp_gathering import TcpOptions, listen
from transport.meshes.udp import UdpMesh

MESHES = ("tcp", "udp", "zeromq", "rdma")


class BoundPlace:
    """A free port of this host, held until a mesh takes it over. Made by `bind_place`; `close` it if none does.

    address: what to tell the others.
    """

    def __init__(self, address: Address, holder: "socket.socket | UdpLink | None") -> None:
        self.address = address
        self._holder = holder

    def take(self) -> Any:
        """The socket or link that holds it, from now on the caller's."""
        holder, self._holder = self._holder, None
        return holder

    def close(self) -> None:
        """Give the port up, unless it was taken."""
        holder = self.take()
        if holder is not None:
            holder.close()


def bind_place(link: str, host: str) -> BoundPlace:
    """A free port at an address of this host. Raises JobError."""
    if link in ("tcp", "rdma"):
        listener = listen((host, 0))
        return BoundPlace(listener.getsockname(), listener)
    if link == "udp":
        udp = UdpLink((host, 0))
        return BoundPlace(udp.address, udp)
    # Bound but not listening: who binds it with SO_REUSEADDR, as ZeroMQ does, may have it.
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
    except OSError as error:
        held.close()
        raise JobError(f"can't bind {host}: {error}") from error
    return BoundPlace(held.getsockname(), held)


def connect_mesh(
    link: str,
    member: int,
    addresses: Sequence[Address],
    *,
    job: str,
    method: str,
    timeout_s: float,
    options: Mapping[str, Any] | None = None,
    bound: BoundPlace | None = None,
) -> Mesh:
    """Meet all members over a link. options: tcp: fields of TcpOptions; rdma: of RdmaMeshOptions; udp: `config`,
    `silence_s`, `tos`; others: arguments of their own `connect`. Raises JobError."""
    told = dict(options or {})
    how: dict[str, Any] = {"job": job, "method": method, "timeout_s": timeout_s}
    try:
        if link == "tcp":
            tcp = TcpOptions(**told)  # before a listener is taken that nobody would close
            listener = bound.take() if bound is not None else None
            return TcpMesh.connect(member, addresses, options=tcp, listener=listener, **how)
        if link == "udp":
            with contextlib.ExitStack() as failing:
                udp = bound.take() if bound is not None else None
                if udp is not None:
                    failing.callback(udp.close)
                mesh = UdpMesh.connect(member, addresses, link=udp, **told, **how)
                failing.pop_all()
                return mesh
        if link == "rdma":
            from transport.rdma.mesh import RdmaMesh, RdmaMeshOptions  # only where RDMA is asked for

            rdma = RdmaMeshOptions(**told)
            listener = bound.take() if bound is not None else None
            return RdmaMesh.connect(member, addresses, options=rdma, listener=listener, **how)
        with contextlib.ExitStack() as held:
            if bound is not None:
                held.callback(bound.close)
            if link == "zeromq":
                from transport.zeromq.mesh import ZeroMqMesh  # only where ZeroMQ is asked for

                return ZeroMqMesh.connect(member, addresses, **told, **how)
    except (TypeError, ValueError) as error:
        raise JobError(f"link {link}: {error}") from error
    raise JobError(f"link '{link}' carries no host method; there are: {', '.join(MESHES)}")
