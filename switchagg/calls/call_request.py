"""CallRequest: a collective as its caller asks for it, the one description of a call between a trainer and the core."""

import math
from operator import index
from typing import Any, NamedTuple, cast

import numpy as np

from switchagg.codecs.array_codec import SumTerms, Tensor, Tensors
from switchagg.codecs.codec import Array
from switchagg.codecs.compression import Compression
from switchagg.description import REQUESTED_OPS, ROOTED, CallSignature, Kind, requested_op_index, shard_range


class CallRequest(NamedTuple):
    """A call, without its array: made once, and handed down to what makes messages or packets of it."""

    kind: str
    """How the call travels: one of `KINDS`, or a call of parameter servers."""
    op: str = "sum"
    key: int | None = None
    """By which calls of all ranks are matched, where they are matched by key; it names the array for codecs that
    remember parameters. None: the running number of the call."""
    priority: int = 0
    """The call's urgency: lower is more urgent. A switch has a class for some of the numbers."""
    root: int = 0
    """The rank that has or gets the values, of kinds with a root."""
    requested_op: int = 0
    """The operation and type that the caller of an allreduce requested, where the array has another (an index of
    `REQUESTED_OPS`); the ranks compare it."""
    signature: CallSignature | None = None
    """What the ranks compare in place of all these, where the caller requested another call; a "barrier" with one only
    compares. Parameter servers compare `requested_op` alone."""
    tensors: Tensors | None = None
    """The tensors in the array, for codecs that remember parameters; None: the array of a key is one tensor."""
    target: Array | None = None
    """Where the result goes; None: into the array."""
    stream: int | None = None
    """The stream of a switch's job that carries the call; None: those of its class take turns."""
    unit: int = 1
    """Values of the array that belong to the same rank's shard: 2 for the floats of complex numbers."""

    @property
    def terms(self) -> SumTerms:
        """What the caller wants of a sum, for codecs. The numbers of a call that codecs may see are whole numbers."""
        return SumTerms(cast(Kind, self.kind), self.op, REQUESTED_OPS[self.requested_op][1], self.unit)

    def rounded_to(self, dtype: "np.dtype[Any]") -> "CallRequest":
        """The call of an array that travels in a wider type than its own, which is this one."""
        return self._replace(requested_op=self.requested_op or requested_op_index(self.op, dtype.name, self.op))

    def signature_of(self, array: Array) -> CallSignature:
        """The facts of this call that the ranks compare."""
        if self.signature is not None:
            return self.signature
        root = self.root if self.kind in ROOTED else 0
        requested_op = self.requested_op if self.kind == "allreduce" else 0
        op = self.op
        if op == "avg":
            op, requested_op = "sum", requested_op or requested_op_index("avg", array.dtype.name, "sum")
        return CallSignature(cast(Kind, self.kind), op, array.dtype, len(array), root, requested_op)

    def result_of(self, array: Array, rank: int, workers: int) -> Array | None:
        """The value to which the future of this call of an array resolves."""
        if self.kind == "reduce_scatter":
            return own_shard(array, rank, workers)
        if self.kind == "barrier":
            return None
        return array if self.target is None else self.target


def own_shard(array: Array, rank: int, workers: int) -> Array:
    """The elements of an array that belong to a rank: rank * E // n … (rank + 1) * E // n - 1."""
    low, high = shard_range(len(array), rank, workers)
    return array[low:high]


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
