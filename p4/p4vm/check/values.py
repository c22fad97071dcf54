"""Values known at compile time: what operators and casts make of them."""

from __future__ import annotations

import operator
from collections.abc import Callable

from p4vm.tree import types
from p4vm.tree.types import Value

BITS_MAX = 1 << 17
"""Bits of an int of any size, so that no constant takes all memory."""


class ValueFault(Exception):
    """What an operator cannot do with these values; a sentence."""


def wrap(value: int, kind: types.Type) -> int:
    """value modulo 2**width, as the type holds it."""
    if not isinstance(kind, types.Bits):
        return value
    value &= (1 << kind.width) - 1
    return value - (1 << kind.width) if kind.signed and kind.width and value >> (kind.width - 1) else value


def saturate(value: int, kind: types.Bits) -> int:
    low = -(1 << (kind.width - 1)) if kind.signed else 0
    high = (1 << (kind.width - kind.signed)) - 1
    return min(max(value, low), high)


def divide(left: int, right: int) -> int:
    if right == 0:
        raise ValueFault("division by zero")
    if left < 0 or right < 0:
        raise ValueFault("division is not defined for negative numbers")
    return left // right


def remainder(left: int, right: int) -> int:
    if right == 0:
        raise ValueFault("remainder of a division by zero")
    if left < 0 or right < 0:
        raise ValueFault("remainder is not defined for negative numbers")
    return left % right


def shift_left(left: int, right: int) -> int:
    if right < 0:
        raise ValueFault("shift by a negative number")
    if left and left.bit_length() + right > BITS_MAX:
        raise ValueFault(f"the result has more than {BITS_MAX} bits")
    return left << right if left else 0


def shift_right(left: int, right: int) -> int:
    if right < 0:
        raise ValueFault("shift by a negative number")
    return left >> min(right, BITS_MAX)


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide,
    "%": remainder,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    ">>": shift_right,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def binary(sign: str, left: Value, right: Value, kind: types.Type, right_kind: types.Type) -> Value | None:
    """left sign right; kind: the left operand's type (and the result's, of arithmetic). None: not to be known.

    Raises ValueFault.
    """
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    if isinstance(left, bool) or isinstance(right, bool):
        return boolean(sign, bool(left), bool(right))
    if isinstance(left, str) and isinstance(right, str) and sign == "++":
        return left + right
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    if sign in COMPARISONS:
        return COMPARISONS[sign](left, right)
    if sign == "++":
        return concatenate(left, right, kind, right_kind)
    if sign == "<<":
        return 0 if isinstance(kind, types.Bits) and right >= kind.width else wrap(shift_left(left, right), kind)
    if sign in ("|+|", "|-|"):
        assert isinstance(kind, types.Bits)
        return saturate(left + right if sign == "|+|" else left - right, kind)
    value = ARITHMETIC[sign](left, right)
    if value.bit_length() > BITS_MAX:
        raise ValueFault(f"the result has more than {BITS_MAX} bits")
    return wrap(value, kind)


def boolean(sign: str, left: bool, right: bool) -> bool | None:
    if sign == "&&":
        return left and right
    return left or right if sign == "||" else None


def concatenate(left: int, right: int, kind: types.Type, right_kind: types.Type) -> int | None:
    if not isinstance(kind, types.Bits) or not isinstance(right_kind, types.Bits):
        return None
    joined = (left << right_kind.width) | (right & ((1 << right_kind.width) - 1))
    return wrap(joined, types.Bits(kind.width + right_kind.width, kind.signed))


def cast(value: Value, kind: types.Type, to: types.Type) -> Value | None:
    """A constant of type `kind` as type `to` (neither a Distinct); None: not to be known."""
    if isinstance(kind, types.Enum) and kind != to:
        number = enum_number(kind, value)
        return None if number is None or kind.base is None else cast(number, kind.base, to)
    if isinstance(to, types.Bits):
        return wrap(int(value), to) if isinstance(value, int) else None
    if isinstance(to, types.Enum) and kind != to:
        if isinstance(value, int) and to.base is not None and (number := wrap(value, to.base)) in to.values:
            return to.members[to.values.index(number)]
        return None
    if to == types.BOOL:
        return bool(value)
    return value


def enum_number(kind: types.Enum, value: Value) -> int | None:
    return kind.values[kind.members.index(value)] if isinstance(value, str) and value in kind.members else None
