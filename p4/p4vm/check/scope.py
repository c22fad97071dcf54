"""The checker's state while it walks a program: names in scope, where it stands, notes made so far."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked
from p4vm.tree.types import Value

NESTING_MAX = 500
"""Levels of expressions, blocks and types within each other."""

NAMES_NEAR = 0.6
"""Likeness, 0 to 1, from which a known name is suggested for an unknown one."""


@dataclass(slots=True)
class ScopeSymbol:
    """A name in a scope.

    kind: type, generic (a type that needs type arguments), constructed (parser, control), package, variable, constant,
    instance, function (one or more in overloads), action, table, value_set. writable: may be assigned to. value: of a
    constant, if known. known: its value is known at compile time, though perhaps not here.
    """

    name: str
    kind: str
    declaration: tree.Node
    type: types.Type
    writable: bool = False
    value: Value | None = None
    known: bool = False
    overloads: list[tuple[tree.Node, types.CallableType]] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """parent: the scope around; None at the top level."""

    parent: "Scope | None"
    names: dict[str, ScopeSymbol] = field(default_factory=dict)

    def find(self, name: str, types_only: bool = False) -> ScopeSymbol | None:
        scope: Scope | None = self
        while scope is not None:
            symbol = scope.names.get(name)
            if symbol is not None and not (types_only and symbol.kind not in TYPE_KINDS):
                return symbol
            scope = scope.parent
        return None

    def all_names(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.parent


TYPE_KINDS = frozenset({"type", "generic", "constructed", "package"})


@dataclass(slots=True)
class EnclosingScope:
    """Where statements and expressions stand.

    kind: top level, parser, parser state, control, apply block, action, function, table, abstract method.
    returns: type of `return`'s value. loops: how many loops are around.
    """

    kind: str
    returns: types.Type = types.VOID
    loops: int = 0


ExpressionHandler = Callable[["CheckState", Any, types.Type | None], types.Type]
"""Gives the type of a node of its kind; the last argument: the type of where it stands, if that helps to find it."""


@dataclass(slots=True)
class CheckState:
    """expressions: class of node -> what finds its type; so the parts of the checker, all of which have expressions in
    them, don't import each other. known: expressions known at compile time without a value here. constructing:
    constructors may be called. specialised: structure made of a generic one, by identity -> that one and its
    arguments. methods: extern -> its methods and constructors by name. later: names declared at the top level ->
    where. busy: names of declarations around. members: types that have members, by name -> declaration. leaves:
    structure -> fields counted through.
    """

    checked: Checked
    scope: Scope
    place: EnclosingScope
    expressions: Mapping[type, ExpressionHandler]
    known: set[tree.Node] = field(default_factory=set)
    match_kinds: set[str] = field(default_factory=set)
    error_declarations: dict[str, tree.Node] = field(default_factory=dict)
    specialised: dict[int, tuple[tree.StructureDeclaration, tuple[types.Type, ...]]] = field(default_factory=dict)
    structures: dict[tuple[tree.StructureDeclaration, tuple[types.Type, ...]], types.StructureType] = field(
        default_factory=dict
    )
    methods: dict[str, dict[str, list[tuple[tree.FunctionPrototype, types.CallableType]]]] = field(default_factory=dict)
    constructors: dict[tree.Node, types.CallableType] = field(default_factory=dict)
    leaves: dict[str, int] = field(default_factory=dict)
    members: dict[str, tree.Node] = field(default_factory=dict)
    later: dict[str, Position] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    constructing: bool = False
    depth: int = 0
    fresh: int = 0

    @contextmanager
    def inner(self, place: EnclosingScope | None = None) -> Iterator[Scope]:
        """A scope within the present one, and perhaps another place."""
        scope, outer_place = self.scope, self.place
        self.scope = Scope(scope)
        self.place = place or outer_place
        try:
            yield self.scope
        finally:
            self.scope, self.place = scope, outer_place

    @contextmanager
    def compile_time(self, constructing: bool = True) -> Iterator[None]:
        """Constructor calls are allowed within."""
        before, self.constructing = self.constructing, constructing
        try:
            yield
        finally:
            self.constructing = before

    def deeper(self, node: tree.Node) -> None:
        self.depth += 1
        if self.depth > NESTING_MAX:
            fail(node, f"nested more than {NESTING_MAX} levels deep; split it up with variables, actions or functions")

    def declare(self, symbol: ScopeSymbol) -> None:
        """Adds a name to the present scope. Raises P4Error: it is taken."""
        if symbol.name == "_":
            fail(symbol.declaration, "'_' cannot be declared; it stands for a value nobody wants")
        before = self.scope.names.get(symbol.name)
        if before is not None:
            fail(
                symbol.declaration,
                f"{symbol.name!r} is declared twice; first in line {before.declaration.position.line}; rename one",
            )
        self.scope.names[symbol.name] = symbol

    def infer(self, node: tree.ExpressionNode, expected: types.Type | None = None) -> types.Type:
        """The type of an expression; notes it and all its parts'. expected: as `ExpressionHandler` has it."""
        self.deeper(node)
        handler = self.expressions.get(node.__class__)
        if handler is None:
            fail(node, f"unsupported expression ({type(node).__name__})")
        kind = handler(self, node, expected)
        self.depth -= 1
        return self.note(node, kind)

    def value_type(self, node: tree.ExpressionNode, expected: types.Type | None = None) -> types.Type:
        """As infer, for a value that is used. Raises P4Error: there is none."""
        kind = self.infer(node, expected)
        if kind == types.VOID:
            fail(node, "this call returns nothing; a value is expected")
        if isinstance(kind, types.TableType | types.ApplyResultType):
            hint = (
                "; .hit, .miss and .action_run are what can be used" if isinstance(kind, types.ApplyResultType) else ""
            )
            fail(node, f"{kind} is not a value{hint}")
        return kind

    def lookup(self, node: tree.Node, name: str, dot: bool, types_only: bool = False) -> ScopeSymbol:
        """The symbol that a name stands for here. Raises P4Error: nothing has it."""
        scope = self.scope
        if dot:
            while scope.parent is not None:
                scope = scope.parent
        symbol = scope.find(name, types_only)
        if symbol is None:
            fail(node, self.unknown(name, scope, types_only))
        return symbol

    def unknown(self, name: str, scope: Scope, types_only: bool) -> str:
        if name in self.busy:
            return f"{name!r} uses itself; recursion is not allowed in P4"
        if types_only and scope.find(name) is not None:
            return f"{name!r} is not a type"
        position = self.later.get(name)
        if position is not None:
            return f"{name!r} is used before its declaration in line {position.line}; move the declaration up"
        what = "type" if types_only else "name"
        return f"unknown {what} {name!r}" + nearest(name, scope.all_names())

    def note(self, node: tree.Node, kind: types.Type) -> types.Type:
        self.checked.type_of[node] = kind
        return kind

    def note_conversion(self, node: tree.Node, to: types.Type) -> None:
        """An expression becomes another type by itself, if its own is not that one."""
        if self.checked.type_of[node] != to:
            self.checked.converted[node] = to

    def warn(self, node: tree.Node, message: str) -> None:
        self.checked.warnings.append(f"{node.position}: warning: {message}")

    def is_known(self, node: tree.Node) -> bool:
        """Whether an expression's value is known at compile time, even if not here."""
        return node in self.checked.constants or node in self.known

    def new_variable(self, name: str) -> types.TypeVariable:
        self.fresh += 1
        return types.TypeVariable(name, f"?{self.fresh}")


def type_parameter_names(declaration: tree.Node | None) -> list[str]:
    return getattr(declaration, "type_parameters", [])


def has_annotation(node: tree.ActionRef | tree.FunctionPrototype | tree.ParameterDeclaration, name: str) -> bool:
    return any(annotation.name == name for annotation in node.annotations)


def counted(number: int, word: str) -> str:
    """`1 key`, `2 keys`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def article(what: str) -> str:
    """`a table`, `an action`."""
    return f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"


def nearest(name: str, known: Iterator[str] | list[str]) -> str:
    """`; did you mean 'x'?` if a known name is like this one, else nothing."""
    matches = difflib.get_close_matches(
        name[:60], sorted({k for k in known if abs(len(k) - len(name)) < 6}), 1, NAMES_NEAR
    )
    return f"; did you mean {matches[0]!r}?" if matches else ""


def fail(node: tree.Node, message: str) -> NoReturn:
    raise P4Error(message, node.position)


def show(value: Value) -> str:
    """A value as text for a message, at most 40 characters."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 64 else f"{value:#x}"[:40]
    return str(value)[:40].lower() if isinstance(value, bool) else str(value)[:40]
