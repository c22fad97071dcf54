"""Expressions of the IR, computed at once where their parts are known."""

from __future__ import annotations

from p4vm.bit_arithmetic import COMPARISONS, ValueFault, compute, concatenate, wrap
from p4vm.ir import ir_nodes as ir
from p4vm.lower.body import Body
from p4vm.lower.kinds import BOOL, INT
from p4vm.source import NOWHERE, P4Error, Position
from p4vm.tree import types
from p4vm.tree.types import Value


def wrapped(value: int, kind: ir.Bits) -> int:
    """value modulo 2**width, as the type holds it; of any size for INT."""
    return value if kind == INT else wrap(value, kind)


def number(expression: ir.Expression) -> int | None:
    """The value of a constant that is a number, a truth value or a symbol."""
    if isinstance(expression, ir.Const) and not isinstance(expression.value, str):
        return expression.value
    return None


def boolean(value: bool) -> ir.Const:
    return ir.Const(BOOL, int(value))


def unary(sign: str, kind: ir.Type, operand: ir.Expression) -> ir.Expression:
    value = number(operand)
    if sign == "+":
        return operand
    if value is None:
        if sign == "!" and isinstance(operand, ir.Unary) and operand.operator == "!":
            return operand.operand
        return ir.Unary(kind, sign, operand)
    if sign == "!":
        return boolean(not value)
    assert isinstance(kind, ir.Bits)
    return ir.Const(kind, wrapped(-value if sign == "-" else ~value, kind))


def binary(
    sign: str, kind: ir.Type, left: ir.Expression, right: ir.Expression, position: Position = NOWHERE
) -> ir.Expression:
    """kind: the result's."""
    if sign in ("&&", "||"):
        return _logic(sign, left, right)
    first, second = number(left), number(right)
    if first is None or second is None:
        return ir.Binary(kind, sign, left, right)
    if sign in COMPARISONS:
        return boolean(COMPARISONS[sign](first, second))
    assert isinstance(kind, ir.Bits)
    if sign in ("/", "%") and not second:
        return ir.Const(kind, 0)
    try:
        return ir.Const(kind, compute(sign, first, second, None if kind == INT else kind))
    except ValueFault as fault:
        raise P4Error(f"{fault}", position) from None


def _logic(sign: str, left: ir.Expression, right: ir.Expression) -> ir.Expression:
    decided = sign == "||"
    known = number(left)
    if known is not None:
        return boolean(decided) if bool(known) == decided else right
    if number(right) == int(not decided):
        return left
    return ir.Binary(BOOL, sign, left, right)


def cast(kind: ir.Type, operand: ir.Expression) -> ir.Expression:
    """Between Bits, and between Bool and bit<1>; equal types need none."""
    if operand.type == kind:
        return operand
    value = number(operand)
    if value is None:
        return ir.Cast(kind, operand)
    return ir.Const(kind, wrapped(value, kind) if isinstance(kind, ir.Bits) else int(bool(value)))


def concat(kind: ir.Bits, left: ir.Expression, right: ir.Expression) -> ir.Expression:
    first, second = number(left), number(right)
    assert isinstance(right.type, ir.Bits)
    if first is None or second is None:
        if isinstance(left.type, ir.Bits) and left.type.width == 0:
            return cast(kind, right)
        return ir.Concat(kind, left, right)
    return ir.Const(kind, concatenate(first, second, right.type.width, kind))


def cut(base: ir.Expression, high: int, low: int) -> ir.Expression:
    """base[high:low]"""
    kind = ir.Bits(high - low + 1)
    value = number(base)
    if value is not None:
        return ir.Const(kind, (value >> low) & ((1 << kind.width) - 1))
    if low == 0 and base.type == kind:
        return base
    if isinstance(base, ir.BitSlice):
        return ir.BitSlice(kind, base.base, base.low + high, base.low + low)
    return ir.BitSlice(kind, base, high, low)


def mux(kind: ir.Type, condition: ir.Expression, yes: ir.Expression, no: ir.Expression) -> ir.Expression:
    known = number(condition)
    if known is not None:
        return yes if known else no
    return ir.Mux(kind, condition, yes, no)


def member(kind: ir.Type, base: ir.Expression, field: str) -> ir.Expression:
    """A field; of a record just built: that part of it."""
    if isinstance(base, ir.Build) and isinstance(base.type, ir.Record):
        names = [name for name, _ in base.type.fields]
        return base.items[names.index(field)]
    return ir.FieldOf(kind, base, field)


def zero(kind: ir.Type) -> ir.Expression | None:
    """The value everything starts with; None where no expression stands for it (varbits within)."""
    match kind:
        case ir.Bits() | ir.Bool() | ir.EnumMember():
            return ir.Const(kind, 0)
        case ir.Record(kind="struct"):
            items = [zero(item) for _, item in kind.fields]
        case ir.Record():
            return ir.Invalid(kind)
        case ir.Array():
            items = [ir.Invalid(kind.element) for _ in range(kind.size)]
        case _:
            return None
    known = [item for item in items if item is not None]
    return ir.Build(kind, known) if len(known) == len(items) else None


def constant(body: Body, value: Value | None, kind: types.Type, position: Position) -> ir.Expression:
    """The checker's value of this type."""
    while isinstance(kind, types.NewType):
        kind = kind.original
    if isinstance(value, str):
        return _named(body, value, kind, position)
    if isinstance(value, tuple):
        return _listed(body, value, kind, position)
    lowered = body.kind(kind, position)
    if value is None:
        return ir.Invalid(lowered)
    if isinstance(lowered, ir.Bits):
        return ir.Const(lowered, wrapped(int(value), lowered))
    return ir.Const(lowered, int(value))


def _named(body: Body, value: str, kind: types.Type, position: Position) -> ir.Expression:
    if kind == types.STRING:
        return ir.Const(ir.Text(), value)
    lowered = body.kind(kind, position)
    if isinstance(kind, types.EnumType) and value in kind.members:
        place = kind.members.index(value)
        return ir.Const(lowered, kind.values[place] if kind.base else place)
    if isinstance(lowered, ir.EnumMember) and value in lowered.members:
        return ir.Const(lowered, lowered.members.index(value))
    raise P4Error(f"{value} is not a value of {kind}", position)


def _listed(body: Body, value: tuple[object, ...], kind: types.Type, position: Position) -> ir.Expression:
    match kind:
        case types.StructureType():
            inner: list[types.Type] = [item for _, item in kind.fields]
        case types.TupleType(is_list=False):
            inner = list(kind.items)
        case types.StackType():
            inner = [kind.element] * kind.size
        case _:
            raise P4Error(f"a constant of type {kind} is not supported here; use a struct or tuple", position)
    items = [constant(body, item, of, position) for item, of in zip(value, inner, strict=True)]  # type: ignore[arg-type]
    lowered = body.kind(kind, position)
    if isinstance(kind, types.TupleType) and any(item == types.INTEGER for item in kind.items):
        lowered = body.world.kinds.tuple_record(tuple(item.type for item in items))
    return ir.Build(lowered, items)


def coerce(body: Body, value: ir.Expression, kind: ir.Type, position: Position) -> ir.Expression:
    """The value as a place of this type holds it; equal types need nothing. Raises P4Error: no such conversion."""
    if value.type == kind:
        return value
    if isinstance(kind, ir.Bits) and isinstance(value.type, ir.Bits | ir.Bool):
        return cast(kind, value)
    if kind == BOOL and isinstance(value.type, ir.Bits):
        return cast(kind, value)
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
    return [member(kind, value, name) for name, kind in value.type.fields]


def default(body: Body, kind: ir.Type, position: Position) -> ir.Expression:
    """The value that `...` stands for: zeros, invalid headers."""
    known = zero(kind)
    if known is not None:
        return known
    place = body.temporary(kind)
    body.emit(ir.Reset(place))
    return place


def settled(value: ir.Expression, position: Position) -> ir.Expression:
    """The value, unless its width is still open. Raises P4Error."""
    if value.type == INT:
        raise P4Error("this number has no width; write it with one: 32w5 or (bit<32>)5", position)
    return value
