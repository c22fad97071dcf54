"""The syntax tree of a P4-16 program: what the parser makes and the checker reads.

A node says what was written, with its place; nothing is resolved.
"""

from __future__ import annotations

import re
from dataclasses import field

from p4vm.node import Node as Node
from p4vm.source import Position


class Type(Node):
    """A type as written."""


class ExpressionNode(Node):
    pass


class StatementNode(Node):
    pass


class Declaration(Node):
    pass


class Annotation(Node):
    """@name, @name(body), @name[body]. args: expressions where the body parses as such; tokens: the body's text."""

    name: str
    args: list[ExpressionNode] = field(default_factory=list)
    pairs: dict[str, ExpressionNode] = field(default_factory=dict)
    tokens: str = ""


# ---- types as written


class TypeName(Type):
    """A name in a place for types; dot: written as .name (global scope)."""

    name: str
    dot: bool = False


class BaseType(Type):
    """bool, error, string, match_kind, void, int (arbitrary precision), and `_` (don't care) by `name`."""

    name: str


class BitsTypeName(Type):
    """bit<W>, int<W>, varbit<W>: kind is "bit", "int", "varbit"; width: a compile-time expression (`bit` alone: 1)."""

    kind: str
    width: ExpressionNode


class SpecializedType(Type):
    """T<A, …>."""

    base: TypeName
    arguments: list[Type]


class StackTypeName(Type):
    """T[size]."""

    element: Type
    size: ExpressionNode


class TupleTypeName(Type):
    """tuple<A, …>, or list<A> with is_list."""

    arguments: list[Type]
    is_list: bool = False


# ---- expressions


class Number(ExpressionNode):
    """An integer literal. width None: arbitrary precision; else bit<width>, or int<width> where signed."""

    value: int
    width: int | None = None
    signed: bool = False


class BoolLiteral(ExpressionNode):
    value: bool


class String(ExpressionNode):
    value: str


class Name(ExpressionNode):
    """An identifier in a place for expressions (also `this`); dot: written as .name."""

    name: str
    dot: bool = False


class TypeExpression(ExpressionNode):
    """A type where an expression may stand: the left of `E.member`, or a constructor's name."""

    type: Type


class MemberExpression(ExpressionNode):
    """base.name; base may be a TypeExpression (E.member) and `error` (TypeExpression of BaseType error)."""

    base: ExpressionNode
    name: str


class IndexExpression(ExpressionNode):
    base: ExpressionNode
    index: ExpressionNode


class SliceExpression(ExpressionNode):
    """base[high:low], or base[low +: width] where `width` is given (then high is None)."""

    base: ExpressionNode
    high: ExpressionNode | None
    low: ExpressionNode
    width: ExpressionNode | None = None


class UnaryExpression(ExpressionNode):
    """operator: - ~ ! +"""

    operator: str
    operand: ExpressionNode


class BinaryExpression(ExpressionNode):
    """operator: + - * / % |+| |-| << >> & | ^ == != < <= > >= && || ++ (concatenation)."""

    operator: str
    left: ExpressionNode
    right: ExpressionNode


class Conditional(ExpressionNode):
    """condition ? yes : no"""

    condition: ExpressionNode
    yes: ExpressionNode
    no: ExpressionNode


class CastExpression(ExpressionNode):
    type: Type
    operand: ExpressionNode


class Mask(ExpressionNode):
    """value &&& mask, in sets (select, entries)."""

    value: ExpressionNode
    mask: ExpressionNode


class Range(ExpressionNode):
    """low .. high, in sets."""

    low: ExpressionNode
    high: ExpressionNode


class Default(ExpressionNode):
    """`default` or `_` in a set: any value."""


class DefaultRest(ExpressionNode):
    """`...`: as a whole initialiser, or the last of one: all fields not named take their default value."""


class InvalidHeader(ExpressionNode):
    """{#}: an invalid header or header union; its type comes from the context or a cast."""


class ListExpression(ExpressionNode):
    """{a, b, …}; rest: ends in `...`. In keyset places also the tuple (a, b, …)."""

    items: list[ExpressionNode]
    rest: bool = False


class StructExpression(ExpressionNode):
    """{x = a, …}, or with a type name before it; rest: ends in `...`."""

    fields: list[tuple[str, ExpressionNode]]
    type: Type | None = None
    rest: bool = False


class CallArgument(Node):
    """value, or name = value; value None is `_` (an out argument that nobody wants)."""

    value: ExpressionNode | None
    name: str | None = None


class CallExpression(ExpressionNode):
    """callee<type_arguments>(arguments): function, method, action, constructor (callee: TypeExpression)."""

    callee: ExpressionNode
    type_arguments: list[Type]
    arguments: list[CallArgument]


# ---- statements


class AssignmentStatement(StatementNode):
    """target = value; operator: "" or that of a compound assignment ("+", "|+|", "<<", …)."""

    target: ExpressionNode
    value: ExpressionNode
    operator: str = ""


class CallStatement(StatementNode):
    """A call for its effects; also direct application `Type.apply(args)` (callee: Member of a TypeExpression)."""

    call: CallExpression


class BlockStatement(StatementNode):
    annotations: list[Annotation]
    items: list[StatementNode]


class IfStatement(StatementNode):
    condition: ExpressionNode
    yes: StatementNode
    no: StatementNode | None


class SwitchCase(Node):
    """label: Default for `default`; body None: falls through to the next case's body."""

    label: ExpressionNode
    body: BlockStatement | None


class SwitchStatement(StatementNode):
    subject: ExpressionNode
    cases: list[SwitchCase]


class ForStatement(StatementNode):
    """for (init; condition; step) body"""

    annotations: list[Annotation]
    init: list[StatementNode]
    condition: ExpressionNode
    step: list[StatementNode]
    body: StatementNode


class ForInStatement(StatementNode):
    """for (type name in collection) body; collection: a Range, a list, a header stack. type None: existing variable."""

    annotations: list[Annotation]
    type: Type | None
    name: str
    collection: ExpressionNode
    body: StatementNode


class ReturnStatement(StatementNode):
    value: ExpressionNode | None


class ExitStatement(StatementNode):
    pass


class BreakStatement(StatementNode):
    pass


class ContinueStatement(StatementNode):
    pass


class EmptyStatement(StatementNode):
    pass


# ---- declarations


class ParameterDeclaration(Node):
    """direction: "" (none), "in", "out", "inout"."""

    annotations: list[Annotation]
    direction: str
    type: Type
    name: str
    default: ExpressionNode | None = None


class VariableDeclaration(Declaration, StatementNode):
    annotations: list[Annotation]
    type: Type
    name: str
    value: ExpressionNode | None


class ConstantDeclaration(Declaration, StatementNode):
    annotations: list[Annotation]
    type: Type
    name: str
    value: ExpressionNode


class Instance(Declaration, StatementNode):
    """Type(arguments) name; members: the body of `Type(…) name = { … }` (abstract methods), else None."""

    annotations: list[Annotation]
    type: Type
    arguments: list[CallArgument]
    name: str
    members: list[Declaration] | None = None


class Field(Node):
    annotations: list[Annotation]
    type: Type
    name: str


class StructureDeclaration(Declaration):
    """kind: struct, header, header_union."""

    annotations: list[Annotation]
    kind: str
    name: str
    type_parameters: list[str]
    fields: list[Field]


class EnumDeclaration(Declaration):
    """base: the type of a serializable enum, else None. members: name -> value expression (None without base)."""

    annotations: list[Annotation]
    base: Type | None
    name: str
    members: list[tuple[str, ExpressionNode | None, Position]]


class Errors(Declaration):
    names: list[tuple[str, Position]]


class MatchKinds(Declaration):
    names: list[tuple[str, Position]]


class TypeDef(Declaration):
    """typedef T name (distinct False); type T name (distinct True). type may be a StructureDeclaration in place."""

    annotations: list[Annotation]
    type: Type | StructureDeclaration
    name: str
    distinct: bool


class FunctionPrototype(Node):
    """returns None: a constructor. abstract: to be given by the instance's body."""

    annotations: list[Annotation]
    returns: Type | None
    name: str
    type_parameters: list[str]
    parameters: list[ParameterDeclaration]
    abstract: bool = False


class Function(Declaration):
    prototype: FunctionPrototype
    body: BlockStatement


class Action(Declaration):
    annotations: list[Annotation]
    name: str
    parameters: list[ParameterDeclaration]
    body: BlockStatement


class ExternDeclaration(Declaration):
    """extern name<…> { methods }"""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    methods: list[FunctionPrototype]


class ExternFunction(Declaration):
    prototype: FunctionPrototype


class Applicable(Declaration):
    """The common fields of parsers, controls and packages, as types and with a body."""

    annotations: list[Annotation]
    name: str
    type_parameters: list[str]
    parameters: list[ParameterDeclaration]


class ParserType(Applicable):
    """parser name<…>(parameters);"""


class ControlType(Applicable):
    """control name<…>(parameters);"""


class PackageType(Applicable):
    """package name<…>(parameters);"""


class SelectCase(Node):
    """keys: one per selected expression; a single Default may stand for all."""

    keys: list[ExpressionNode]
    state: str


class Transition(Node):
    """select None: goes to `state`; else `cases` decide."""

    state: str = ""
    select: list[ExpressionNode] | None = None
    cases: list[SelectCase] = field(default_factory=list)


class StateDeclaration(Node):
    """transition None: none was written, so reject."""

    annotations: list[Annotation]
    name: str
    items: list[StatementNode]
    transition: Transition | None


class ValueSetDeclaration(Declaration):
    """value_set<T>(size) name;"""

    annotations: list[Annotation]
    type: Type
    size: ExpressionNode
    name: str


class ParserDeclaration(Applicable):
    constructor_parameters: list[ParameterDeclaration]
    locals: list[Declaration]
    states: list[StateDeclaration]


class ControlDeclaration(Applicable):
    constructor_parameters: list[ParameterDeclaration]
    locals: list[Declaration]
    body: BlockStatement


class KeyElement(Node):
    annotations: list[Annotation]
    expression: ExpressionNode
    match_kind: str


class ActionRef(Node):
    """An action in a table's list, default_action or entries; arguments bind its parameters with a direction first."""

    annotations: list[Annotation]
    name: str
    arguments: list[CallArgument]
    dot: bool = False


class EntryDeclaration(Node):
    """keys : action;   priority: an expression or None; const: written with `const`."""

    annotations: list[Annotation]
    keys: list[ExpressionNode]
    action: ActionRef
    priority: ExpressionNode | None = None
    const: bool = False


class Property(Node):
    """name = value; any other table property."""

    annotations: list[Annotation]
    name: str
    value: ExpressionNode
    const: bool


class TableDeclaration(Declaration):
    annotations: list[Annotation]
    name: str
    keys: list[KeyElement]
    actions: list[ActionRef]
    default_action: ActionRef | None
    default_const: bool
    entries: list[EntryDeclaration] | None
    entries_const: bool
    properties: list[Property]


class SyntaxTree(Node):
    declarations: list[Declaration]


def class_word(node: Node) -> str:
    """The word of errors for a node's class: `table` of a TableDeclaration, `if` of an IfStatement."""
    return re.sub("(?:Declaration|Statement|Expression)$", "", type(node).__name__).lower()
