"""The calls of the group that make up a collective, and the places of its tensors in their arrays. The module is pure.

Both depend on kind, operation, types and sizes alone, which are the same on every rank (else the calls differ, and the
ranks raise an error). A collective that the group has no call for is None: Gloo carries it out.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.distributed_c10d import ReduceOp
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]  # documented, not exported

from switchagg.calls.call_request import CallRequest
from switchagg.description import COMBINING, ROOTED, CallSignature, Kind, requested_op_index
from transport.group.staging import SWITCH, tensor_dtype

GATHERED_BYTES_MAX = 1 << 16
"""Arrays that the switch can't combine are gathered, and every rank combines them, up to this size; more is Gloo's."""

NARROW_BYTES_MAX = 1 << 16
"""8 bit integers travel through a switch as int32, up to this size: beyond, Gloo sends less than half as much."""

PACKED_BYTES_MAX = 1 << 16
"""Tensors of one coalesced allreduce that are no larger share a call."""

GLOO_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool,
              torch.int32, torch.int64)  # fmt: skip
"""The types that Gloo combines."""

LINEAR = ("sum", "avg", "premul_sum")
"""Operations on complex numbers that work part by part."""

_COMBINED = (*LINEAR, "max", "min")
_LOCAL: dict[str, Callable[..., torch.Tensor]] = {
    "product": torch.mul, "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
    "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip
_NARROW_FLOATS = (torch.float16, torch.bfloat16)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

Tensors = Sequence[torch.Tensor]
Finish = Callable[[torch.Tensor], None]


class ReduceOperation(NamedTuple):
    """name: as PyTorch's, in small letters. factor: of "premul_sum"."""

    name: str = "sum"
    factor: Any = None

    @property
    def wire(self) -> str:
        """The operation that the group carries out for it."""
        return "max" if self.name in ("max", "min") else "sum"


def op_of(op: Any) -> ReduceOperation:
    """PyTorch's operation; None is a sum."""
    if op is None or op == ReduceOp.SUM:
        return ReduceOperation()
    name = next(name for name, member in ReduceOp.RedOpType.__members__.items() if op == member).lower()
    return ReduceOperation(name, op.__getstate__()[1] if name == "premul_sum" else None)


class RankContext(NamedTuple):
    """This rank's place in its group. switch: whether a switch combines. row: so many floats of a call share an
    exponent; 1: none do. compares: whether the group compares calls that travel under another kind. means: kinds of
    calls whose means of floats are the group's (`Group`); those of others are sums that are divided here."""

    rank: int
    workers: int
    switch: bool = True
    row: int = 360
    compares: bool = True
    means: tuple[Kind, ...] = ()


Places = tuple[tuple[torch.Tensor, int], ...]
"""Tensors, and where each begins in an array."""


class GroupCall(NamedTuple):
    """A call of the group, and its array.

    elements, dtype: of the array. gives, takes: places of tensors in it, before and after the call; both are empty
    where nothing is sent. home: the tensor that is the array, used in place where possible. before, after: functions
    that the host applies to the array.
    """

    request: CallRequest
    elements: int = 0
    dtype: torch.dtype = torch.uint8
    gives: Places = ()
    takes: Places = ()
    home: torch.Tensor | None = None
    before: Finish | None = None
    after: Finish | None = None

    @property
    def signature(self) -> CallSignature:
        """The signature of the collective as the program made it."""
        signature = self.request.signature
        assert signature is not None
        return signature


def allreduce(tensors: Tensors, op: ReduceOperation, ranks: RankContext) -> list[GroupCall] | None:
    """Calls that reduce the tensors in place. Small tensors of a type share a call."""
    parts: list[GroupCall] = []
    packs: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        wire = _wire(tensor, op, ranks)
        if wire is None:
            if (gathered := _gathered("allreduce", tensor, tensor, op, ranks)) is None:
                return None
            parts.append(gathered)
        elif len(tensors) > 1 and ranks.compares and tensor.nbytes <= PACKED_BYTES_MAX and wire != torch.float64:
            packs.setdefault(tensor.dtype, []).append(tensor)
        else:
            n, places = tensor.numel(), ((tensor, 0),)
            signature = signature_of("allreduce", op, tensor.dtype, n)
            parts.append(_combined(_call(signature, n, wire, places, places, tensor), (0, n), op, ranks))
    return parts + [_packed(pack, op, ranks) for pack in packs.values()]


def reduce(tensor: torch.Tensor, op: ReduceOperation, root: int, ranks: RankContext) -> list[GroupCall] | None:
    """A call that reduces in place at the root; other ranks' tensors keep their values."""
    takes = ((tensor, 0),) if ranks.rank == root else ()
    wire = _wire(tensor, op, ranks)
    if wire is None:
        gathered = _gathered("reduce", tensor, tensor, op, ranks, root)
        return None if gathered is None else [gathered]
    n, home = tensor.numel(), tensor if takes else None
    signature = signature_of("reduce", op, tensor.dtype, n, root)
    return [_combined(_call(signature, n, wire, ((tensor, 0),), takes, home), (0, n), op, ranks)]


def reduce_scatter(
    output: torch.Tensor, inputs: Tensors, op: ReduceOperation, ranks: RankContext
) -> list[GroupCall] | None:
    """inputs: a tensor with all shards, or a tensor for each rank. Wrong sizes raise ValueError."""
    rank, n = ranks.rank, ranks.workers
    _alike("reduce_scatter", output, inputs)
    if len(inputs) == 1:
        _sizes("reduce_scatter", "input", inputs[0].numel(), n * output.numel())
    elif len(inputs) != n:
        raise ValueError(f"reduce_scatter: {len(inputs)} input tensors for {n} ranks")
    else:
        _sizes("reduce_scatter", "output", output.numel(), inputs[rank].numel())
    if any(part.numel() != inputs[0].numel() for part in inputs):
        return _uneven_reduce_scatter(output, inputs, op, ranks)
    k = output.numel()
    wire = _wire(output, op, ranks, n * output.nbytes)
    gives = tuple((tensor, place * k) for place, tensor in enumerate(inputs))
    if wire is None:
        gathered = _gathered("reduce_scatter", gives, output, op, ranks)
        return None if gathered is None else [gathered]
    signature = signature_of("reduce_scatter", op, output.dtype, n * k)
    call = _call(signature, n * k, wire, gives, ((output, rank * k),))
    return [_combined(call, (rank * k, (rank + 1) * k), op, ranks)]


def all_gather(outputs: Tensors, shard: torch.Tensor, ranks: RankContext) -> list[GroupCall]:
    """outputs: a tensor for all shards, or a tensor for each rank. Wrong sizes raise ValueError."""
    rank, n = ranks.rank, ranks.workers
    _alike("all_gather", shard, outputs)
    if len(outputs) == 1:
        _sizes("all_gather", "output", outputs[0].numel(), n * shard.numel())
    elif len(outputs) != n:
        raise ValueError(f"all_gather: {len(outputs)} output tensors for {n} ranks")
    else:
        _sizes("all_gather", "input", shard.numel(), outputs[rank].numel())
    if any(output.numel() != outputs[0].numel() for output in outputs):
        return [
            broadcast(output, root, ranks, source=shard if root == rank else None)
            for root, output in enumerate(outputs)
        ]
    k = shard.numel()
    takes = tuple((output, place * k) for place, output in enumerate(outputs))
    home = outputs[0] if len(outputs) == 1 else None
    signature = signature_of("all_gather", ReduceOperation(""), shard.dtype, n * k)
    return [_call(signature, n * k, shard.dtype, ((shard, rank * k),), takes, home)]


def broadcast(tensor: torch.Tensor, root: int, ranks: RankContext, source: torch.Tensor | None = None) -> GroupCall:
    """source: the root's values, where they aren't the tensor's."""
    gives = ((tensor if source is None else source, 0),) if ranks.rank == root else ()
    takes = ((tensor, 0),) if ranks.rank != root or source is not None else ()
    n, dtype = tensor.numel(), tensor.dtype
    signature = signature_of("broadcast", ReduceOperation(""), dtype, n, root)
    return _call(signature, n, dtype, gives, takes, tensor)


def barrier() -> GroupCall:
    return comparison(signature_of("barrier", ReduceOperation(""), torch.uint8, 0))


def comparison(signature: CallSignature) -> GroupCall:
    """A call that sends nothing: the ranks only compare its signature."""
    return _call(signature, kind="barrier")


def compared(parts: list[GroupCall], ranks: RankContext) -> list[GroupCall]:
    """Add a comparison where a host method's ranks could finish before they know that their roots differ."""
    first = next((part for part in parts if part.request.kind in ROOTED), None)
    return parts if first is None or ranks.switch or not ranks.compares else [comparison(first.signature), *parts]


def signature_of(
    kind: Kind, op: ReduceOperation, dtype: torch.dtype, elements: int, root: int = 0, sizes: int = 0
) -> CallSignature:
    """The signature of a collective, which ranks compare. sizes: as of `CallSignature`."""
    requested = requested_op_index(op.name, str(dtype).removeprefix("torch."), op.wire if op.name else "")
    return CallSignature(kind, op.wire, array_dtype(dtype), elements, root, requested, sizes)


def size_bytes(tensors: Tensors) -> int:
    """The bytes of all elements, with those that a sparse tensor leaves out."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor's floats; another tensor as it is. It raises RuntimeError for a conjugate view."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@lru_cache
def array_dtype(dtype: torch.dtype) -> "np.dtype[Any]":
    """The type of arrays that stand for tensors of this type."""
    return bits(torch.empty(0, dtype=dtype)).numpy().dtype


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or, of a type that NumPy hasn't, its bits."""
    return tensor if _in_numpy(tensor.dtype) else tensor.view(_BITS[tensor.element_size()])


def array_of(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """A tensor's memory. `Tensor.numpy()` would forbid its owner to resize it, as PowerSGD's batched hook does."""
    return from_dlpack(to_dlpack(bits(tensor))).numpy()  # of a tensor itself it takes 30 µs


def lies_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is its values, one behind the other."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def refuse_shared(tensor: torch.Tensor) -> None:
    """Raise ValueError where elements of a tensor that a call writes share memory, or may."""
    if tensor.is_contiguous():
        return
    end = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= end:
            raise ValueError(
                f"elements of a tensor share memory, so it can't hold a result: shape {tuple(tensor.shape)}, strides "
                f"{tensor.stride()}, as expand() makes; give its clone()"
            )
        end += (size - 1) * stride


# Private


@lru_cache
def _in_numpy(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


@lru_cache
def _wire_dtype(dtype: torch.dtype, op: str, switch: bool) -> torch.dtype | None:
    name = tensor_dtype(str(dtype).removeprefix("torch."), op, SWITCH if switch else None)
    return None if name is None else getattr(torch, name)


def _wire(
    tensor: torch.Tensor, op: ReduceOperation, ranks: RankContext, size_bytes: int | None = None
) -> torch.dtype | None:
    """The type in which the group combines a tensor; None: it doesn't combine it."""
    dtype = tensor.dtype
    if (
        op.name not in _COMBINED
        or (op.name == "avg" and dtype == torch.bool)
        or (op.name == "premul_sum" and not dtype.is_floating_point)
        or (ranks.switch and dtype.itemsize == 1 and (size_bytes or tensor.nbytes) > NARROW_BYTES_MAX)
    ):
        return None
    return _wire_dtype(dtype, op.wire, ranks.switch)


def _call(
    signature: CallSignature,
    elements: int = 0,
    dtype: torch.dtype = torch.uint8,
    gives: Places = (),
    takes: Places = (),
    home: torch.Tensor | None = None,
    *,
    kind: str = "",
) -> GroupCall:
    """A call of tensors in these places. kind: as which it travels, if not as the collective that it is."""
    root = signature.root if (kind or signature.kind) in ROOTED else 0
    kind, op = (kind, "sum") if kind else (signature.kind, signature.op)
    request = CallRequest(kind, op, root=root, requested_op=signature.requested_op, signature=signature)
    return GroupCall(request, elements, dtype, gives, takes, home)


def _combined(call: GroupCall, rank_range: tuple[int, int], op: ReduceOperation, ranks: RankContext) -> GroupCall:
    """A call that the group combines, by this operation. rank_range: the part of the array that this rank has
    afterwards."""
    if op.name == "avg" and call.request.kind in ranks.means and call.dtype.is_floating_point:
        return call._replace(request=call.request._replace(op=op.name))
    before, after = _around(op, rank_range, ranks.workers)
    return call._replace(before=before, after=after if call.takes else None)


def _packed(tensors: list[torch.Tensor], op: ReduceOperation, ranks: RankContext) -> GroupCall:
    """A call for all these tensors; each float tensor begins at a new row, so that tensors share no exponent."""
    dtype = tensors[0].dtype
    wire = _wire(tensors[0], op, ranks)
    assert wire is not None
    row = ranks.row if wire.is_floating_point else 1
    places, end = [], 0
    for tensor in tensors:
        places.append((tensor, end))
        end += -(-tensor.numel() // row) * row
    sizes = [tensor.numel() for tensor in tensors]
    signature = signature_of("allreduce", op, dtype, sum(sizes), sizes=zlib.crc32(repr(sizes).encode()) & 0xFF)
    return _combined(_call(signature, end, wire, tuple(places), tuple(places)), (0, end), op, ranks)


def _around(op: ReduceOperation, rank_range: tuple[int, int], workers: int) -> tuple[Finish | None, Finish | None]:
    """The functions that change the array before and after the call."""
    if op.name == "avg":
        return None, partial(_divide, rank_range, workers)
    if op.name == "premul_sum":
        return partial(_multiply, op.factor), None
    if op.name == "min":
        return partial(_reverse, (0, None)), partial(_reverse, rank_range)
    return None, None


def _divide(rank_range: tuple[int, int], divisor: int, array: torch.Tensor) -> None:
    """In place; integers towards zero, as NCCL does it."""
    part = array[rank_range[0] : rank_range[1]].numpy()
    if part.dtype.kind == "f":
        np.divide(part, divisor, out=part)
    else:
        np.subtract(part, np.fmod(part, divisor), out=part)
        np.floor_divide(part, divisor, out=part)


def _multiply(factor: Any, array: torch.Tensor) -> None:
    array.mul_(float(factor))


def _reverse(rank_range: tuple[int, int | None], array: torch.Tensor) -> None:
    """Reverse the order, so that a minimum is a maximum. Integers are inverted: the least integer has no negative."""
    part = array[rank_range[0] : rank_range[1]]
    if part.dtype.is_floating_point:
        part.neg_()
    else:
        part.bitwise_not_()


def _gathered(
    kind: Kind, inputs: Any, taker: torch.Tensor, op: ReduceOperation, ranks: RankContext, root: int = -1
) -> GroupCall | None:
    """A call that gathers all ranks' tensors, which every rank combines; None if they are too large, or can't be."""
    gives = ((inputs, 0),) if isinstance(inputs, torch.Tensor) else inputs
    dtype, n, rank = taker.dtype, ranks.workers, ranks.rank
    m = sum(tensor.numel() for tensor, _ in gives)
    bitwise = op.name.startswith("b")
    if (
        not ranks.compares
        or op.name not in _LOCAL
        or not _computes(dtype)
        or (bitwise and (dtype.is_floating_point or dtype.is_complex))
        or n * m * dtype.itemsize > GATHERED_BYTES_MAX
    ):
        return None
    k = taker.numel()
    first = rank * k if kind == "reduce_scatter" else 0

    def combine(array: torch.Tensor) -> None:
        rows = array.view(n, m)[:, first : first + k]
        rows = rows.float() if dtype in _NARROW_FLOATS else rows
        total = rows[0].clone()
        for row in rows[1:]:
            _LOCAL[op.name](total, row, out=total)
        array[:k] = total

    takes = ((taker, 0),) if root in (-1, rank) else ()
    gives = tuple((tensor, rank * m + start) for tensor, start in gives)
    signature = signature_of(kind, op, dtype, m, max(root, 0))
    call = _call(signature, n * m, dtype, gives, takes, kind="all_gather")
    return call._replace(after=combine if takes else None)


def _computes(dtype: torch.dtype) -> bool:
    """Whether PyTorch adds and compares values of this type."""
    return dtype not in (torch.uint16, torch.uint32, torch.uint64) and not (
        dtype.is_floating_point and dtype.itemsize == 1
    )


def refuse_type(kind: Kind, op: ReduceOperation, dtype: torch.dtype) -> None:
    """Raise TypeError where neither the group nor Gloo combines values of this type."""
    mean = op.name == "avg"
    floats = dtype.is_floating_point
    if kind in COMBINING and not dtype.is_complex and (dtype not in GLOO_TYPES or (mean and not floats)):
        better = "float32" if floats or mean else "int32" if dtype.itemsize < 4 else "int64"
        raise TypeError(
            f"{kind} ({op.name}) of {dtype}: neither switchagg nor Gloo combines values of this type here; give "
            f"tensor.to(torch.{better}); all_gather and broadcast take it as it is"
        )


def _uneven_reduce_scatter(
    output: torch.Tensor, inputs: Tensors, op: ReduceOperation, ranks: RankContext
) -> list[GroupCall] | None:
    """A reduce-scatter of shards of different sizes: a reduce for each rank."""
    parts: list[GroupCall] = []
    for root, tensor in enumerate(inputs):
        calls = reduce(tensor, op, root, ranks)
        if calls is None:
            return None
        (part,) = calls
        parts.append(part._replace(takes=((output, 0),) if root == ranks.rank else (), home=None))
    return parts


def _alike(kind: str, first: torch.Tensor, tensors: Tensors) -> None:
    for other in tensors:
        if other.dtype != first.dtype:
            raise ValueError(f"{kind}: tensors of {first.dtype} and {other.dtype}")


def _sizes(kind: str, which: str, elements: int, needed: int) -> None:
    if elements != needed:
        raise ValueError(f"{kind}: the {which} tensor has {elements} elements, and {needed} are needed")
