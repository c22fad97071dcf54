"""The contract of groups: what every method offers to a program, and how its calls are matched across ranks.

`AllreduceGroup` is what training needs: a `SwitchSession`, every group of `open_group`, and a process group of torch
(`transport.torch.process_group.TorchGroup`). `Group` adds the other collectives: what `open_group` returns.

| matching | calls of all ranks meet by           | so a rank may make them                       | who           |
|----------|--------------------------------------|-----------------------------------------------|---------------|
| "key"    | `key`, or else their running number  | in any order, with keys                       | host methods  |
| "class"  | their number within a priority class | in any order of classes, in order within each | the switch    |
| "order"  | their running number                 | in the same order on all ranks                | torch's group |
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from switchagg.codecs.array_codec import Tensors
from switchagg.codecs.compression import Compression
from switchagg.description import Kind
from switchagg.errors import SwitchaggError

Array = NDArray[Any]
Matching = Literal["key", "class", "order"]


@runtime_checkable
class AllreduceGroup(Protocol):
    """A rank's place among the workers of a job. Any thread may use it. Every rank makes the same calls.

    Arrays are 1-D and C-contiguous, reduced in place, and the group's until the future is done. Futures resolve in a
    thread of the group's, or in one that waits for them: what is chained to one must be quick. They fail with
    AggregationFailed, as all later ones do then; what can't be is ValueError at once.

    key: read where `matching` is "key"; default: the running number of the call. priority: lower is more urgent; an
    urgent call overtakes others that are in progress, unless `matching` is "order". Ranks whose calls differ, in size,
    type or operation, all fail, with an error that names both sides.
    """

    @property
    def rank(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def method(self) -> str: ...

    @property
    def link(self) -> str:
        """Name of the link that carries the method; "" where torch has its own."""

    @property
    def core(self) -> str:
        """The code that carries its packets or messages: "native", "python", or "torch"."""

    @property
    def matching(self) -> Matching: ...

    @property
    def classes(self) -> tuple[int, ...]:
        """Where `matching` is "class": the priorities there are, the most urgent first; else empty."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts of packets, messages and errors of this rank so far, by name."""

    @property
    def failure(self) -> BaseException | None:
        """Why the group works no more; None while it does."""

    @property
    def compression(self) -> Compression | None:
        """The codec of this rank's sums with the errors that it feeds back; None where sums lose nothing."""

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        tensors: Tensors | None = None,
    ) -> "Future[Any]":
        """Combine the arrays of all ranks; the array on every rank. tensors: what lies in it, for codecs that remember
        parameters; one is in a single call at a time. Without them, the array of a key is one tensor."""

    def set_credit(self, credit_bytes: int | None) -> None:
        """How much may lie below the queue that knows priorities, from now on; None: any amount.

        Does nothing where there is no such queue: on a switch the windows bound it; with torch the caller must.
        """

    def status(self) -> Mapping[str, Any]:
        """Present facts of the job: a switch's own report; else the settings of the mesh."""

    def close(self) -> None:
        """Leave; pending calls fail. A second `close`, or one in a forked child, does nothing."""


class Group(ABC):
    """All collectives: an `AllreduceGroup` that `open_group` returns; as a context manager it closes itself.

    A subclass says what becomes of a `CallRequest`, and how it closes; most of its methods need its own process.
    row: floats of a call share an exponent within so many values from the array's begin; 1 where they don't. means:
    kinds of calls that also have op "avg", of floats: partial sums divide by the ranks in them, exact sums round once.
    """

    job: str
    rank: int
    workers: int
    method: str
    matching: Matching
    classes: tuple[int, ...] = ()
    row: int = 1
    means: tuple[Kind, ...] = ()
    compression: Compression | None

    def __init__(self) -> None:
        self._pid = os.getpid()

    def _require_process(self) -> None:
        """Raise SwitchaggError in a forked child."""
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.job}, rank {self.rank}: this group belongs to process {self._pid}; a forked child must "
                f"open its own"
            )

    @property
    @abstractmethod
    def link(self) -> str: ...

    @property
    @abstractmethod
    def core(self) -> str: ...

    @property
    @abstractmethod
    def counters(self) -> Mapping[str, int]: ...

    @property
    @abstractmethod
    def failure(self) -> BaseException | None: ...

    @abstractmethod
    def set_credit(self, credit_bytes: int | None) -> None: ...

    @abstractmethod
    def status(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """Make the call that is described, of this array: each of the others is such a request."""

    @abstractmethod
    def give_up(self, reason: str) -> None:
        """Fail soon, on all ranks, since a call of the group has taken too long: for this reason, and with the names of
        the ranks that it waits for. Nothing happens while no call is under way."""

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        tensors: Tensors | None = None,
    ) -> "Future[Array]":
        """See `AllreduceGroup`."""
        return self.submit(CallRequest("allreduce", op, key, priority, tensors=tensors), array)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """Combine; a rank has its own shard then (`own_shard`), to which the future resolves. The rest is undefined."""
        return self.submit(CallRequest("reduce_scatter", op, key, priority), array)

    def reduce(
        self, array: Array, op: str = "sum", root: int = 0, *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """Combine; rank `root` has the result in its array then. The arrays of the other ranks are undefined."""
        return self.submit(CallRequest("reduce", op, key, priority, root), array)

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """Every rank has filled its own shard, and has all then."""
        return self.submit(CallRequest("all_gather", "sum", key, priority), array)

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """The array of rank `root` on every rank."""
        return self.submit(CallRequest("broadcast", "sum", key, priority, root), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """Done when every rank has called it."""
        return self.submit(CallRequest("barrier", "sum", key, priority), np.empty(0, np.uint8))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
