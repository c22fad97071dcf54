"""Channel: the priority wrapper's view of a group, however the group's calls are matched across ranks.

| matching | order of transfers                                       |
|----------|----------------------------------------------------------|
| "key"    | any; messages go by priority below                       |
| "class"  | fixed in each class; classes overtake                    |
| "order"  | one fixed order for everything, as rank 0 foresees it    |
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch.distributed as dist

from switchagg.codecs.array_codec import Tensors
from switchagg.codecs.compression import Compression
from switchagg.errors import AggregationFailed
from transport.contracts.group_contract import AllreduceGroup, Array
from transport.schedule.scheduler import Lanes, Transfer, class_lanes, classes_of
from transport.torch.process_group import TorchGroup

FIRST_KEY = 1 << 40
"""The first key of our calls; other callers of the same group number theirs from 0."""

KEYS_PER_PLAN = 1 << 20


class Channel:
    """A rank's link to the other ranks. It is thread-safe; calls that are matched by order must start in that order.

    gates_starts: whether the byte credit is to hold back starts, since nothing below knows priorities.
    """

    def __init__(self, group: AllreduceGroup, owned: bool = False) -> None:
        """owned: whether the channel closes the group."""
        self.rank, self.workers = group.rank, group.workers
        self.name = f"{group.method}, rank {group.rank} of {group.workers}"
        self.gates_starts = group.matching == "order"
        self._group, self._owned = group, owned
        self._plans = self._controls = 0
        self._class_of: tuple[int, ...] = ()

    @property
    def compression(self) -> Compression | None:
        """The coding of this rank's sums, with its residuals; a process group of torch's may have it only after its
        first call."""
        return self._group.compression

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes | None:
        """The fixed orders of a plan from now on; None: any. foreseen: keys in the order in which rank 0 would start
        them."""
        if self.gates_starts:
            return (tuple(foreseen()),)
        if self._group.matching == "class":  # a lane for each, in rank 0's order of arrival
            self._class_of = classes_of(transfers, len(self._group.classes))
            return class_lanes(transfers, len(self._group.classes))
        assert len(transfers) < KEYS_PER_PLAN, f"{len(transfers)} transfers"
        self._plans += 1  # another plan gets other keys: the size of a key's array never changes
        return None

    @property
    def divides(self) -> bool:
        """Whether `start` gives means: the codec makes them, and rounds once."""
        return self.compression is not None and self.compression.spec.divides

    def start(self, transfer: Transfer, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        """Sum the array, 1-D, over all ranks, in place. tensors: the gradients in it. The future ends in any thread."""
        op = "avg" if self.divides else "sum"
        if self._group.matching == "class":
            priority = self._group.classes[self._class_of[transfer.key]]
            return self._group.allreduce(array, op, priority=priority, tensors=tensors)
        key = FIRST_KEY + self._plans * KEYS_PER_PLAN + transfer.key
        return self._group.allreduce(array, op, key=key, priority=transfer.priority, tensors=tensors)

    def control(self, array: Array, tensors: Tensors | None = None) -> Array:
        """As start, for what isn't in the plan, until it has ended: all ranks call it at the same point, with nothing
        in flight. Raises AggregationFailed."""
        self._controls += 1
        where: dict[str, dict[str, Any]] = {
            "key": {"key": FIRST_KEY - self._controls},
            "class": {"priority": max(self._group.classes, default=0)},
        }
        try:
            self._group.allreduce(array, tensors=tensors, **where.get(self._group.matching, {})).result()
        except Exception as error:
            raise failure_of(error, self) from error
        return array

    def from_rank_0(self, data: bytes) -> bytes:
        """Rank 0's bytes on every rank, as `control`; exact on every channel, since it sums integers with zeros."""
        is_source = self.rank == 0
        length = int(self.control(np.array([len(data) * is_source], np.int32))[0])
        elements = np.zeros((length + 3) // 4, np.int32)
        if is_source:
            elements.view(np.uint8)[:length] = np.frombuffer(data, np.uint8)
        return (self.control(elements) if len(elements) else elements).tobytes()[:length]

    def set_credit(self, credit_bytes: int) -> None:
        """Bound what is queued below the priority queue, where this end can."""
        if self._group.matching == "key":
            self._group.set_credit(credit_bytes)

    def close(self) -> None:
        """End what `open_channel` has started; the caller's group stays open."""
        if self._owned:
            self._group.close()


def open_channel(group: AllreduceGroup | dist.ProcessGroup | None) -> Channel:
    """The channel over a group: of transport.group, a SwitchSession, a process group, or None for torch's default.

    Raises TypeError for anything else, ValueError for a process group that can't (see TorchGroup).
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        try:
            return Channel(TorchGroup(group), owned=True)
        except ValueError as error:
            raise ValueError(f"attach: {error}") from None
    if isinstance(group, AllreduceGroup):
        return Channel(group)
    raise TypeError(f"attach: {type(group).__name__} is no group: one of transport.group, a SwitchSession or torch's")


def failure_of(error: BaseException, channel: Channel) -> AggregationFailed:
    """The wrapper raises AggregationFailed, whatever the group raised."""
    if isinstance(error, AggregationFailed):
        return error
    failed = AggregationFailed(f"{channel.name}: {error}", job="priority schedule")
    failed.__cause__ = error
    return failed
