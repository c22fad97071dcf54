"""A toy link in one file: bundles and messages over UDP under another name. Its line in the table is the last.

Also a plugin of pytest: `-p tests.transport.links.toy_link` has the contract's tests run on it.
"""

from collections.abc import Sequence
from typing import Any

from transport.links.framing import IP_UDP_BYTES, RELIABLE_BYTES, Framing
from transport.links.link import Address
from transport.links.link_kind import LinkKind
from transport.links.link_kinds import LINKS
from transport.links.udp_link import UdpLink
from transport.meshes.mesh_opening import BoundPlace
from transport.meshes.udp_mesh import UdpMesh, UdpMeshOptions

HERE = "tests.transport.links.toy_link"


class ToyLink(UdpLink):
    """A link."""


class ToyMesh(UdpMesh):
    """A mesh."""

    link = "toy"


def bind_place(host: str) -> BoundPlace:
    link = ToyLink((host, 0))
    return BoundPlace(link.address, link)


def open_mesh(
    member: int, addresses: Sequence[Address], options: dict[str, Any], bound: BoundPlace | None, **how: Any
) -> ToyMesh:
    link = bound.take() if bound is not None else None
    mesh = ToyMesh.connect(member, addresses, options=UdpMeshOptions(silence_s=3.0), link=link, **how)
    assert isinstance(mesh, ToyMesh)
    return mesh


TOY = LinkKind(
    "toy",
    "Toy",
    Framing(IP_UDP_BYTES, mesh_bytes=RELIABLE_BYTES),
    elements=100,
    link=f"{HERE}:ToyLink",
    place=f"{HERE}:bind_place",
    mesh=f"{HERE}:open_mesh",
    switch="transport.switch.switch_endpoints:open_link",
    worker="transport.worker.worker_endpoints:open_link",
)

LINKS["toy"] = TOY
