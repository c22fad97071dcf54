"""The data planes, an entry each. Importing the table loads none of them, and no NumPy: the command line has it too."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from switchagg.errors import JobError

if TYPE_CHECKING:
    from switchagg.dataplane.contract import DataPlane
    from switchagg.job import JobConfig

Make = Callable[[int, int], "DataPlane"]
"""make(slots, elements). Raises JobError where what the plane needs is missing, saying what."""


@dataclass(frozen=True, slots=True)
class PlaneKind:
    """A data plane as the rest of the project knows it. Called with (slots, elements) it makes one; see `Make`.

    make: or "module:attribute", imported when the first one is made; None: it runs in the kernel, among the interfaces
    of a host (`transport.switch.xdp`), never in virtual time.
    summary: half a line for tables and help. measured: how the benchmark measures it in memory; "": it doesn't.
    colour: in its figures.
    elements_most: the largest E it holds; None: any. tested: `auto` takes it if its self-test passes, the first in the
    table before the next. compiled: it needs the compiled core. program: it runs a P4 program, which may be a user's.
    routes: it knows who gives and who gets a chunk (S4, S6); else jobs send all values to all (W15).
    leaf: it may be below another switch (H1). partial: it has partial sums (Q1).
    """

    name: str
    make: str | Make | None
    summary: str
    measured: str = ""
    colour: str = "#CC79A7"
    elements_most: int | None = None
    tested: bool = False
    compiled: bool = False
    program: bool = False
    routes: bool = True
    leaf: bool = False
    partial: bool = False

    def __call__(self, slots: int, elements: int) -> "DataPlane":
        if self.make is None:
            raise JobError(f"data plane {self.name} runs in the kernel; choose another, or start a switch with it")
        if not isinstance(self.make, str):
            return self.make(slots, elements)
        module, _, name = self.make.partition(":")
        plane: DataPlane = getattr(import_module(module), name)(slots, elements)
        return plane

    @property
    def in_kernel(self) -> bool:
        return self.make is None

    def fitting(self, elements: int) -> int:
        """The elements that a packet of the plane holds: so many, or the plane's most."""
        return elements if self.elements_most is None else min(elements, self.elements_most)


def check_parent(name: str, parent: object | None) -> None:
    """Raise JobError if a data plane that can't be below another switch is given a parent."""
    if parent is not None and not DATAPLANES[name].leaf:
        able = ", ".join(kind.name for kind in DATAPLANES.values() if kind.leaf)
        raise JobError(f"data plane {name} can't be below another switch; take one of {able}")


def check_partial(name: str, job: "JobConfig") -> None:
    """Raise JobError for a job with partial sums, of a data plane that has none."""
    if job.partial and not DATAPLANES[name].partial:
        able = ", ".join(kind.name for kind in DATAPLANES.values() if kind.partial)
        raise JobError(f"data plane {name} has no partial sums; take one of {able}")


DATAPLANES: dict[str, PlaneKind] = {
    kind.name: kind
    for kind in (
        PlaneKind(
            "native",
            "switchagg.dataplane.native:NativePlane",
            "the rule in C, bundles of packets",
            measured="C, 256 packets of a rank in one call: what calling from Python costs is no packet's",
            colour="#0072B2",
            tested=True,
            compiled=True,
            leaf=True,
            partial=True,
        ),
        PlaneKind(
            "reference",
            "switchagg.dataplane.reference:ReferencePlane",
            "the rule in Python, a packet at a time",
            measured="Python, a packet at a time",
            colour="#999999",
            leaf=True,
            partial=True,
        ),
        PlaneKind(
            "xdp",
            None,
            "in the kernel",
            measured="BPF_PROG_TEST_RUN, a packet at a time, as the kernel times it; checksums as on veth",
            colour="#56B4E9",
            compiled=True,
            leaf=True,
        ),
        PlaneKind(
            "p4",
            "switchagg.dataplane.p4.p4_plane:P4Plane",
            "the P4 program on our engine",
            elements_most=256,
            program=True,
            leaf=True,
        ),
        PlaneKind(
            "bmv2",
            "switchagg.dataplane.p4.bmv2_plane:Bmv2Plane",
            "the P4 program on bmv2, slow",
            elements_most=128,
            program=True,
            leaf=True,
        ),
    )
}
"""The data planes, an entry each, fastest first. A new one is one file and one entry here."""
