"""Channels: the priority wrapper's view of a group, however its calls are matched across ranks.

| matching | order of transfers                                       |
|----------|----------------------------------------------------------|
| "key"    | any; messages go by priority below                       |
| "class"  | fixed in each class; classes overtake                    |
| "order"  | one fixed order for everything, as rank 0 foresees it    |
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist

from switchagg.codecs.array_codec import Tensors
from switchagg.codecs.compression import Compression
from switchagg.errors import AggregationFailed
from transport.contracts.group_contract import AllreduceGroup, Array, Matching
from transport.schedule.scheduler import Lanes, Transfer, class_lanes, classes_of
from transport.torch.process_group import TorchGroup

FIRST_KEY = 1 << 40
"""The first key of our calls; other callers of the same group number theirs from 0."""

KEYS_PER_PLAN = 1 << 20


class Channel(Protocol):
    """A rank's link to the other ranks. It is thread-safe; calls that are matched by order must start in that order."""

    rank: int
    workers: int
    name: str
    gates_starts: bool
    """Whether the byte credit is to hold back starts, since nothing below knows priorities."""

    @property
    def compression(self) -> Compression | None:
        """The coding of this rank's sums, with its residuals."""

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes | None:
        """The fixed orders of a plan from now on. foreseen: keys in the order in which rank 0 would start them."""

    def start(self, transfer: Transfer, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        """Sum the array, 1-D, over all ranks, in place. tensors: the gradients in it. The future ends in any thread."""

    def control(self, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        """As start, for what isn't in the plan: all ranks call it at the same point, with nothing in flight."""

    def set_credit(self, credit_bytes: int) -> None:
        """Bound what is queued below the priority queue, where this end can."""

    def close(self) -> None:
        """End what the channel itself started; the group stays open."""


class _OverGroup:
    """The base of channels over a group."""

    def __init__(self, group: AllreduceGroup) -> None:
        self.rank, self.workers = group.rank, group.workers
        self.name = f"{group.method}, rank {group.rank} of {group.workers}"
        self._group = group

    @property
    def compression(self) -> Compression | None:
        """The group's; a process group of torch's may have it only after its first call."""
        return self._group.compression


class KeyedChannel(_OverGroup):
    """Over a group whose calls are matched by key."""

    gates_starts = False

    def __init__(self, group: AllreduceGroup) -> None:
        super().__init__(group)
        self._plan = 0
        self._controls = 0

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> None:
        """Any order. Another plan gets other keys: the size of a key's array never changes."""
        assert len(transfers) < KEYS_PER_PLAN, f"{len(transfers)} transfers"
        self._plan += 1

    def start(self, transfer: Transfer, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        key = FIRST_KEY + self._plan * KEYS_PER_PLAN + transfer.key
        return self._group.allreduce(array, key=key, priority=transfer.priority, tensors=tensors)

    def control(self, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        self._controls += 1
        return self._group.allreduce(array, key=FIRST_KEY - self._controls, priority=0, tensors=tensors)

    def set_credit(self, credit_bytes: int) -> None:
        self._group.set_credit(credit_bytes)

    def close(self) -> None:
        """Nothing of our own."""


class ClassChannel(_OverGroup):
    """Over a switch: a session or group whose calls are matched by their order within a priority class."""

    gates_starts = False

    def __init__(self, group: AllreduceGroup) -> None:
        super().__init__(group)
        self._class_of: tuple[int, ...] = ()

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes:
        """A lane per class, each in rank 0's order of arrival."""
        self._class_of = classes_of(transfers, len(self._group.classes))
        return class_lanes(transfers, len(self._group.classes))

    def start(self, transfer: Transfer, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        chosen = self._group.classes[self._class_of[transfer.key]]
        return self._group.allreduce(array, priority=chosen, tensors=tensors)

    def control(self, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        return self._group.allreduce(array, priority=self._group.classes[-1], tensors=tensors)

    def set_credit(self, credit_bytes: int) -> None:
        """A stream's window bounds what is in flight through a switch."""

    def close(self) -> None:
        """Nothing of our own."""


class OrderedChannel(_OverGroup):
    """Over a group whose calls are matched by their order: one order for everything, the credit on starts."""

    gates_starts = True

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes:
        """A single lane in rank 0's order of starts."""
        return (tuple(foreseen()),)

    def start(self, transfer: Transfer, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        return self._group.allreduce(array, tensors=tensors)

    def control(self, array: Array, tensors: Tensors | None = None) -> "Future[Any]":
        return self._group.allreduce(array, tensors=tensors)

    def set_credit(self, credit_bytes: int) -> None:
        """The scheduler holds back starts itself."""

    def close(self) -> None:
        """Nothing of our own."""


class _TorchChannel(OrderedChannel):
    """Over a process group of torch's, whose adapter it closes."""

    def close(self) -> None:
        self._group.close()


_CHANNELS: dict[Matching, Callable[[AllreduceGroup], Channel]] = {
    "key": KeyedChannel,
    "class": ClassChannel,
    "order": OrderedChannel,
}


def open_channel(group: AllreduceGroup | dist.ProcessGroup | None) -> Channel:
    """The channel over a group: of transport.group, a SwitchSession, a process group, or None for torch's default.

    Raises TypeError for anything else, ValueError for a process group that can't (see TorchGroup).
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        try:
            return _TorchChannel(TorchGroup(group))
        except ValueError as error:
            raise ValueError(f"attach: {error}") from None
    if isinstance(group, AllreduceGroup):
        return _CHANNELS[group.matching](group)
    raise TypeError(f"attach: {type(group).__name__} is no group: one of transport.group, a SwitchSession or torch's")


def broadcast_bytes(channel: Channel, data: bytes | None) -> bytes:
    """Rank 0's bytes on every rank. A collective; exact on every channel, since it sums integers with zeros."""
    length = np.zeros(1, np.int32)
    if channel.rank == 0:
        assert data is not None
        length[0] = len(data)
    channel.control(length).result()
    elements = np.zeros((int(length[0]) + 3) // 4, np.int32)
    if channel.rank == 0 and data:
        elements.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    if len(elements):
        channel.control(elements).result()
    return elements.tobytes()[: int(length[0])]


def failure_of(error: BaseException, channel: Channel) -> AggregationFailed:
    """The wrapper raises AggregationFailed, whatever the group raised."""
    if isinstance(error, AggregationFailed):
        return error
    failed = AggregationFailed(f"{channel.name}: {error}", job="priority schedule")
    failed.__cause__ = error
    return failed
