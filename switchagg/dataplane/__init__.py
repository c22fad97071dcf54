"""Data planes: implementations of the switch behind one small contract.

| name | what | speed |
|---|---|---|
| reference | `Aggregator`, one packet at a time | the oracle |
| batched | the same rules on whole bundles with NumPy | fastest that needs no compiler |
| native | the same rules in C (`switchagg/native/rule/plane.c`) | more than 10 times batched |
| p4 | the P4 program of p4/v1model on our engine p4vm; E up to 256 | needs switchagg[p4] |
| bmv2 | the same program on bmv2's simple_switch | slow: for conformance; needs bmv2, p4c and root |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from switchagg.aggregator import SlotView
from switchagg.job import JobConfig
from switchagg.wire import Bundle


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Frames to send: every row of `bundle` (k, size) goes to each port of `ports`, in order."""

    bundle: Bundle
    ports: tuple[int, ...]


class DataPlane(Protocol):
    """What a host of a switch (loop, simulator, test) may ask of it. Not thread-safe; no method blocks."""

    name: str

    @property
    def counters(self) -> dict[str, int]:
        """Packets by what became of them: absorbed, broadcast, reply, drop_<reason>. Their sum is all packets."""

    def admit(self, job: JobConfig, ports: Sequence[int]) -> None:
        """Take a job, or a new generation of one; ports[rank] is where its worker is. Raises JobError (S7)."""

    def evict(self, job_id: int) -> None:
        """Forget a job; unknown ones are ignored (S8)."""

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """Decide on every row of a bundle (m, size) that came in by `port`; never raises, for any bytes."""

    def seen(self, slot: int, version: int) -> SlotView:
        """What a slot version of an admitted job holds. Raises KeyError for a slot no job owns."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes planes of one kind: maker(slots, elements). Raises JobError where what they need is missing, saying what.

    where: "module:class", imported when the first one is made. elements_most: the largest E they hold; None: any.
    """

    where: str
    elements_most: int | None = None

    def __call__(self, slots: int, elements: int) -> DataPlane:
        module, _, name = self.where.partition(":")
        plane: DataPlane = getattr(import_module(module), name)(slots, elements)
        return plane


_PLANES = {
    "reference": Maker("switchagg.dataplane.reference:ReferencePlane"),
    "batched": Maker("switchagg.dataplane.batched:BatchedPlane"),
    "native": Maker("switchagg.dataplane.native:NativePlane"),
    "p4": Maker("p4vm.planes.p4:P4Plane", elements_most=256),
    "bmv2": Maker("p4vm.planes.bmv2:Bmv2Plane", elements_most=256),
}

DATAPLANES: dict[str, Callable[[int, int], DataPlane]] = dict(_PLANES)
"""name -> maker(slots, elements)."""

ELEMENTS_MOST = {name: maker.elements_most for name, maker in _PLANES.items() if maker.elements_most is not None}
"""Planes that can't hold every E, and the largest they hold."""

WITHOUT_P4 = tuple(name for name, maker in _PLANES.items() if maker.where.startswith("switchagg."))
"""Those that need nothing beyond this package."""
