"""The contract of a data plane with its host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from switchagg.aggregator import Parent, SlotView
from switchagg.job import JobConfig
from switchagg.wire import Bundle


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Frames to send: every row of `bundle` (k, size) goes to each port of `ports`, in order."""

    bundle: Bundle
    ports: tuple[int, ...]


class DataPlane(Protocol):
    """A switch as its host (loop, simulator, test) calls it. It is not thread-safe; no method blocks."""

    name: str

    @property
    def counters(self) -> dict[str, int]:
        """Packets by what became of them: absorbed, broadcast, reply, up, up_again, drop_<reason>. All counters add
        up to the number of packets."""

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        """Take a job, or a new generation of one; ports[rank] is where its worker is, or the switch below (H1).

        parent: where this switch sends the sums instead (H3). A switch that lost its slots must not take the same
        generation again (H6). Raises JobError (S7), also for a parent where `PlaneKind.leaf` is false.
        """

    def evict(self, job_id: int) -> None:
        """Forget a job; unknown ones are ignored (S8)."""

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """Decide on every row of a bundle (m, size) that came in by `port`; never raises, for any bytes.

        With a route a packet may cause two results, with values and header-only ones, in an output each and never to
        the same port. Each port gets the results of a bundle in the order of the packets that caused them.
        """

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version of an admitted job. Raises KeyError for a slot no job owns."""
