"""The syntax tree of a P4-16 program: what the parser makes and the checker reads.

A node says what was written, with its place; nothing is resolved. Identity is the node itself (eq=False), so that the
checker can note types and declarations in dictionaries keyed by node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from switchagg.p4vm.source import NOWHERE, Position


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


# ---- statements


@dataclass(slots=True, eq=False)
class Assign(Node):
    """target = value; operator: "" or that of a compound assignment ("+", "|+|", "<<", …)."""

    target: Expression
    value: Expression
    operator: str = ""


@dataclass(slots=True, eq=False)
class CallStatement(Node):
    """A call for its effects; also direct application `Type.apply(args)` (callee: Member of a TypeExpression)."""

    call: Call


@dataclass(slots=True, eq=False)
class Block(Node):
    annotations: list[Annotation]
    items: list[Statement]


@dataclass(slots=True, eq=False)
class If(Node):
    condition: Expression
    yes: Statement
    no: Statement | None


@dataclass(slots=True, eq=False)
class SwitchCase(Node):
    """label: Default for `default`; body None: falls through to the next case's body."""

    label: Expression
    body: Block | None


@dataclass(slots=True, eq=False)
class Switch(Node):
    subject: Expression
    cases: list[SwitchCase]


@dataclass(slots=True, eq=False)
class For(Node):
    """for (init; condition; step) body"""

    annotations: list[Annotation]
    init: list[Statement]
    condition: Expression
    step: list[Statement]
    body: Statement


@dataclass(slots=True, eq=False)
class ForIn(Node):
    """for (type name in collection) body; collection: a Range, a list, a header stack. type None: existing variable."""

    annotations: list[Annotation]
    type: Type | None
    name: str
    collection: Expression
    body: Statement


@dataclass(slots=True, eq=False)
class Return(Node):
    value: Expression | None


@dataclass(slots=True, eq=False)
class Exit(Node):
    pass


@dataclass(slots=True, eq=False)
class Break(Node):
    pass


@dataclass(slots=True, eq=False)
class Continue(Node):
    pass


@dataclass(slots=True, eq=False)
class Empty(Node):
    pass


# ---- declarations


@dataclass(slots=True, eq=False)
class Parameter(Node):
    """direction: "" (none), "in", "out", "inout"."""

    annotations: list[Annotation]
    direction: str
    type: Type
    name: str
    default: Expression | None = None


@dataclass(slots=True, eq=False)
class Variable(Node):
    annotations: list[Annotation]
    type: Type
    name: str
    value: Expression | None


@dataclass(slots=True, eq=False)
class Constant(Node):
    annotations: list[Annotation]
    type: Type
    name: str
    value: Expression


@dataclass(slots=True, eq=False)
class Instance(Node):
    """Type(arguments) name; members: the body of `Type(…) name = { … }` (abstract methods), else None."""

    annotations: list[Annotation]
    type: Type
    arguments: list[Argument]
    name: str
    members: list[Declaration] | None = None


@dataclass(slots=True, eq=False)
class Field(Node):
    annotations: list[Annotation]
    type: Type
    name: str


@dataclass(slots=True, eq=False)
class Structure(Node):
    """kind: struct, header, header_union."""

    annotations: list[Annotation]
    kind: str
    name: str
    type_parameters: list[str]
    fields: list[Field]


@dataclass(slots=True, eq=False)
class Enum(Node):
    """base: the type of a serializable enum, else None. members: name -> value expression (None without base)."""

    annotations: list[Annotation]
    base: Type | None
    name: str
    members: list[tuple[str, Expression | None, Position]]


@dataclass(slots=True, eq=False)
class Errors(Node):
    names: list[tuple[str, Position]]


@dataclass(slots=True, eq=False)
class MatchKinds(Node):
    names: list[tuple[str, Position]]


@dataclass(slots=True, eq=False)
class TypeDef(Node):
    """typedef T name (distinct False); type T name (distinct True). type may be a Structure written in place."""

    annotations: list[Annotation]
    type: Type | Structure
    name: str
    distinct: bool


@dataclass(slots=True, eq=False)
class FunctionPrototype(Node):
    """returns None: a constructor. abstract: to be given by the instance's body."""

    annotations: list[Annotation]
    returns: Type | None
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]
    abstract: bool = False


@dataclass(slots=True, eq=False)
class Function(Node):
    prototype: FunctionPrototype
    body: Block


@dataclass(slots=True, eq=False)
class Action(Node):
    annotations: list[Annotation]
    name: str
    parameters: list[Parameter]
    body: Block


@dataclass(slots=True, eq=False)
class ExternType(Node):
    """extern name<…> { methods }"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    methods: list[FunctionPrototype]


@dataclass(slots=True, eq=False)
class ExternFunction(Node):
    prototype: FunctionPrototype


@dataclass(slots=True, eq=False)
class ParserType(Node):
    """parser name<…>(parameters);"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]


@dataclass(slots=True, eq=False)
class ControlType(Node):
    """control name<…>(parameters);"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]


@dataclass(slots=True, eq=False)
class PackageType(Node):
    """package name<…>(parameters);"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]


@dataclass(slots=True, eq=False)
class SelectCase(Node):
    """keys: one per selected expression; a single Default may stand for all."""

    keys: list[Expression]
    state: str


@dataclass(slots=True, eq=False)
class Transition(Node):
    """select None: goes to `state`; else `cases` decide."""

    state: str = ""
    select: list[Expression] | None = None
    cases: list[SelectCase] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class State(Node):
    """transition None: none was written, so reject."""

    annotations: list[Annotation]
    name: str
    items: list[Statement]
    transition: Transition | None


@dataclass(slots=True, eq=False)
class ValueSet(Node):
    """value_set<T>(size) name;"""

    annotations: list[Annotation]
    type: Type
    size: Expression
    name: str


@dataclass(slots=True, eq=False)
class Parser(Node):
    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    states: list[State]


@dataclass(slots=True, eq=False)
class Control(Node):
    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    body: Block


@dataclass(slots=True, eq=False)
class Key(Node):
    annotations: list[Annotation]
    expression: Expression
    match_kind: str


@dataclass(slots=True, eq=False)
class ActionRef(Node):
    """An action in a table's list, default_action or entries; arguments bind its parameters with a direction first."""

    annotations: list[Annotation]
    name: str
    arguments: list[Argument]
    dot: bool = False


@dataclass(slots=True, eq=False)
class Entry(Node):
    """keys : action;   priority: an expression or None; const: written with `const`."""

    annotations: list[Annotation]
    keys: list[Expression]
    action: ActionRef
    priority: Expression | None = None
    const: bool = False


@dataclass(slots=True, eq=False)
class Property(Node):
    """name = value; any other table property."""

    annotations: list[Annotation]
    name: str
    value: Expression
    const: bool


@dataclass(slots=True, eq=False)
class Table(Node):
    annotations: list[Annotation]
    name: str
    keys: list[Key]
    actions: list[ActionRef]
    default_action: ActionRef | None
    default_const: bool
    entries: list[Entry] | None
    entries_const: bool
    properties: list[Property]


Declaration = (
    Variable
    | Constant
    | Instance
    | Structure
    | Enum
    | Errors
    | MatchKinds
    | TypeDef
    | Function
    | Action
    | ExternType
    | ExternFunction
    | ParserType
    | ControlType
    | PackageType
    | ValueSet
    | Parser
    | Control
    | Table
)

Statement = (
    Variable
    | Constant
    | Instance
    | Assign
    | CallStatement
    | Block
    | If
    | Switch
    | For
    | ForIn
    | Return
    | Exit
    | Break
    | Continue
    | Empty
)


@dataclass(slots=True, eq=False)
class Program(Node):
    declarations: list[Declaration]
