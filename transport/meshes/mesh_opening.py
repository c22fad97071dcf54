"""Meshes by the name of their link (`transport.links.link_kinds`), and ports that are bound before their address is
sent to others."""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from switchagg.errors import JobError
from transport.links.link import Address
from transport.links.link_kinds import LINKS, links_with
from transport.links.udp_link import UdpLink
from transport.meshes.job_key import MAKE_ONE, TOKEN_VARIABLE, job_token
from transport.meshes.mesh import Mesh, checked_classes
from transport.meshes.tcp_gathering import listen

logger = logging.getLogger(__name__)


class BoundPlace:
    """A free port of this host, held until a mesh takes it over. Made by `bind_place`; `close` it if none does.

    address: what to send to the others.
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
    """A free port at an address of this host, for a mesh over this link. Raises JobError."""
    place: BoundPlace = LINKS[link].opener("place")(host)
    return place


def bind_tcp(host: str) -> BoundPlace:
    """A listening TCP socket."""
    listener = listen((host, 0))
    return BoundPlace(listener.getsockname(), listener)


def bind_udp(host: str) -> BoundPlace:
    """A UdpLink."""
    link = UdpLink((host, 0))
    return BoundPlace(link.address, link)


def bind_shared(host: str) -> BoundPlace:
    """A TCP port, bound but not listening: who binds it with SO_REUSEADDR, as ZeroMQ does, may have it."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
    except OSError as error:
        held.close()
        raise JobError(f"can't bind {host}: {error}") from error
    return BoundPlace(held.getsockname(), held)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def no_token_text(addresses: Sequence[Address]) -> str:
    """A warning that the job of these members has no token; "" where only this host reaches them."""
    for host, port in addresses:
        if not _is_loopback(host):
            return (
                f"no {TOKEN_VARIABLE}: whoever reaches {host}:{port} and knows the job's name may take part; set it to "
                f"the same secret for every member ({MAKE_ONE})"
            )
    return ""


def connect_mesh(
    link: str,
    member: int,
    addresses: Sequence[Address],
    *,
    options: Mapping[str, Any] | None = None,
    bound: BoundPlace | None = None,
    **meeting: Any,
) -> Mesh:
    """Meet all members over a link. meeting: fields of `Meeting`, its token as of `job_token`. options: fields of the
    mesh's own options: TcpOptions, UdpMeshOptions, RdmaMeshOptions; zeromq: `options`, `keys`. With them `priorities`:
    the classes of `Mesh.classes`, the same on all. bound: the mesh's from now on, or closed. Raises JobError."""
    with contextlib.ExitStack() as ending:
        if bound is not None:
            ending.callback(bound.close)
        if link not in links_with("mesh"):
            raise JobError(f"link '{link}' carries no host method; there are: {', '.join(links_with('mesh'))}")
        open_mesh = LINKS[link].opener("mesh")
        try:
            link_options = dict(options or {})
            how: dict[str, Any] = {**meeting, "token": job_token(meeting.get("token", ""))}
            if member == 0 and not (how["token"] or link_options.get("keys")) and (words := no_token_text(addresses)):
                logger.warning("job %s: %s", meeting.get("job", ""), words)
            if classes := checked_classes(link_options.pop("priorities", ())):
                how["classes"] = classes
            mesh: Mesh = open_mesh(member, addresses, link_options, bound, **how)
        except (TypeError, ValueError) as error:
            raise JobError(f"link {link}: {error}") from error
    return mesh
