"""The syntax tree of a P4-16 program: what the parser makes and the checker reads.

A node says what was written, with its place; nothing is resolved.
"""

from __future__ import annotations

from dataclasses import field

from p4vm.node import Node as Node
from p4vm.source import Position


class Type(Node):
    """A type as written."""


class Expression(Node):
    pass


class Statement(Node):
    pass


class Declaration(Node):
    pass


class Annotation(Node):
    """@name, @name(body), @name[body]. args: expressions where the body parses as such; tokens: the body's text."""

    name: str
    args: list[Expression] = field(default_factory=list)
    pairs: dict[str, Expression] = field(default_factory=dict)
    tokens: str = ""


# ---- types as written


class TypeName(Type):
    """A name in a place for types; dot: written as .name (global scope)."""

    name: str
    dot: bool = False


class BaseType(Type):
    """bool, error, string, match_kind, void, int (arbitrary precision), and `_` (don't care) by `name`."""

    name: str


class BitsType(Type):
    """bit<W>, int<W>, varbit<W>: kind is "bit", "int", "varbit"; width: a compile-time expression (`bit` alone: 1)."""

    kind: str
    width: Expression


class SpecializedType(Type):
    """T<A, …>."""

    base: TypeName
    arguments: list[Type]


class StackType(Type):
    """T[size]."""

    element: Type
    size: Expression


class TupleType(Type):
    """tuple<A, …>, or list<A> with is_list."""

    arguments: list[Type]
    is_list: bool = False


# ---- expressions


class Number(Expression):
    """An integer literal. width None: arbitrary precision; else bit<width>, or int<width> where signed."""

    value: int
    width: int | None = None
    signed: bool = False


class Bool(Expression):
    value: bool


class String(Expression):
    value: str


class Name(Expression):
    """An identifier in a place for expressions (also `this`); dot: written as .name."""

    name: str
    dot: bool = False


class TypeExpression(Expression):
    """A type where an expression may stand: the left of `E.member`, or a constructor's name."""

    type: Type


class Member(Expression):
    """base.name; base may be a TypeExpression (E.member) and `error` (TypeExpression of BaseType error)."""

    base: Expression
    name: str


class Index(Expression):
    base: Expression
    index: Expression


class Slice(Expression):
    """base[high:low], or base[low +: width] where `width` is given (then high is None)."""

    base: Expression
    high: Expression | None
    low: Expression
    width: Expression | None = None


class Unary(Expression):
    """operator: - ~ ! +"""

    operator: str
    operand: Expression


class Binary(Expression):
    """operator: + - * / % |+| |-| << >> & | ^ == != < <= > >= && || ++ (concatenation)."""

    operator: str
    left: Expression
    right: Expression


class Conditional(Expression):
    """condition ? yes : no"""

    condition: Expression
    yes: Expression
    no: Expression


class Cast(Expression):
    type: Type
    operand: Expression


class Mask(Expression):
    """value &&& mask, in sets (select, entries)."""

    value: Expression
    mask: Expression


class Range(Expression):
    """low .. high, in sets."""

    low: Expression
    high: Expression


class Default(Expression):
    """`default` or `_` in a set: any value."""


class DefaultRest(Expression):
    """`...`: as a whole initialiser, or the last of one: all fields not named take their default value."""


class InvalidHeader(Expression):
    """{#}: an invalid header or header union; its type comes from the context or a cast."""


class ListExpression(Expression):
    """{a, b, …}; rest: ends in `...`. In keyset places also the tuple (a, b, …)."""

    items: list[Expression]
    rest: bool = False


class StructExpression(Expression):
    """{x = a, …}, or with a type name before it; rest: ends in `...`."""

    fields: list[tuple[str, Expression]]
    type: Type | None = None
    rest: bool = False


class Argument(Node):
    """value, or name = value; value None is `_` (an out argument that nobody wants)."""

    value: Expression | None
    name: str | None = None


class Call(Expression):
    """callee<type_arguments>(arguments): function, method, action, constructor (callee: TypeExpression)."""

    callee: Expression
    type_arguments: list[Type]
    arguments: list[Argument]


# ---- statements


class Assign(Statement):
    """target = value; operator: "" or that of a compound assignment ("+", "|+|", "<<", …)."""

    target: Expression
    value: Expression
    operator: str = ""


class CallStatement(Statement):
    """A call for its effects; also direct application `Type.apply(args)` (callee: Member of a TypeExpression)."""

    call: Call


class Block(Statement):
    annotations: list[Annotation]
    items: list[Statement]


class If(Statement):
    condition: Expression
    yes: Statement
    no: Statement | None


class SwitchCase(Node):
    """label: Default for `default`; body None: falls through to the next case's body."""

    label: Expression
    body: Block | None


class Switch(Statement):
    subject: Expression
    cases: list[SwitchCase]


class For(Statement):
    """for (init; condition; step) body"""

    annotations: list[Annotation]
    init: list[Statement]
    condition: Expression
    step: list[Statement]
    body: Statement


class ForIn(Statement):
    """for (type name in collection) body; collection: a Range, a list, a header stack. type None: existing variable."""

    annotations: list[Annotation]
    type: Type | None
    name: str
    collection: Expression
    body: Statement


class Return(Statement):
    value: Expression | None


class Exit(Statement):
    pass


class Break(Statement):
    pass


class Continue(Statement):
    pass


class Empty(Statement):
    pass


# ---- declarations


class Parameter(Node):
    """direction: "" (none), "in", "out", "inout"."""

    annotations: list[Annotation]
    direction: str
    type: Type
    name: str
    default: Expression | None = None


class Variable(Declaration, Statement):
    annotations: list[Annotation]
    type: Type
    name: str
    value: Expression | None


class Constant(Declaration, Statement):
    annotations: list[Annotation]
    type: Type
    name: str
    value: Expression


class Instance(Declaration, Statement):
    """Type(arguments) name; members: the body of `Type(…) name = { … }` (abstract methods), else None."""

    annotations: list[Annotation]
    type: Type
    arguments: list[Argument]
    name: str
    members: list[Declaration] | None = None


class Field(Node):
    annotations: list[Annotation]
    type: Type
    name: str


class Structure(Declaration):
    """kind: struct, header, header_union."""

    annotations: list[Annotation]
    kind: str
    name: str
    type_parameters: list[str]
    fields: list[Field]


class Enum(Declaration):
    """base: the type of a serializable enum, else None. members: name -> value expression (None without base)."""

    annotations: list[Annotation]
    base: Type | None
    name: str
    members: list[tuple[str, Expression | None, Position]]


class Errors(Declaration):
    names: list[tuple[str, Position]]


class MatchKinds(Declaration):
    names: list[tuple[str, Position]]


class TypeDef(Declaration):
    """typedef T name (distinct False); type T name (distinct True). type may be a Structure written in place."""

    annotations: list[Annotation]
    type: Type | Structure
    name: str
    distinct: bool


class FunctionPrototype(Node):
    """returns None: a constructor. abstract: to be given by the instance's body."""

    annotations: list[Annotation]
    returns: Type | None
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]
    abstract: bool = False


class Function(Declaration):
    prototype: FunctionPrototype
    body: Block


class Action(Declaration):
    annotations: list[Annotation]
    name: str
    parameters: list[Parameter]
    body: Block


class ExternType(Declaration):
    """extern name<…> { methods }"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    methods: list[FunctionPrototype]


class ExternFunction(Declaration):
    prototype: FunctionPrototype


class Applicable(Declaration):
    """What parsers, controls and packages have in common, as types and with a body."""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[Parameter]


class ParserType(Applicable):
    """parser name<…>(parameters);"""


class ControlType(Applicable):
    """control name<…>(parameters);"""


class PackageType(Applicable):
    """package name<…>(parameters);"""


class SelectCase(Node):
    """keys: one per selected expression; a single Default may stand for all."""

    keys: list[Expression]
    state: str


class Transition(Node):
    """select None: goes to `state`; else `cases` decide."""

    state: str = ""
    select: list[Expression] | None = None
    cases: list[SelectCase] = field(default_factory=list)


class State(Node):
    """transition None: none was written, so reject."""

    annotations: list[Annotation]
    name: str
    items: list[Statement]
    transition: Transition | None


class ValueSet(Declaration):
    """value_set<T>(size) name;"""

    annotations: list[Annotation]
    type: Type
    size: Expression
    name: str


class Parser(Applicable):
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    states: list[State]


class Control(Applicable):
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    body: Block


class Key(Node):
    annotations: list[Annotation]
    expression: Expression
    match_kind: str


class ActionRef(Node):
    """An action in a table's list, default_action or entries; arguments bind its parameters with a direction first."""

    annotations: list[Annotation]
    name: str
    arguments: list[Argument]
    dot: bool = False


class Entry(Node):
    """keys : action;   priority: an expression or None; const: written with `const`."""

    annotations: list[Annotation]
    keys: list[Expression]
    action: ActionRef
    priority: Expression | None = None
    const: bool = False


class Property(Node):
    """name = value; any other table property."""

    annotations: list[Annotation]
    name: str
    value: Expression
    const: bool


class Table(Declaration):
    annotations: list[Annotation]
    name: str
    keys: list[Key]
    actions: list[ActionRef]
    default_action: ActionRef | None
    default_const: bool
    entries: list[Entry] | None
    entries_const: bool
    properties: list[Property]


class Program(Node):
    declarations: list[Declaration]
