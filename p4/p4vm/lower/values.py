"""Values known at compile time as expressions, and values brought to the type that their place has."""

from __future__ import annotations

from p4vm.check import types
from p4vm.check.checked import Value
from p4vm.ir import nodes as ir
from p4vm.lower import fold
from p4vm.lower.body import Body
from p4vm.lower.kinds import BOOL, INT
from p4vm.source import P4Error, Position


def constant(body: Body, value: Value | None, kind: types.Type, position: Position) -> ir.Expression:
    """The checker's value of this type."""
    while isinstance(kind, types.Distinct):
        kind = kind.original
    if isinstance(value, str):
        return _named(body, value, kind, position)
    if isinstance(value, tuple):
        return _listed(body, value, kind, position)
    lowered = body.kind(kind, position)
    if value is None:
        return ir.Invalid(lowered)
    if isinstance(lowered, ir.Bits):
        return ir.Const(lowered, fold.wrapped(int(value), lowered))
    return ir.Const(lowered, int(value))


def _named(body: Body, value: str, kind: types.Type, position: Position) -> ir.Expression:
    if kind == types.STRING:
        return ir.Const(ir.Text(), value)
    lowered = body.kind(kind, position)
    if isinstance(kind, types.Enum) and value in kind.members:
        place = kind.members.index(value)
        return ir.Const(lowered, kind.values[place] if kind.base else place)
    if isinstance(lowered, ir.Symbol) and value in lowered.members:
        return ir.Const(lowered, lowered.members.index(value))
    raise P4Error(f"{value} is not a value of {kind}", position)


def _listed(body: Body, value: tuple[object, ...], kind: types.Type, position: Position) -> ir.Expression:
    match kind:
        case types.Structure():
            inner: list[types.Type] = [item for _, item in kind.fields]
        case types.Tuple(is_list=False):
            inner = list(kind.items)
        case types.Stack():
            inner = [kind.element] * kind.size
        case _:
            raise P4Error(f"a constant of type {kind} is not supported here; use a struct or tuple", position)
    items = [constant(body, item, of, position) for item, of in zip(value, inner, strict=True)]  # type: ignore[arg-type]
    lowered = body.kind(kind, position)
    if isinstance(kind, types.Tuple) and any(item == types.INTEGER for item in kind.items):
        lowered = body.world.kinds.tuple_record(tuple(item.type for item in items))
    return ir.Build(lowered, items)


def coerce(body: Body, value: ir.Expression, kind: ir.Type, position: Position) -> ir.Expression:
    """The value as a place of this type holds it; equal types need nothing. Raises P4Error: no such conversion."""
    if value.type == kind:
        return value
    if isinstance(kind, ir.Bits) and isinstance(value.type, ir.Bits | ir.Bool):
        return fold.cast(kind, value)
    if kind == BOOL and isinstance(value.type, ir.Bits):
        return fold.cast(kind, value)
    if isinstance(kind, ir.Record | ir.Array):
        inner = _inner(kind)
        if isinstance(value, ir.Invalid):
            return ir.Invalid(kind)
        if isinstance(value.type, ir.Record) and len(value.type.fields) == len(inner):
            items = value.items if isinstance(value, ir.Build) else fields_of(value)
            return ir.Build(kind, [coerce(body, item, of, position) for item, of in zip(items, inner, strict=True)])
    raise P4Error("this value doesn't convert to the type that its place has; write a cast", position)


def _inner(kind: ir.Record | ir.Array) -> list[ir.Type]:
    return [item for _, item in kind.fields] if isinstance(kind, ir.Record) else [kind.element] * kind.size


def fields_of(value: ir.Expression) -> list[ir.Expression]:
    """The fields of a record, each an expression."""
    assert isinstance(value.type, ir.Record)
    return [fold.member(kind, value, name) for name, kind in value.type.fields]


def default(body: Body, kind: ir.Type, position: Position) -> ir.Expression:
    """The value that `...` stands for: zeros, invalid headers."""
    known = fold.zero(kind)
    if known is not None:
        return known
    place = body.temporary(kind, position)
    body.emit(ir.Reset(place))
    return place


def settled(value: ir.Expression, position: Position) -> ir.Expression:
    """The value, unless its width is still open. Raises P4Error."""
    if value.type == INT:
        raise P4Error("this number has no width; write it with one: 32w5 or (bit<32>)5", position)
    return value
