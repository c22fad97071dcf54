"""Values known at compile time: what operators and casts make of them."""

from p4vm import bit_arithmetic
from p4vm.bit_arithmetic import COMPARISONS, compute, concatenate
from p4vm.tree import types
from p4vm.tree.types import Value


def wrap(value: int, kind: types.Type) -> int:
    """value modulo 2**width, as the type holds it; an int of any size stays."""
    return bit_arithmetic.wrap(value, kind) if isinstance(kind, types.BitsType) else value


def binary(sign: str, left: Value, right: Value, kind: types.Type, right_kind: types.Type) -> Value | None:
    """left sign right; kind: the left operand's type (and the result's, of arithmetic). None: it can't be known.

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
    if sign != "++":
        return compute(sign, left, right, kind if isinstance(kind, types.BitsType) else None)
    if not isinstance(kind, types.BitsType) or not isinstance(right_kind, types.BitsType):
        return None
    return concatenate(left, right, right_kind.width, types.BitsType(kind.width + right_kind.width, kind.signed))


def boolean(sign: str, left: bool, right: bool) -> bool | None:
    if sign == "&&":
        return left and right
    return left or right if sign == "||" else None


def cast(value: Value, kind: types.Type, to: types.Type) -> Value | None:
    """A constant of type `kind` as type `to` (neither a NewType); None: not to be known."""
    if isinstance(kind, types.EnumType) and kind != to:
        number = enum_number(kind, value)
        return None if number is None or kind.base is None else cast(number, kind.base, to)
    if isinstance(to, types.BitsType):
        return wrap(int(value), to) if isinstance(value, int) else None
    if isinstance(to, types.EnumType) and kind != to:
        if isinstance(value, int) and to.base is not None and (number := wrap(value, to.base)) in to.values:
            return to.members[to.values.index(number)]
        return None
    if to == types.BOOL:
        return bool(value)
    return value


def enum_number(kind: types.EnumType, value: Value) -> int | None:
    return kind.values[kind.members.index(value)] if isinstance(value, str) and value in kind.members else None
