"""Channels: what the priority wrapper needs of a group, whichever way its calls are matched across ranks.

| group                                             | calls matched by         | order of transfers                    |
|---------------------------------------------------|--------------------------|---------------------------------------|
| host collectives, parameter server (`Group`)      | key                      | any; messages go by priority below    |
| a switch's session or group                       | order, per class         | fixed in each class; classes overtake |
| a process group of torch.distributed (Gloo)       | order                    | one fixed order, as rank 0 foresees it|
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig
from switchagg.priority import class_of
from transport.schedule.scheduler import Lanes, Transfer, class_lanes, classes_of

Array = NDArray[Any]

FIRST_KEY = 1 << 40
"""Of our calls; other callers of the same group number theirs from 0."""

KEYS_PER_PLAN = 1 << 20


class Channel(Protocol):
    """One rank's way to the others. Thread-safe, but calls that are matched by order must be started in that order."""

    rank: int
    workers: int
    name: str
    gates_starts: bool
    """Whether the byte credit is to hold back starts, since nothing below knows priorities."""

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes | None:
        """The fixed orders of a plan from now on. foreseen: keys in the order in which rank 0 would start them."""

    def start(self, transfer: Transfer, array: Array) -> "Future[Any]":
        """Sum the array, 1-D, over all ranks, in place. The future may resolve in any thread."""

    def control(self, array: Array) -> "Future[Any]":
        """As start, for what isn't in the plan: all ranks call it at the same point, with nothing under way."""

    def set_credit(self, credit_bytes: int) -> None:
        """Bound what lies below the queue that knows priorities, where this end can say so."""

    def close(self) -> None:
        """End what the channel itself started; the group stays open."""


class KeyedChannel:
    """Over a `transport.group.host_group.Group` whose calls are matched by key."""

    gates_starts = False

    def __init__(self, group: Any) -> None:
        self.rank, self.workers = group.rank, group.workers
        self.name = f"{group.method}, rank {group.rank} of {group.workers}"
        self._group = group
        self._plan = 0
        self._controls = 0

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> None:
        """Any order. Another plan gets other keys: what lies under a key keeps its size."""
        assert len(transfers) < KEYS_PER_PLAN, f"{len(transfers)} transfers"
        self._plan += 1

    def start(self, transfer: Transfer, array: Array) -> "Future[Any]":
        key = FIRST_KEY + self._plan * KEYS_PER_PLAN + transfer.key
        future: Future[Any] = self._group.allreduce(array, key=key, priority=transfer.priority)
        return future

    def control(self, array: Array) -> "Future[Any]":
        self._controls += 1
        future: Future[Any] = self._group.allreduce(array, key=FIRST_KEY - self._controls, priority=0)
        return future

    def set_credit(self, credit_bytes: int) -> None:
        if hasattr(self._group, "set_credit"):
            self._group.set_credit(credit_bytes)

    def close(self) -> None:
        """Nothing of our own."""


class ClassChannel:
    """Over a switch: a session or group whose calls are matched by their order within a priority class."""

    gates_starts = False

    def __init__(self, session: Any, classes: Collection[int]) -> None:
        self.rank, self.workers = session.rank, session.workers
        self.name = f"switch, rank {session.rank} of {session.workers}"
        self._session = session
        self._classes = sorted(classes)
        self._class_of: tuple[int, ...] = ()

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes:
        """A lane per class, each in rank 0's order of arrival."""
        self._class_of = classes_of(transfers, len(self._classes))
        return class_lanes(transfers, len(self._classes))

    def start(self, transfer: Transfer, array: Array) -> "Future[Any]":
        priority = self._classes[self._class_of[transfer.key]]
        future: Future[Any] = self._session.allreduce(array, priority=priority)
        return future

    def control(self, array: Array) -> "Future[Any]":
        future: Future[Any] = self._session.allreduce(array, priority=self._classes[-1])
        return future

    def set_credit(self, credit_bytes: int) -> None:
        """A stream's window bounds what is under way in a switch."""

    def close(self) -> None:
        """Nothing of our own."""


class TorchChannel:
    """Over a process group of torch.distributed: one order for everything, the credit on starts.

    A thread of ours makes the calls and waits for them, in order, since what a Work tells of its end differs between
    backends; the priority wrapper's hooks only hand them over.
    """

    gates_starts = True

    def __init__(self, group: Any) -> None:
        self._group = cast(Any, group or dist.group.WORLD)
        self.rank, self.workers = self._group.rank(), self._group.size()
        self.name = f"{self._group.name()}, rank {self.rank} of {self.workers}"
        self._calls: SimpleQueue[tuple[Array, Future[Any]] | None] = SimpleQueue()
        self._works: SimpleQueue[tuple[Any, Array, Future[Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"priority-{name}", daemon=True)
            for name, target in (("starts", self._start_all), ("waits", self._wait_all))
        ]
        for thread in self._threads:
            thread.start()

    def lanes(self, transfers: Sequence[Transfer], foreseen: Callable[[], Sequence[int]]) -> Lanes:
        """One lane."""
        return (tuple(foreseen()),)

    def start(self, transfer: Transfer, array: Array) -> "Future[Any]":
        return self.control(array)

    def control(self, array: Array) -> "Future[Any]":
        future: Future[Any] = Future()
        self._calls.put((array, future))
        return future

    def set_credit(self, credit_bytes: int) -> None:
        """The scheduler holds back starts itself."""

    def close(self) -> None:
        self._calls.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)  # one that waits for a dead peer ends with the group's own timeout, or the process

    def _start_all(self) -> None:
        while (call := self._calls.get()) is not None:
            array, future = call
            try:
                work = self._group.allreduce([torch.from_numpy(array)])
            except Exception as error:
                future.set_exception(error)
                continue
            self._works.put((work, array, future))
        self._works.put(None)

    def _wait_all(self) -> None:
        while (item := self._works.get()) is not None:
            work, array, future = item
            try:
                work.wait()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(array)


def open_channel(group: Any) -> Channel:
    """The channel over a group: of transport.group, a SwitchSession, a process group, or None for torch's default.

    Raises TypeError for anything else, ValueError for a process group that can't (NCCL: its tensors are on devices).
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        default = cast(Any, dist.group.WORLD)
        if group is None and default is None:
            raise ValueError(
                "attach: no group was given and torch.distributed has none; init_process_group comes first"
            )
        if (group or default).name() == "nccl":
            raise ValueError("attach: NCCL can't sum in host memory; give a Gloo group: dist.new_group(backend='gloo')")
        return TorchChannel(group)
    if isinstance(job := getattr(group, "job", None), JobConfig):  # a SwitchSession
        return ClassChannel(group, {class_of(stream.priority) for stream in job.streams})
    if classes := getattr(group, "classes", None):
        return ClassChannel(group, classes)
    if callable(getattr(group, "allreduce", None)) and getattr(group, "ordered", None) is False:
        return KeyedChannel(group)
    raise TypeError(f"attach: {type(group).__name__} is no group: one of transport.group, a SwitchSession or torch's")


def tell(channel: Channel, data: bytes | None) -> bytes:
    """Rank 0's bytes on every rank. A collective; exact on every channel, since it sums integers with zeros."""
    length = np.zeros(1, np.int32)
    if channel.rank == 0:
        assert data is not None
        length[0] = len(data)
    channel.control(length).result()
    words = np.zeros((int(length[0]) + 3) // 4, np.int32)
    if channel.rank == 0 and data:
        words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    if len(words):
        channel.control(words).result()
    return words.tobytes()[: int(length[0])]


def failure_of(error: BaseException, channel: Channel) -> AggregationFailed:
    """What the caller of the wrapper is told: AggregationFailed, whatever the group raised."""
    if isinstance(error, AggregationFailed):
        return error
    failed = AggregationFailed(f"{channel.name}: {error}", job="priority schedule")
    failed.__cause__ = error
    return failed
