"""Types and expressions of the small program; `nodes` has the rest, and what holds of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeGuard

# ---- types


@dataclass(frozen=True, slots=True)
class Bits:
    """bit<width>, int<width> where signed. Also serializable enums."""

    width: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Bool:
    """Values are 0 and 1."""


@dataclass(frozen=True, slots=True)
class Varbits:
    """Up to width bits; the value knows how many."""

    width: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """An enum without base, error, or which action ran: a value is an index into members."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """kind: struct (also tuples, with fields f0, f1, …), header, union. Equal names are equal types."""

    kind: str
    name: str
    fields: tuple[tuple[str, Type], ...] = field(compare=False)

    def field_type(self, name: str) -> Type:
        return next(kind for field_name, kind in self.fields if field_name == name)


@dataclass(frozen=True, slots=True)
class Array:
    """A header stack: elements, and nextIndex that starts at 0. element: header or union."""

    element: Record
    size: int


@dataclass(frozen=True, slots=True)
class Text:
    """Strings, in arguments of externs only."""


Type = Bits | Bool | Varbits | Symbol | Record | Array | Text


def width_of(kind: Type) -> int:
    """Bits on the wire, in keys and in arguments; a varbit's none, as only the value knows."""
    match kind:
        case Bits():
            return kind.width
        case Bool():
            return 1
        case Symbol():
            return 32
        case Record():
            return sum(width_of(field) for _, field in kind.fields)
        case Array():
            return kind.size * width_of(kind.element)
    return 0


def is_signed(kind: Type) -> TypeGuard[Bits]:
    return isinstance(kind, Bits) and kind.signed


# ---- expressions: pure; every one has a type


@dataclass(slots=True, eq=False)
class Variable:
    """routine: name of the routine (control, parser, action, function) whose parameter or local it is."""

    name: str
    type: Type
    routine: str


@dataclass(slots=True, eq=False)
class Const:
    """Bits, Bool, Symbol: an int; Text: a str."""

    type: Type
    value: int | str


@dataclass(slots=True, eq=False)
class Local:
    """A variable of the routine itself, or, in an action, of the control that declares it."""

    type: Type
    variable: Variable


@dataclass(slots=True, eq=False)
class Member:
    """A field of a record; base may be any expression."""

    type: Type
    base: Expression
    field: str


@dataclass(slots=True, eq=False)
class Index:
    """An element of an array."""

    type: Type
    base: Expression
    index: Expression


@dataclass(slots=True, eq=False)
class Next:
    """stack.next, in parsers: the element at nextIndex; beyond the end: error StackOutOfBounds, reject."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class Last:
    """stack.last, in parsers: the element before nextIndex; of an empty stack: error StackOutOfBounds, reject."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class LastIndex:
    """stack.lastIndex: nextIndex - 1 modulo 2**32, as bit<32>."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class Unary:
    """operator: - ~ on Bits, ! on Bool."""

    type: Type
    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Binary:
    """operator: + - * / % |+| |-| & | ^ on equal Bits; << >> (right: any Bits, unsigned); == != on equal types, also
    records, arrays, varbits; < <= > >= on Bits; && || on Bool (short-circuit shows only as time: operands are pure)."""

    type: Type
    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Concat:
    """left ++ right: left is the more significant."""

    type: Type
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Slice:
    """base[high:low], unsigned. As a target it writes these bits alone."""

    type: Type
    base: Expression
    high: int
    low: int


@dataclass(slots=True, eq=False)
class Cast:
    """Bits to Bits: cut, or extended by the operand's sign; Bool to and from bit<1>; Symbol never."""

    type: Type
    operand: Expression


@dataclass(slots=True, eq=False)
class Mux:
    """condition ? yes : no"""

    type: Type
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(slots=True, eq=False)
class Valid:
    """isValid() of a header; of a union: whether any member is valid."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class Build:
    """A whole record (a header is valid then) or array from its parts, in order."""

    type: Type
    items: list[Expression]


@dataclass(slots=True, eq=False)
class Invalid:
    """{#}: an invalid header or union, all its fields zero."""

    type: Type


@dataclass(slots=True, eq=False)
class SizeBits:
    """Bits a header or struct takes on the wire now, varbits by their length: bit<32>."""

    type: Type
    base: Expression


Expression = (
    Const
    | Local
    | Member
    | Index
    | Next
    | Last
    | LastIndex
    | Unary
    | Binary
    | Concat
    | Slice
    | Cast
    | Mux
    | Valid
    | Build
    | Invalid
    | SizeBits
)
"""Targets (of assignments, out, inout, extract): Local, and Member, Index, Next, Last, Slice of a target."""
