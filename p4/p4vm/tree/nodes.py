"""The syntax tree of a P4-16 program: what the parser makes and the checker reads.

A node says what was written, with its place; nothing is resolved. Identity is the node itself (eq=False), so that the
checker can note types and declarations in dictionaries keyed by node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p4vm.source import Position
from p4vm.tree.expressions import *

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
