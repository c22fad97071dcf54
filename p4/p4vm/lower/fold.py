"""Expressions of the IR, computed at once where their parts are known."""

from collections.abc import Sequence

from p4vm.algorithms import WORD
from p4vm.bit_arithmetic import COMPARISONS, ValueFault, compute, concatenate, wrap
from p4vm.ir import ir_nodes as ir
from p4vm.ir.walk import parts_of
from p4vm.lower.body import Body
from p4vm.lower.kinds import BIT32, BIT64, BOOL, INT
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
    if sign == "!":
        if value is not None:
            return boolean(not value)
        return operand.operand if isinstance(operand, ir.Not) else ir.Not(BOOL, operand)
    assert isinstance(kind, ir.Bits)
    if value is not None:
        return ir.Const(kind, wrapped(-value if sign == "-" else ~value, kind))
    if sign == "-":
        return ir.Binary(kind, "-", ir.Const(kind, 0), operand)
    return ir.Binary(kind, "^", operand, ir.Const(kind, wrapped(-1, kind)))


def binary(
    sign: str, kind: ir.Type, left: ir.Expression, right: ir.Expression, position: Position = NOWHERE
) -> ir.Expression:
    """kind: the result's."""
    if sign in ("&&", "||"):
        return _logic(sign, left, right)
    if isinstance(left.type, ir.Record | ir.Array):
        return _same(left, right) if sign == "==" else unary("!", BOOL, _same(left, right))
    first, second = number(left), number(right)
    if first is None or second is None:
        return _shift(sign, kind, left, right) if sign in ("<<", ">>") else ir.Binary(kind, sign, left, right)
    if sign in COMPARISONS:
        return boolean(COMPARISONS[sign](first, second))
    assert isinstance(kind, ir.Bits)
    if sign in ("/", "%") and not second:
        return ir.Const(kind, 0)
    try:
        return ir.Const(kind, compute(sign, first, second, None if kind == INT else kind))
    except ValueFault as fault:
        raise P4Error(f"{fault}", position) from None


def _same(left: ir.Expression, right: ir.Expression) -> ir.Expression:
    """Whether two values are equal, scalar by scalar; two invalid headers are, whatever they store."""
    if not isinstance(left.type, ir.Record | ir.Array):
        return ir.Binary(BOOL, "==", left, right)
    equal = all_of([_same(*pair) for pair in zip(parts_of(left), parts_of(right), strict=True)])
    if not isinstance(left.type, ir.Record) or left.type.kind != "header":
        return equal
    valid = [ir.Valid(BOOL, header) for header in (left, right)]
    return _logic("&&", ir.Binary(BOOL, "==", *valid), _logic("||", ir.Not(BOOL, valid[0]), equal))


def _shift(sign: str, kind: ir.Type, left: ir.Expression, right: ir.Expression) -> ir.Expression:
    assert isinstance(kind, ir.Bits)
    right = small(right)
    if (number(right) or 0) >= kind.width:
        if sign == "<<" or not kind.signed or not kind.width:
            return ir.Const(kind, 0)
        right = ir.Const(right.type, kind.width - 1)
    return ir.Binary(kind, sign, left, right)


def small(value: ir.Expression) -> ir.Expression:
    """The value as bit<W> of at most 64 bits; negative and larger ones become the largest."""
    kind, known = value.type, number(value)
    if not isinstance(kind, ir.Bits) or (kind.width <= 64 and not kind.signed):
        return value
    if known is not None:
        return ir.Const(BIT64, known if 0 <= known <= WORD else WORD)
    if kind.width <= 64:
        return cast(BIT64, value)
    pattern = cast(ir.Bits(kind.width), value)
    beyond = ir.BitSlice(ir.Bits(kind.width - 64), pattern, kind.width - 1, 64)
    return ir.Mux(
        BIT64, ir.Binary(BOOL, "==", beyond, ir.Const(beyond.type, 0)), cast(BIT64, pattern), ir.Const(BIT64, WORD)
    )


def all_of(conditions: Sequence[ir.Expression], sign: str = "&&") -> ir.Expression:
    """Whether all of the conditions hold (none: yes), or with || any of them (none: no), nested as little as can be."""
    if len(conditions) < 2:
        return conditions[0] if conditions else boolean(sign == "&&")
    middle = len(conditions) // 2
    return _logic(sign, all_of(conditions[:middle], sign), all_of(conditions[middle:], sign))


def valid(base: ir.Expression) -> ir.Expression:
    """isValid() of a header; of a union: whether any member is valid."""
    if isinstance(base.type, ir.Record) and base.type.kind == "union":
        return all_of([ir.Valid(BOOL, part) for part in parts_of(base)], "||")
    return ir.Valid(BOOL, base)


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
    assert isinstance(left.type, ir.Bits)
    assert isinstance(right.type, ir.Bits)
    if first is not None and second is not None:
        return ir.Const(kind, concatenate(first, second, right.type.width, kind))
    raw = ir.Bits(kind.width)
    high, low = (cast(raw, cast(ir.Bits(ir.width_of(part.type)), part)) for part in (left, right))
    moved = binary("<<", raw, high, ir.Const(BIT32, right.type.width))
    return cast(kind, ir.Binary(raw, "|", moved, low))


def with_bits(base: ir.Expression, value: ir.Expression, low: ir.Expression) -> ir.Expression:
    """The base with the value in its bits from `low` on."""
    kind = base.type
    assert isinstance(kind, ir.Bits)
    assert isinstance(value.type, ir.Bits)
    raw = ir.Bits(kind.width)
    ones = binary("<<", raw, ir.Const(raw, wrapped((1 << value.type.width) - 1, raw)), low)
    unchanged = binary("&", raw, cast(raw, base), unary("~", raw, ones))
    moved = binary("<<", raw, cast(raw, cast(ir.Bits(value.type.width), value)), low)
    return cast(kind, binary("|", raw, unchanged, moved))


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
            items = zip(parts_of(value), inner, strict=True)
            return ir.Build(kind, [coerce(body, item, of, position) for item, of in items])
    raise P4Error("this value doesn't convert to the type that its place has; write a cast", position)


def _inner(kind: ir.Record | ir.Array) -> list[ir.Type]:
    return [item for _, item in kind.fields] if isinstance(kind, ir.Record) else [kind.element] * kind.size


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
