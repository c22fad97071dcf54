"""Types of P4-16 as the checker resolves them: no names left to look up, widths evaluated, typedefs replaced.

Equal types are equal values (frozen dataclasses), apart from nominal ones, which compare by name (and type arguments).
"""

from dataclasses import dataclass, field
from typing import Any


class Named:
    """A type that is written as its name."""

    __slots__ = ()
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class BitsType:
    """bit<width>, or int<width> where signed. width 0 is allowed."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True, slots=True)
class IntegerType:
    """int: compile-time integers of any size."""

    def __str__(self) -> str:
        return "int"


@dataclass(frozen=True, slots=True)
class VarbitsType:
    """varbit<width>: at most width bits."""

    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True, slots=True)
class SimpleType(Named):
    """bool, error, string, match_kind, void, and `_` (a don't-care type argument) by name."""

    name: str


BOOL = SimpleType("bool")
ERROR = SimpleType("error")
STRING = SimpleType("string")
MATCH_KIND = SimpleType("match_kind")
VOID = SimpleType("void")
INTEGER = IntegerType()


@dataclass(frozen=True, slots=True)
class EnumType(Named):
    """base: underlying type of a serializable enum; values: its members' numbers (0, 1, … without base)."""

    name: str
    members: tuple[str, ...] = field(compare=False)
    base: BitsType | None = field(default=None, compare=False)
    values: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class StructureType(Named):
    """kind: struct, header, header_union. name: with type arguments if generic, as in `Pair<bit<8>, bool>`."""

    kind: str
    name: str
    fields: "tuple[tuple[str, Type], ...]" = field(compare=False)
    annotations: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def field_type(self, name: str) -> "Type | None":
        return next((kind for field_name, kind in self.fields if field_name == name), None)


@dataclass(frozen=True, slots=True)
class StackType:
    """element[size]; element: a header or header union."""

    element: StructureType
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """tuple<…>; also the type of {a, b, …} before it is converted. is_list: list<T> with its one type argument."""

    items: "tuple[Type, ...]"
    is_list: bool = False

    def __str__(self) -> str:
        return f"{'list' if self.is_list else 'tuple'}<{', '.join(map(str, self.items))}>"


@dataclass(frozen=True, slots=True)
class SetType:
    """The values that a select key or an entry matches: a set of an element type."""

    element: "Type"

    def __str__(self) -> str:
        return f"set<{self.element}>"


@dataclass(frozen=True, slots=True)
class NewType(Named):
    """type T name: as T, but another type; converts to and from T by cast only."""

    name: str
    original: "Type" = field(compare=False)


@dataclass(frozen=True, slots=True)
class TypeVariable(Named):
    """A type parameter, bound when its generic declaration is used. owner: that declaration's name."""

    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class ExternType:
    name: str
    arguments: "tuple[Type, ...]" = ()

    def __str__(self) -> str:
        return f"{self.name}<{', '.join(map(str, self.arguments))}>" if self.arguments else self.name


@dataclass(frozen=True, slots=True)
class ParameterType:
    """direction: "" "in" "out" "inout". optional: has a default value or @optional."""

    direction: str
    type: "Type"
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CallableType:
    """kind: parser, control, package (types or declarations), function, method, action, constructor.

    name: the declaration's. parameters: those of apply or of the call. type_arguments: of a specialised one.
    """

    kind: str
    name: str
    parameters: tuple[ParameterType, ...] = field(compare=False)
    returns: "Type" = field(default=VOID, compare=False)
    type_parameters: tuple[TypeVariable, ...] = field(default=(), compare=False)
    type_arguments: "tuple[Type, ...]" = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class TableType:
    """A table of a control; actions: names as in its list."""

    name: str
    actions: tuple[str, ...] = field(compare=False)

    def __str__(self) -> str:
        return f"table {self.name}"


@dataclass(frozen=True, slots=True)
class ApplyResultType:
    """The result of table.apply(): fields hit, miss (bool), action_run (for switch)."""

    table: TableType

    def __str__(self) -> str:
        return f"apply_result({self.table.name})"


Type = (
    BitsType
    | IntegerType
    | VarbitsType
    | SimpleType
    | EnumType
    | StructureType
    | StackType
    | TupleType
    | SetType
    | NewType
    | TypeVariable
    | ExternType
    | CallableType
    | TableType
    | ApplyResultType
)


UNTYPED_HEADER = SimpleType("{#}")
UNTYPED_DEFAULT = SimpleType("...")
ANONYMOUS = "struct {"
"""How the name of a struct expression's own type begins."""


Value = int | bool | str | tuple[Any, ...]
"""Compile-time value: bit, int as int; bool; string; enum and error members as the member's name; lists as tuples."""


WIDTH_MAX = 1 << 16
"""Bits of one value, which C has on its stack. The reference compiler stops at 2048; nothing that a packet holds in one
field needs more."""
NAME_MAX = 2000
"""Characters of a type's name with its arguments: generics nested without end stop here."""
DATA_SIMPLE = frozenset({"bool", "error"})


def bare(kind: Type) -> Type:
    """Without `type T name` around it."""
    while isinstance(kind, NewType):
        kind = kind.original
    return kind


def inside(kind: Type) -> tuple[Type, ...]:
    """Types of a structure's fields, a stack's elements, a tuple's or list's items; of any other type none."""
    if isinstance(kind, StructureType):
        return tuple(field for _, field in kind.fields)
    if isinstance(kind, TupleType):
        return kind.items
    return (kind.element,) if isinstance(kind, StackType) else ()


def is_data(kind: Type) -> bool:
    """Whether a variable or a struct's field may have this type."""
    kind = bare(kind)
    if isinstance(kind, TupleType):
        return not kind.is_list and all(map(is_data, kind.items))
    if isinstance(kind, SimpleType):
        return kind.name in DATA_SIMPLE
    return isinstance(kind, BitsType | VarbitsType | EnumType | StructureType | StackType | TypeVariable)


def fits_header(kind: Type) -> bool:
    """Whether a header's field may have this type: bits alone, also in structs."""
    kind = bare(kind)
    if isinstance(kind, StructureType):
        return kind.kind == "struct" and all(
            fits_header(field) and not isinstance(bare(field), VarbitsType) for _, field in kind.fields
        )
    if isinstance(kind, EnumType):
        return kind.base is not None
    return isinstance(kind, BitsType | VarbitsType | TypeVariable) or kind == BOOL


def weight(kind: Type) -> int:
    return 1 + sum(weight(item) for item in kind.items) if isinstance(kind, TupleType) else 1


def zero(kind: Type) -> Value | None:
    """The default value `...` of a type, where it is a value: headers, which become invalid, have none."""
    kind = bare(kind)
    if isinstance(kind, BitsType | IntegerType):
        return 0
    if kind == BOOL:
        return False
    if kind == ERROR:
        return "NoError"
    if isinstance(kind, EnumType):
        return kind.members[kind.values.index(0)] if 0 in kind.values else None
    if isinstance(kind, TupleType) or (isinstance(kind, StructureType) and kind.kind == "struct"):
        return all_or_none([zero(part) for part in inside(kind)])
    return None


def all_or_none(values: list[Value | None]) -> Value | None:
    """A tuple of the values if all are known."""
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else None


DONT_CARE = SimpleType("_")


def variables_of(names: list[str], owner: str) -> tuple[TypeVariable, ...]:
    return tuple(TypeVariable(name, owner) for name in names)
