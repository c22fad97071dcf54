"""Data planes: implementations of the switch behind one small contract.

| name | what | speed |
|---|---|---|
| reference | `Aggregator`, one packet at a time | the oracle |
| batched | the same rules on whole bundles with NumPy | fastest that needs no compiler |
| native | the same rules in C (`switchagg/native/plane.c`) | more than 10 times batched |
| p4 | the P4 program of p4/v1model on our engine (`switchagg/p4vm`); E up to 256 | needs switchagg[p4] |
| bmv2 | the same program on bmv2's simple_switch | slow: for conformance; needs bmv2, p4c and root |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def _reference(slots: int, elements: int) -> DataPlane:
    from switchagg.dataplane.reference import ReferencePlane

    return ReferencePlane(slots, elements)


def _batched(slots: int, elements: int) -> DataPlane:
    from switchagg.dataplane.batched import BatchedPlane

    return BatchedPlane(slots, elements)


def _native(slots: int, elements: int) -> DataPlane:
    from switchagg.dataplane.native import NativePlane

    return NativePlane(slots, elements)


def _p4(slots: int, elements: int) -> DataPlane:
    from switchagg.dataplane.p4 import P4Plane

    return P4Plane(slots, elements)


def _bmv2(slots: int, elements: int) -> DataPlane:
    from switchagg.dataplane.bmv2 import Bmv2Plane

    return Bmv2Plane(slots, elements)


DATAPLANES: dict[str, Callable[[int, int], DataPlane]] = {
    "reference": _reference,
    "batched": _batched,
    "native": _native,
    "p4": _p4,
    "bmv2": _bmv2,
}
"""name -> maker(slots, elements). Makers raise JobError where what they need is missing, saying what."""

ELEMENTS_MOST = {"p4": 256, "bmv2": 256}
"""Planes that can't hold every E, and the largest they hold."""

WITHOUT_P4 = ("reference", "batched", "native")
"""Those that hold any E and need nothing beyond this package."""
