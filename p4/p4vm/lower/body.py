"""The context of lowering: the program as it grows, the scopes of one use of a declaration, the routine in work."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from p4vm.architectures.description import Architecture
from p4vm.ir import ir_nodes as ir
from p4vm.ir.reach import Path, Reach, any_overlap, reads
from p4vm.ir.walk import parts_of
from p4vm.lower.kinds import BIT32, BOOL, INT, Kinds
from p4vm.lower.lower_names import unused
from p4vm.source import NOWHERE, P4Error, Position
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked


@dataclass(slots=True, eq=False)
class BlockInstance:
    """An instance of a parser or control. name: as in the control plane. externs: what its extern and
    int parameters stand for, once its routine is made."""

    declaration: tree.ParserDeclaration | tree.ControlDeclaration
    name: str
    frame: "BodyFrame"
    routine: ir.Routine | None = None
    externs: "tuple[Binding, ...]" = ()


@dataclass(slots=True, eq=False)
class PacketParameter:
    """The binding of packet_in and packet_out parameters: a program has a single packet."""


Binding = (
    ir.Variable
    | ir.Const
    | ir.Build
    | ir.Invalid
    | ir.ExternInstance
    | ir.Table
    | ir.Routine
    | ir.ValueSet
    | BlockInstance
    | PacketParameter
)


@dataclass(slots=True, eq=False)
class BodyFrame:
    """Declarations in one use of a parser, control, function or action -> what they are there.

    bound: the types of type parameters. prefix: names of what is declared here begin with it in the control plane.
    """

    parent: "BodyFrame | None" = None
    bindings: dict[tree.Node, Binding] = field(default_factory=dict)
    bound: dict[str, types.Type] = field(default_factory=dict)
    prefix: str = ""

    def find(self, declaration: tree.Node) -> Binding | None:
        frame: BodyFrame | None = self
        while frame is not None:
            binding = frame.bindings.get(declaration)
            if binding is not None:
                return binding
            frame = frame.parent
        return None


ExpressionHandler = Callable[["Body", Any, ir.Type | None], ir.Expression]
StatementHandler = Callable[["Body", Any], None]
ENDS = (ir.Return, ir.Exit, ir.Break, ir.Continue)


@dataclass(slots=True, eq=False)
class World:
    """One program being lowered: what is done so far, and what is made once and used often.

    expression_handlers, statement_handlers: class of node -> what lowers it; so the parts of lowering, all of which
    have expressions and statements in them, don't import each other.
    """

    checked: Checked
    architecture: Architecture
    kinds: Kinds
    expression_handlers: Mapping[type, ExpressionHandler]
    statement_handlers: Mapping[type, StatementHandler]
    reach: Reach = field(default_factory=Reach)
    globals: BodyFrame = field(default_factory=BodyFrame)
    routines: list[ir.Routine] = field(default_factory=list)
    tables: list[ir.Table] = field(default_factory=list)
    externs: list[ir.ExternInstance] = field(default_factory=list)
    value_sets: list[ir.ValueSet] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    field_lists: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    sums: dict[ir.ExternInstance, ir.Variable] = field(default_factory=dict)
    functions: dict[tuple[object, ...], ir.Routine] = field(default_factory=dict)
    nameless: dict[tuple[tree.Node, BodyFrame], BlockInstance | ir.ExternInstance] = field(default_factory=dict)
    listed: dict[ir.Table, list[tree.Action]] = field(default_factory=dict)
    place: Position = NOWHERE
    _names: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        """The name, or with a number where a routine has it already."""
        free_name = unused(name, self._names)
        self._names.add(free_name)
        return free_name

    def warn(self, message: str, position: Position) -> None:
        line = f"{position}: {message}"
        if line not in self.warnings:
            self.warnings.append(line)


@dataclass(slots=True, eq=False)
class Body:
    """A routine being written. out: where statements go now; names: those of its variables;
    counts: the next number for a name that is taken; temporaries: those that no statement of the program named;
    steps: of the loops around; depth: of expressions around."""

    world: World
    routine: ir.Routine
    frame: BodyFrame
    out: list[ir.Statement] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    temporaries: set[ir.Variable] = field(default_factory=set)
    steps: list[Callable[[], None]] = field(default_factory=list)
    depth: int = 0

    def emit(self, statement: ir.Statement) -> None:
        """Appends the statement; an Assign of what is built, part by part."""
        if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Build | ir.Invalid):
            self._build(statement.target, statement.value)
            return
        if not statement.position.line:
            statement.position = self.world.place
        self.out.append(statement)

    def _build(self, target: ir.Expression, value: ir.Build | ir.Invalid) -> None:
        """The value reads nothing of the target."""
        if isinstance(value, ir.Invalid):
            self.emit(ir.Reset(target))
            return
        if isinstance(value.type, ir.Record) and value.type.kind == "header":
            self.emit(ir.SetValid(target, True))
        elif isinstance(value.type, ir.Array):
            self.emit(ir.Assign(ir.NextIndex(BIT32, target), ir.Const(BIT32, 0)))
        for part, item in zip(parts_of(target), value.items, strict=True):
            self.emit(ir.Assign(part, item))

    def reject_unless(self, condition: ir.Expression, error: ir.Expression) -> None:
        """Ends the parser with the error where the condition doesn't hold."""
        refused = ir.CallExtern("parser.reject", None, [error])
        self.emit(ir.If([(ir.Not(BOOL, condition), [refused])], []))

    @contextmanager
    def into(self, statements: list[ir.Statement]) -> Iterator[list[ir.Statement]]:
        """Within it, `emit` appends to this list."""
        saved, self.out = self.out, statements
        try:
            yield statements
        finally:
            self.out = saved

    def declare(self, name: str, kind: ir.Type, position: Position) -> ir.Variable:
        """A new local of the routine, under this name or one like it."""
        if kind == INT:
            raise P4Error(f"{name} is of type int, which has no width; give it one: bit<32>", position)
        free_name, number = name, self.counts.get(name, 1)
        while free_name in self.names:
            free_name, number = f"{name}_{number}", number + 1
        self.counts[name] = number
        self.names.add(free_name)
        variable = ir.Variable(free_name, kind, self.routine.name)
        self.routine.locals.append(variable)
        return variable

    def parameter(self, name: str, kind: ir.Type, direction: str, position: Position) -> ir.Variable:
        if kind == INT:
            raise P4Error(f"parameter {name} is of type int, which has no width; give it one: bit<32>", position)
        self.names.add(name)
        variable = ir.Variable(name, kind, self.routine.name)
        self.routine.parameters.append(ir.Parameter(variable, direction))
        return variable

    def temporary(self, kind: ir.Type) -> ir.ReadVariable:
        variable = self.declare("t", kind, self.world.place)
        self.temporaries.add(variable)
        return ir.ReadVariable(kind, variable)

    def error(self, name: str) -> ir.Const:
        """A core error; where the program doesn't have it, number 0."""
        members = self.world.kinds.error.members
        return ir.Const(self.world.kinds.error, members.index(name) if name in members else 0)

    def keep(self, value: ir.Expression) -> ir.Expression:
        """The value in a temporary of its own; a constant as it is."""
        if isinstance(value, ir.Const):
            return value
        place = self.temporary(value.type)
        self.emit(ir.Assign(place, value))
        return place

    def plain(self, value: ir.Expression) -> ir.Expression:
        """The value where neither Build nor Invalid may stand."""
        return self.keep(value) if isinstance(value, ir.Build | ir.Invalid) else value

    def kind(self, source_type: types.Type, position: Position = NOWHERE) -> ir.Type:
        frame: BodyFrame | None = self.frame
        bound: dict[str, types.Type] = {}
        while frame is not None and not bound:
            bound, frame = frame.bound, frame.parent
        return self.world.kinds.convert(source_type, bound, position)

    def kind_of(self, node: tree.Node) -> ir.Type:
        """Type of an expression (after conversion), a type as written, or a declaration."""
        return self.kind(self.type_of(node), node.position)

    def type_of(self, node: tree.Node) -> types.Type:
        known = self.world.checked.converted.get(node) or self.world.checked.type_of.get(node)
        if known is None:
            raise P4Error("the checker gave this no type; the engine does not support it here", node.position)
        return known

    # ---- by way of the world's tables: what any part of lowering may need of another

    def statements(self, nodes: Sequence[tree.Node]) -> None:
        """All of them, up to one that always leaves the block: what follows it is never reached."""
        for node in nodes:
            self.statement(node)
            if self.out and isinstance(self.out[-1], ENDS):
                return

    def statement(self, node: tree.Node) -> None:
        """A statement, or a declaration within a body. Raises P4Error."""
        self.world.place = node.position
        handler = self.world.statement_handlers.get(type(node))
        if handler is None:
            raise P4Error("this statement is not supported here", node.position)
        handler(self, node)

    def block(self, node: tree.StatementNode | None) -> list[ir.Statement]:
        """The statement's own list."""
        with self.into([]) as inner:
            if node is not None:
                self.statements([node])
        return inner

    # ---- what stands for a name here

    def is_instance(self, parameter: tree.ParameterDeclaration) -> bool:
        """Whether it stands for an extern's instance, the packet or an int, which no routine takes as a value."""
        kind = self.world.checked.type_of.get(parameter)
        return isinstance(kind, types.ExternType | types.CallableType) or (
            kind == types.INTEGER and not parameter.direction
        )

    def table_of(self, node: tree.CallExpression) -> ir.Table:
        note = self.world.checked.calls.get(node)
        table = self.frame.find(note.declaration) if note is not None and note.declaration is not None else None
        if not isinstance(table, ir.Table):
            raise P4Error("only tables of this control can be applied here", node.position)
        return table

    def apply_table(
        self, node: tree.CallExpression, hit: ir.Expression | None = None, action: ir.Expression | None = None
    ) -> None:
        """hit, action: places for the outcome."""
        self.emit(ir.ApplyTable(self.table_of(node), hit, action))

    # ---- in order of evaluation

    def sequence(self, steps: Sequence[Callable[[], ir.Expression]], places: int = 0) -> list[ir.Expression]:
        """Evaluates from left to right: what a later step may change is kept from before it.

        places: bit i: the i-th is a place, of which the indexes alone are kept.
        """
        done: list[ir.Expression] = []
        for step in steps:
            with self.into([]) as later:
                value = step()
            if later:
                writes = self.world.reach.statements(later).writes
                for number, earlier in enumerate(done):
                    done[number] = (
                        self.frozen(earlier, writes) if places >> number & 1 else self.unchanged(earlier, writes)
                    )
                self.out.extend(later)
            done.append(value)
        return done

    def unchanged(self, value: ir.Expression, writes: Set[Path]) -> ir.Expression:
        """The value as it is now, though these places be written before it is used."""
        if not any_overlap(reads(value), writes):
            return value
        if isinstance(value, ir.Build):
            return ir.Build(value.type, [self.unchanged(item, writes) for item in value.items])
        return self.keep(value)

    def frozen(self, place: ir.Expression, writes: Set[Path]) -> ir.Expression:
        """The place that it is now, though these places be written before it is used."""
        match place:
            case ir.FieldOf():
                return ir.FieldOf(place.type, self.frozen(place.base, writes), place.field)
            case ir.Index():
                return ir.Index(place.type, self.frozen(place.base, writes), self.unchanged(place.index, writes))
            case ir.BitSlice():
                return ir.BitSlice(place.type, self.frozen(place.base, writes), place.high, place.low)
        return place
