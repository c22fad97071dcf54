"""LinkKind: everything the rest of the code must know of a link, without importing it."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import ELEMENTS_MTU_1500
from transport.links.framing import Framing


@dataclass(frozen=True)
class LinkKind:
    """A kind of link. The function that opens it is written "module:attribute" and imported when first used.

    name: as on command lines. label: as in reports. elements: E of jobs that ask for none. port: the only one its
    switch can have; None: any. own_address: whether the switch needs an address of its own, no wildcard.
    only_plane: the one data plane its switch can have; "": all in user space. in_kernel: whether data planes in the
    kernel serve it. impairments: whether the switch emulates bad ones. keys: whether it encrypts (CURVE). secrets:
    whether its switch knows members by their joins' secrets (C15). messages: whether packets are joined to
    messages. header_only: whether it carries packets of any size (P2). trees: whether its switches may be below
    others (H1). tags: whether packets have room for tags (A1). packets: whether its mesh carries packets that may
    be lost, too (`UdpMesh.carry_packets`). congestion_control: whether its mesh lets one choose TCP's
    (`transport.meshes.tcp_gathering.TcpOptions`).
    """

    name: str
    label: str
    framing: Framing
    elements: int = ELEMENTS_MTU_1500
    port: int | None = None
    own_address: bool = False
    only_plane: str = ""
    in_kernel: bool = False
    impairments: bool = False
    keys: bool = False
    secrets: bool = False
    messages: bool = False
    header_only: bool = True
    trees: bool = False
    packets: bool = False
    tags: bool = False
    congestion_control: bool = False
    link: str = ""
    """The class of its links (`transport.links.link.Link`), made with the address to bind; "": its ends are none."""
    place: str = ""
    """bind_place(host) -> BoundPlace: a port, bound before the mesh is opened."""
    mesh: str = ""
    """open_mesh(member, addresses, options, bound, **fields of `Meeting`) -> Mesh; "": it carries no messages."""
    switch: str = ""
    """open_switch(options: DaemonOptions, log, on_failure) -> SwitchEndpoint; "": it carries no switch."""
    worker: str = ""
    """open_worker(options: JoinOptions, host) -> WorkerEndpoint."""

    def opener(self, end: str) -> Any:
        """The function that opens an end: "link", "place", "mesh", "switch" or "worker"."""
        where: str = getattr(self, end)
        module, _, name = where.partition(":")
        return getattr(import_module(module), name)

    def takes_plane(self, name: str) -> bool:
        """Whether its switch can have this data plane."""
        return name == self.only_plane if self.only_plane else self.in_kernel or not DATAPLANES[name].in_kernel

    def elements_fault(self, elements: int) -> str:
        """Why its packets can't carry chunk frames of so many values, and the remedy; "" if they can."""
        return self.framing.elements_fault(elements, self.label)

    def check_elements(self, elements: int) -> None:
        """Raise JobError for an `elements_fault`."""
        if fault := self.elements_fault(elements):
            raise JobError(fault)
