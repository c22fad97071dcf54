"""Arithmetic of the language on known values: wrapping, saturating, shifts beyond the width, int of any size."""

import operator
from collections.abc import Callable
from typing import Protocol

BITS_MAX = 1 << 17
"""Bits of an int of any size, so that no constant takes all memory."""


class Width(Protocol):
    """A type of `width` bits: bit<width>, and int<width> where signed."""

    @property
    def width(self) -> int: ...

    @property
    def signed(self) -> bool: ...


class ValueFault(Exception):
    """An operator cannot take these values; the message is a sentence."""


def wrap(value: int, kind: Width | None) -> int:
    """value modulo 2**width, as the type holds it; kind None: int of any size."""
    if kind is None:
        return value
    value &= (1 << kind.width) - 1
    return value - (1 << kind.width) if kind.signed and kind.width and value >> (kind.width - 1) else value


def limits(kind: Width) -> tuple[int, int]:
    """Smallest and largest value."""
    return (-(1 << (kind.width - 1)), (1 << (kind.width - 1)) - 1) if kind.signed else (0, (1 << kind.width) - 1)


def saturate(value: int, kind: Width) -> int:
    low, high = limits(kind)
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
    "<<": shift_left,
    ">>": shift_right,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def compute(sign: str, left: int, right: int, kind: Width | None) -> int:
    """left sign right, of and as type `kind`; None: int of any size. Raises ValueFault."""
    if sign in ("|+|", "|-|"):
        assert kind is not None
        return saturate(left + right if sign == "|+|" else left - right, kind)
    if sign == "<<" and kind is not None and right >= kind.width:
        return 0
    value = ARITHMETIC[sign](left, right)
    if value.bit_length() > BITS_MAX:
        raise ValueFault(f"the result has more than {BITS_MAX} bits")
    return wrap(value, kind)


def concatenate(left: int, right: int, right_width: int, kind: Width) -> int:
    """left ++ right as type `kind`, as wide as both."""
    return wrap(left << right_width | right & (1 << right_width) - 1, kind)
