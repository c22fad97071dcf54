"""Expressions of the small program, computed at once where their parts are known.

Arithmetic is that of the language: wrapping by width, saturating |+| and |-|, shifts beyond the width, int of any size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from p4vm.ir import nodes as ir
from p4vm.lower.kinds import BOOL, INT
from p4vm.source import NOWHERE, P4Error, Position

SHIFT_MAX = 1 << 16
"""int constants don't grow beyond this many bits."""
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "/": lambda left, right: left // right if right else 0,
    "%": lambda left, right: left % right if right else 0,
    "|+|": operator.add,
    "|-|": operator.sub,
}


def limits(kind: ir.Bits) -> tuple[int, int]:
    """Smallest and largest value."""
    if kind.width <= 0:
        return 0, 0
    return (-(1 << (kind.width - 1)), (1 << (kind.width - 1)) - 1) if kind.signed else (0, (1 << kind.width) - 1)


def wrapped(value: int, kind: ir.Bits) -> int:
    """value as the type holds it."""
    if kind == INT:
        return value
    if kind.width <= 0:
        return 0
    value &= (1 << kind.width) - 1
    return value - (1 << kind.width) if kind.signed and value >> (kind.width - 1) else value


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
    if sign in _COMPARE:
        return boolean(_COMPARE[sign](first, second))
    assert isinstance(kind, ir.Bits)
    if sign in ("<<", ">>"):
        return ir.Const(kind, _shifted(sign, kind, first, second, position))
    result = _COMPUTE[sign](first, second)
    if sign in ("|+|", "|-|"):
        low, high = limits(kind)
        return ir.Const(kind, min(max(result, low), high))
    return ir.Const(kind, wrapped(result, kind))


def _shifted(sign: str, kind: ir.Bits, value: int, count: int, position: Position) -> int:
    if count < 0:
        raise P4Error("shift by a negative number; shift the other way", position)
    if sign == ">>":
        return value >> min(count, max(value.bit_length(), 1))
    if kind != INT:
        return wrapped(value << count, kind) if count < kind.width else 0
    if count > SHIFT_MAX:
        raise P4Error(f"constant shifted by {count} bits; at most {SHIFT_MAX} are supported", position)
    return value << count


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
    low = second & ((1 << right.type.width) - 1)
    return ir.Const(kind, wrapped(first << right.type.width | low, kind))


def cut(base: ir.Expression, high: int, low: int) -> ir.Expression:
    """base[high:low]"""
    kind = ir.Bits(high - low + 1)
    value = number(base)
    if value is not None:
        return ir.Const(kind, (value >> low) & ((1 << kind.width) - 1))
    if low == 0 and base.type == kind:
        return base
    if isinstance(base, ir.Slice):
        return ir.Slice(kind, base.base, base.low + high, base.low + low)
    return ir.Slice(kind, base, high, low)


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
    return ir.Member(kind, base, field)


def zero(kind: ir.Type) -> ir.Expression | None:
    """The value everything starts with; None where no expression says it (varbits within)."""
    match kind:
        case ir.Bits() | ir.Bool() | ir.Symbol():
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
