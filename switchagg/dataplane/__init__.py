"""Data planes: implementations of the switch behind one small contract.

| name | what | speed |
|---|---|---|
| reference | `Aggregator`, one packet at a time | the oracle |
| batched | the same rules on whole bundles with NumPy | fastest that needs no compiler |
| native | the same rules in C (`switchagg/native/plane.c`) | more than 10 times batched |
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


DATAPLANES: dict[str, Callable[[int, int], DataPlane]] = {
    "reference": _reference,
    "batched": _batched,
    "native": _native,
}
"""name -> maker(slots, elements). native raises JobError where the C core is missing, saying why."""
