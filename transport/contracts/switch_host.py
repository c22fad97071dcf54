"""SwitchHost: the loop that hosts a data plane, for the control plane; jobs reach it by addresses or queue pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from switchagg.aggregator import SlotView
from switchagg.job import Address, JobConfig
from switchagg.join import QueuePairEnd


@dataclass(frozen=True)
class Uplink:
    """Where a switch sends its sums: its parent's data address, and its own rank there (H1). keys: of the packets
    between (`HopKeys`), if they have tags (A1)."""

    address: Address
    rank: int
    keys: bytes = field(default=b"", repr=False)


class SwitchHost(Protocol):
    """The loop that hosts the data plane, as the control plane calls it from a thread of its own."""

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None = None, secret: bytes = b""
    ) -> None:
        """Take a job whose rank here i, a worker or a switch, is at addresses[i]. secret: of the tags of its packets
        (A2); b"": they have none. Raises JobError."""

    def evict(self, job_id: int) -> None:
        """Forget a job."""

    def slots_of(self, job: JobConfig) -> dict[tuple[int, int], SlotView]:
        """(slot, version) -> what it holds, for the versions of this job that have seen any rank."""

    def counters(self) -> dict[str, int]:
        """Packets by their fate."""


class RunningHost(SwitchHost, Protocol):
    """A host with its thread, as the daemon runs it."""

    @property
    def failure(self) -> BaseException | None:
        """The unexpected exception that ended the thread, or None."""

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version now. Raises KeyError for a slot no job owns."""

    def start(self) -> None:
        """Start the thread; once."""

    def stop(self) -> None:
        """End it and free everything, also before `start`; again is allowed. Raises SwitchaggError if it hangs."""


class QueuePairHost(SwitchHost, Protocol):
    """A host whose jobs come over RDMA."""

    def admit_ends(self, job: JobConfig, addresses: Sequence[Address], ends: Sequence[QueuePairEnd]) -> None:
        """As `admit`, and rank i's end of its queue pair is ends[i] (R3). Raises JobError."""
