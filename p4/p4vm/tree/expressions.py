"""Nodes for types and expressions as they are written; `tree` has the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4vm.source import NOWHERE, Position


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """position: of the first token that tells what the node is."""

    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Annotation(Node):
    """@name, @name(body), @name[body]. args: expressions where the body parses as such; tokens: the body's text."""

    name: str
    args: list[Expression] = field(default_factory=list)
    pairs: dict[str, Expression] = field(default_factory=dict)
    tokens: str = ""


# ---- types as written


@dataclass(slots=True, eq=False)
class TypeName(Node):
    """A name in a place for types; dot: written as .name (global scope)."""

    name: str
    dot: bool = False


@dataclass(slots=True, eq=False)
class BaseType(Node):
    """bool, error, string, match_kind, void, int (arbitrary precision), and `_` (don't care) by `name`."""

    name: str


@dataclass(slots=True, eq=False)
class BitsType(Node):
    """bit<W>, int<W>, varbit<W>: kind is "bit", "int", "varbit"; width: a compile-time expression (`bit` alone: 1)."""

    kind: str
    width: Expression


@dataclass(slots=True, eq=False)
class SpecializedType(Node):
    """T<A, …>."""

    base: TypeName
    arguments: list[Type]


@dataclass(slots=True, eq=False)
class StackType(Node):
    """T[size]."""

    element: Type
    size: Expression


@dataclass(slots=True, eq=False)
class TupleType(Node):
    """tuple<A, …>, or list<A> with is_list."""

    arguments: list[Type]
    is_list: bool = False


Type = TypeName | BaseType | BitsType | SpecializedType | StackType | TupleType


# ---- expressions


@dataclass(slots=True, eq=False)
class Number(Node):
    """An integer literal. width None: arbitrary precision; else bit<width>, or int<width> where signed."""

    value: int
    width: int | None = None
    signed: bool = False


@dataclass(slots=True, eq=False)
class Bool(Node):
    value: bool


@dataclass(slots=True, eq=False)
class String(Node):
    value: str


@dataclass(slots=True, eq=False)
class Name(Node):
    """An identifier in a place for expressions (also `this`); dot: written as .name."""

    name: str
    dot: bool = False


@dataclass(slots=True, eq=False)
class TypeExpression(Node):
    """A type where an expression may stand: the left of `E.member`, or a constructor's name."""

    type: Type


@dataclass(slots=True, eq=False)
class Member(Node):
    """base.name; base may be a TypeExpression (E.member) and `error` (TypeExpression of BaseType error)."""

    base: Expression
    name: str


@dataclass(slots=True, eq=False)
class Index(Node):
    base: Expression
    index: Expression


@dataclass(slots=True, eq=False)
class Slice(Node):
    """base[high:low], or base[low +: width] where `width` is given (then high is None)."""

    base: Expression
    high: Expression | None
    low: Expression
    width: Expression | None = None


@dataclass(slots=True, eq=False)
class Unary(Node):
    """operator: - ~ ! +"""

    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Binary(Node):
    """operator: + - * / % |+| |-| << >> & | ^ == != < <= > >= && || ++ (concatenation)."""

    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Conditional(Node):
    """condition ? yes : no"""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(slots=True, eq=False)
class Cast(Node):
    type: Type
    operand: Expression


@dataclass(slots=True, eq=False)
class Mask(Node):
    """value &&& mask, in sets (select, entries)."""

    value: Expression
    mask: Expression


@dataclass(slots=True, eq=False)
class Range(Node):
    """low .. high, in sets."""

    low: Expression
    high: Expression


@dataclass(slots=True, eq=False)
class Default(Node):
    """`default` or `_` in a set: any value."""


@dataclass(slots=True, eq=False)
class DefaultRest(Node):
    """`...`: as a whole initialiser, or the last of one: all fields not named take their default value."""


@dataclass(slots=True, eq=False)
class InvalidHeader(Node):
    """{#}: an invalid header or header union; its type comes from the context or a cast."""


@dataclass(slots=True, eq=False)
class ListExpression(Node):
    """{a, b, …}; rest: ends in `...`. In keyset places also the tuple (a, b, …)."""

    items: list[Expression]
    rest: bool = False


@dataclass(slots=True, eq=False)
class StructExpression(Node):
    """{x = a, …}, or with a type name before it; rest: ends in `...`."""

    fields: list[tuple[str, Expression]]
    type: Type | None = None
    rest: bool = False


@dataclass(slots=True, eq=False)
class Argument(Node):
    """value, or name = value; value None is `_` (an out argument that nobody wants)."""

    value: Expression | None
    name: str | None = None


@dataclass(slots=True, eq=False)
class Call(Node):
    """callee<type_arguments>(arguments): function, method, action, constructor (callee: TypeExpression)."""

    callee: Expression
    type_arguments: list[Type]
    arguments: list[Argument]


Expression = (
    Number
    | Bool
    | String
    | Name
    | TypeExpression
    | Member
    | Index
    | Slice
    | Unary
    | Binary
    | Conditional
    | Cast
    | Mask
    | Range
    | Default
    | DefaultRest
    | InvalidHeader
    | ListExpression
    | StructExpression
    | Call
)
