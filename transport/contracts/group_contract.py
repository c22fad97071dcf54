"""The contract of groups: what every method offers to a program, and how its calls are matched across ranks.

`AllreduceGroup` is what training needs: a `SwitchSession`, every group of `open_group`, and a process group of torch
(`transport.torch.process_group.TorchGroup`). `Group` adds the other collectives: what `open_group` returns.

| matching | calls of all ranks meet by           | so a rank may make them                       | who           |
|----------|--------------------------------------|-----------------------------------------------|---------------|
| "key"    | `key`, or else their running number  | in any order, with keys                       | host methods  |
| "class"  | their number within a priority class | in any order of classes, in order within each | the switch    |
| "order"  | their running number                 | in the same order on all ranks                | torch's group |
"""

import math
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from operator import index
from typing import Any, Literal, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.array_codec import Tensor, Tensors
from switchagg.codecs.compression import Compression
from switchagg.description import ROOTED, CallSignature, Kind
from switchagg.layout import shard_range

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


class Group(AllreduceGroup, Protocol):
    """All collectives. `open_group` returns a group; it is also a context manager, which closes it.

    row: floats of a call share an exponent within so many values from the array's begin; 1 where they don't.
    """

    @property
    def row(self) -> int: ...

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """Combine; a rank has its own shard then (`own_shard`), to which the future resolves. The rest is undefined."""

    def reduce(
        self, array: Array, op: str = "sum", root: int = 0, *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """Combine; rank `root` has the result in its array then. The arrays of the other ranks are undefined."""

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """Every rank has filled its own shard, and has all then."""

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """The array of rank `root` on every rank."""

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """Done when every rank has called it."""

    def submit(self, request: "CallRequest", array: Array) -> "Future[Any]":
        """Make the call that is described, of this array: each of the others is such a request."""

    def give_up(self, reason: str) -> None:
        """Fail soon, on all ranks, since a call of the group has taken too long: for this reason, and with the names of
        the ranks that it waits for. Nothing happens while no call is under way."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class CallRequest(NamedTuple):
    """A call of a group, without its array: made once, and handed down to what makes messages or packets of it.

    kind, op: how it travels. key, priority: see `AllreduceGroup`. root: of kinds with one. requested_op: the operation
    and type that the caller of an allreduce requested, where the array has another (an index of
    `switchagg.description.REQUESTED_OPS`); the ranks compare it. signature: what they compare in place of all these,
    where the caller requested another call; a "barrier" with one only compares. Parameter servers compare
    `requested_op` alone. tensors: what lies in the array. target: where the result goes; None: into the array.
    """

    kind: str
    op: str = "sum"
    key: int | None = None
    priority: int = 0
    root: int = 0
    requested_op: int = 0
    signature: CallSignature | None = None
    tensors: Tensors | None = None
    target: Array | None = None

    def signature_of(self, array: Array) -> CallSignature:
        """What the ranks compare, of this call of an array."""
        if self.signature is not None:
            return self.signature
        root = self.root if self.kind in ROOTED else 0
        requested_op = self.requested_op if self.kind == "allreduce" else 0
        return CallSignature(cast(Kind, self.kind), self.op, array.dtype, len(array), root, requested_op)

    def result_of(self, array: Array, rank: int, workers: int) -> Array | None:
        """The value to which the future of this call of an array resolves."""
        if self.kind == "reduce_scatter":
            return own_shard(array, rank, workers)
        if self.kind == "barrier":
            return None
        return array if self.target is None else self.target


def tensors_of(array: Array, request: CallRequest, compression: Compression) -> Tensors | None:
    """The tensors in the array that travels for a call, for a codec; None: they have no names."""
    if request.tensors is None:
        remembers = compression.remembers or compression.stepwise
        return (Tensor(f"key {request.key}", (len(array),)),) if request.key is not None and remembers else None
    values = sum(math.prod(tensor.shape) for tensor in request.tensors)
    if values and len(array) == 2 * values:  # complex numbers travel as their floats
        return [Tensor(tensor.name, (*tensor.shape, 2)) for tensor in request.tensors]
    return request.tensors


def with_integers(request: CallRequest) -> CallRequest:
    """The call with its numbers as whole numbers. Raises ValueError for what is none."""
    key, priority, root = request.key, request.priority, request.root
    if type(priority) is type(root) is int and (key is None or type(key) is int):
        return request
    try:
        return request._replace(key=None if key is None else index(key), priority=index(priority), root=index(root))
    except TypeError:
        raise ValueError(f"key {key}, priority {priority}, root {root}: whole numbers") from None


def checked(request: CallRequest, array: Array, workers: int, ops: Collection[str] = ("sum", "max")) -> CallRequest:
    """The call, its numbers as whole numbers. Raises ValueError for what no collective can do."""
    flags, dtype = array.flags, array.dtype
    if array.ndim != 1 or not flags.c_contiguous or not flags.writeable:
        raise ValueError("an array must be 1-D, C-contiguous and writable")
    if request.op not in ops:
        raise ValueError(f"op '{request.op}': one of {', '.join(ops)}")
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise ValueError(f"dtype {dtype}: numbers of this machine's byte order")
    request = with_integers(request)
    if not 0 <= request.root < workers:
        raise ValueError(f"root {request.root}: 0 to {workers - 1}")
    return request


def own_shard(array: Array, rank: int, workers: int) -> Array:
    """The elements of an array that belong to a rank: rank * E // n … (rank + 1) * E // n - 1."""
    low, high = shard_range(len(array), rank, workers)
    return array[low:high]


NOTHING: Array = np.empty(0, np.uint8)
"""A barrier's array."""
