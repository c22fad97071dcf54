"""What every group does with a request and its array: it checks them, and gives the array the type and operation that
its carrier adds. The only place that knows how arrays travel.

| carrier           | combines                                                    | refuses                   |
|-------------------|-------------------------------------------------------------|---------------------------|
| the switch        | sums of float32, float64, int32, int64; maxima of int32     | maxima of 64 bits         |
| parameter servers | sums and maxima of these four types; means of the floats    | maxima of complex numbers |
| the ranks         | whatever NumPy adds and compares                            | nothing                   |

All other types are viewed, widened or ordered as one that the carrier combines:
integers of 8 and 16 bits travel as int32 and wrap as NumPy's, float16 as float32, rounded once; complex numbers as
their floats; unsigned ones as the signed ones of their size, their sign inverted for a maximum.
PyTorch's tensors are staged before they come here (`tensor_dtype`).
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from switchagg.calls.call_request import CallRequest, with_integers
from switchagg.description import COMBINING
from switchagg.option_syntax import choices
from transport.contracts.group_contract import Array

Restore = Callable[[], None]

Adds = Mapping[str, frozenset[str]]
"""Operation -> names of the types that a carrier combines by it."""

_BOTH = frozenset({"float32", "float64", "int32", "int64"})
SWITCH: Adds = {"sum": _BOTH, "max": frozenset({"int32"})}
SERVERS: Adds = {"sum": _BOTH, "max": _BOTH, "avg": frozenset({"float32", "float64"})}

How = Literal["as it is", "viewed", "widened", "sign turned", "ordered"]


class Conversion(NamedTuple):
    """The dtype that is combined in place of an array's, and the operation."""

    how: How
    dtype: str
    op: str


@lru_cache
def _route(kind: str, size: int, name: str, op: str, natively: frozenset[str]) -> Conversion | None:
    """kind, size, name: of a dtype. natively: what the carrier combines by `op`."""
    if name in natively:
        return Conversion("as it is", name, op)
    same_size = f"int{8 * size}"
    if op in ("sum", "avg") and kind == "c" and f"float{4 * size}" in natively:
        return Conversion("viewed", f"float{4 * size}", op)
    if op == "sum" and kind == "u" and same_size in natively:
        return Conversion("viewed", same_size, op)
    if op == "max" and kind == "u" and same_size in natively:
        return Conversion("sign turned", same_size, op)
    if kind == "b" and op in ("sum", "max"):
        return Conversion("widened", "int32", "max")
    if kind in "iu" and size < 4 and "int32" in natively:
        return Conversion("widened", "int32", op)
    if kind == "f" and size < 4 and "float32" in natively:
        return Conversion("widened", "float32", op)
    if op == "max" and kind == "f" and size <= 4:
        return Conversion("ordered", "int32", op)
    return None


def checked(request: CallRequest, array: Array, workers: int, ops: Collection[str] = ("sum", "max")) -> CallRequest:
    """The call, its numbers as whole numbers. Raises ValueError for what no collective can do."""
    flags, dtype = array.flags, array.dtype
    if array.ndim != 1 or not flags.c_contiguous or not flags.writeable:
        raise ValueError("an array must be 1-D, C-contiguous and writable")
    if request.op not in ops:
        raise ValueError(f"op '{request.op}' is unknown{choices(request.op, ops)}")
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise ValueError(f"dtype {dtype}: numbers of this machine's byte order")
    request = with_integers(request)
    if dtype == np.float16 and request.kind in COMBINING:
        request = request.rounded_to(dtype)
    if not 0 <= request.root < workers:
        raise ValueError(f"root {request.root}: 0 to {workers - 1}")
    return request


def ops_of(kind: str, dtype: "np.dtype[Any]", means: Collection[str]) -> tuple[str, ...]:
    """The operations of a group on an array. means: as of `Group`."""
    return ("sum", "max", "avg") if kind in means and dtype.kind in "fc" else ("sum", "max")


class Staged(NamedTuple):
    """wire: what the carrier combines, by `op`. restore: writes the result back; None: `wire` is the array's memory.
    unit: values of `wire` for one of the array."""

    wire: Array
    op: str
    restore: Restore | None
    unit: int = 1


def conversion_of(dtype: "np.dtype[Any]", op: str, adds: Adds, carrier: str) -> Conversion:
    """How arrays of a type travel. Raises ValueError, naming the carrier, for what it can't do."""
    route = _route(dtype.kind, dtype.itemsize, dtype.name, op, adds.get(op, frozenset()))
    if route is None:
        raise ValueError(f"{carrier} can't do {op} of {dtype}")
    return route


def stage(array: Array, op: str, adds: Adds, carrier: str) -> Staged:
    """The array that travels for an array. Raises ValueError, naming the carrier, for what that can't do."""
    dtype = array.dtype
    how, name, wire_op = conversion_of(dtype, op, adds, carrier)
    wire: Array
    if how == "as it is":
        return Staged(array, wire_op, None)
    if how == "viewed":
        wire = array.view(name)
        return Staged(wire, wire_op, None, dtype.itemsize // wire.itemsize)
    if how == "sign turned":
        sign = dtype.type(1 << (8 * dtype.itemsize - 1))
        wire = (array ^ sign).view(name)
        return Staged(wire, wire_op, lambda: np.copyto(array, wire.view(dtype) ^ sign))
    if how == "ordered":
        wire = _ordered(array.astype(np.float32))
        return Staged(wire, wire_op, lambda: np.copyto(array, _unordered(wire), casting="unsafe"))
    wire = array.astype(name)
    return Staged(wire, wire_op, lambda: np.copyto(array, wire, casting="unsafe"))


_CARRIED = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64", 16: "complex128"}


def as_carried(array: Array) -> Staged:
    """The array that parameter servers pass on unchanged: the bits of each element, whatever they mean."""
    return Staged(array.view(_CARRIED[array.itemsize]), "sum", None)


def _ordered(values: Array) -> Array:
    """float32 as int32 in the same order, with every NaN above all else."""
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _unordered(bits: Array) -> Array:
    values: Array = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    return values


# Types of PyTorch's tensors

TENSORS = {name: name for name in ("float32", "float64", "int32", "int64", "uint8", "int8", "int16", "bool")} | {
    "float16": "float32",
    "bfloat16": "float32",
}
"""Types of tensors, and what each travels as: a sum of 16 bit floats is rounded once, at the end."""


def tensor_dtype(name: str, op: str, adds: Adds | None) -> str | None:
    """The type as which a tensor of this type travels; None: it can't be combined. adds: as the carrier; None: all."""
    wire = TENSORS.get(name)
    if wire is None or adds is None:
        return wire
    dtype = np.dtype(wire)
    return wire if _route(dtype.kind, dtype.itemsize, dtype.name, op, adds[op]) else None
