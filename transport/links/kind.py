"""LinkKind: everything the rest of the code must know of a link, without importing it."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from switchagg.errors import JobError
from switchagg.job import ELEMENTS_MTU_1500
from transport.links.framing import Framing


@dataclass(frozen=True)
class LinkKind:
    """One link. What opens it is written "module:attribute" and imported when first used.

    name: as on command lines. label: as in reports. elements: E of jobs that ask for none. port: the only one its
    switch can have; None: any. own_address: whether the switch needs an address of its own, no wildcard. cores: what
    can carry a worker's packets, fastest first. only_plane: the one data plane its switch can have; "": all in user
    space. xdp: whether the switch in the kernel serves it. impairments: whether the switch emulates bad links on it.
    keys: whether it encrypts (CURVE). messages: whether packets are joined to messages.
    """

    name: str
    label: str
    framing: Framing
    elements: int = ELEMENTS_MTU_1500
    port: int | None = None
    own_address: bool = False
    cores: tuple[str, ...] = ("python",)
    only_plane: str = ""
    xdp: bool = False
    impairments: bool = False
    keys: bool = False
    messages: bool = False
    place: str = ""
    """bind_place(host) -> BoundPlace: a port, bound before the mesh is opened."""
    mesh: str = ""
    """open_mesh(member, addresses, options, bound, job=, method=, timeout_s=) -> Mesh; "": it carries no messages."""
    switch: str = ""
    """Opens the switch's end; "": it carries no switch."""
    worker: str = ""
    """Opens the worker's end."""

    def opener(self, end: str) -> Any:
        """The function that opens an end: "place", "mesh", "switch" or "worker"."""
        where: str = getattr(self, end)
        module, _, name = where.partition(":")
        return getattr(import_module(module), name)

    def takes_plane(self, name: str) -> bool:
        """Whether its switch can have this data plane."""
        return name == self.only_plane if self.only_plane else self.xdp or name != "xdp"

    def check_elements(self, elements: int) -> None:
        """Raise JobError, with the remedy, if its packets can't carry chunk frames of so many values."""
        if fault := self.framing.elements_fault(elements, self.label):
            raise JobError(fault)
