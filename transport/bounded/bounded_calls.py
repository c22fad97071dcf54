"""The calls, outgoing frames and counters of a `BoundedParty`."""

from collections.abc import Mapping
from typing import NamedTuple

from transport.bounded.bounded_packets import AHEAD, BoundedHeader, BoundedPacket
from transport.bounded.rules import CallStage
from transport.bounded.transfers import IncomingTransfer, Values

NUMBERED = (1 << 64) - 1
"""The key of calls without one: their use is their number."""


PACKETS = ("late", "repeated", "stopped", "unknown_senders", "crowded", "marked")
COUNTED = ("values_up", "lost_up", "values_down", "lost_down", *PACKETS)
"""Values that were to come, and what of them didn't, of other ranks' gradients and of sums; packets that came too late,
or were sent again; transfers that their receiver stopped; packets of unknown senders, of ranks too far ahead, and
those that came with the network's mark."""


def loss_of(counted: Mapping[str, int]) -> dict[str, float]:
    """Values lost for good, from all ranks' counters added up, as results have them."""
    return {
        "up": counted["lost_up"] / max(1, counted["values_up"]),
        "down": counted["lost_down"] / max(1, counted["values_down"]),
        "late_packets": counted["late"],
        "stopped_transfers": counted["stopped"],
    }


class BoundedJob(NamedTuple):
    """start: a number of this start of the job, which its packets bear. call_timeout_ns: how long a call may stand
    still; None: for ever."""

    name: str
    start: int = 0
    call_timeout_ns: int | None = None


class ControlPacket(NamedTuple):
    """A packet without values, sent until it arrives. priority: the least urgent class of what it asks about; AHEAD:
    it goes ahead of all."""

    kind: int
    place: BoundedHeader
    payload: bytes = b""
    priority: int = AHEAD


class BoundedCall:
    """An allreduce call of this member."""

    def __init__(self, key: int, use: int) -> None:
        self.key, self.use = key, use
        self.array: Values | None = None  # None: other ranks have begun it, this rank hasn't
        self.name: object = None
        self.priority = 0
        self.stages: list[CallStage | None] = [None, None]
        self.incoming: list[dict[int, IncomingTransfer]] = [{}, {}]  # by stage and sender
        self.early: list[tuple[int, BoundedPacket]] = []
        self.terms = 0
        self.moved_ns = 0  # when something came for it
        self.index = 0
        self.summed = False

    @property
    def words(self) -> str:
        """For errors, once this rank has begun it."""
        assert self.array is not None
        which = self.use if self.key == NUMBERED else f"with key {self.key}"
        return f"sum {which} of {len(self.array)} float32"

    @property
    def missing(self) -> list[int]:
        """Ranks whose values it waits for."""
        return sorted(
            {transfer.sender for stage in self.incoming for transfer in stage.values() if not transfer.closed}
        )
