"""A checked program made small: what the back ends read.

Names are resolved, widths and constants evaluated, generics and constructor parameters specialised per instance, calls
inside expressions taken out in order of evaluation, so that expressions are pure. Parsers, controls, actions and
functions become routines.

What holds everywhere, so that back ends agree to the bit:
- Storage is plain: everything is zero and every header invalid when a packet starts; writing a field of an invalid
  header writes its storage, reading reads it; setInvalid and setValid change the valid bit alone (of a union's member
  either makes the other members invalid). A header copied is copied whole.
- An Index beyond its array reads zero (an invalid header) and writes nothing. What indexes, shifts or counts bits is
  bit<W> of at most 64 bits; a shift by a constant is by less than the width.
- bit<W> values are 0 … 2**W - 1, int<W> values -2**(W-1) … 2**(W-1)-1. A shift by W or more gives 0, or -1 for a
  negative int<W> shifted right. Division and remainder by zero give 0. width may be 0 or beyond 2048.
- out and inout arguments may be passed by reference: lowering has put temporaries wherever that would show. So may
  records, arrays and varbits that are `in`: the callee never writes them, nor does anything else while it runs.
- Arguments of Invoke that are passed so, and what an extern writes, are plain places: Locals, and Members and Indexes
  (constant, within the array) of them. The place for a result overlaps none of them.
- Build and Invalid are there while lowering only. A Mux is never a record or array.
- An extern reads all its arguments before it writes any. No statement touches other members of a union: where one
  becomes invalid because of another, there is a SetValid for it.
- Expressions nest so little that Python's own parser takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeGuard

from p4vm.architectures.description import Architecture
from p4vm.node import Entity, Node
from p4vm.source import NOWHERE, Position

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
class EnumMember:
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


Type = Bits | Bool | Varbits | EnumMember | Record | Array | Text


def width_of(kind: Type) -> int:
    """Bits on the wire, in keys and in arguments; a varbit's none, as only the value knows."""
    match kind:
        case Bits():
            return kind.width
        case Bool():
            return 1
        case EnumMember():
            return 32
        case Record():
            return sum(width_of(field) for _, field in kind.fields)
        case Array():
            return kind.size * width_of(kind.element)
    return 0


def is_signed(kind: Type) -> TypeGuard[Bits]:
    return isinstance(kind, Bits) and kind.signed


# ---- expressions: pure


class Expression(Node):
    """type: of its value.

    Targets (assignments, out, inout, extract): ReadVariable, RegisterCell, and FieldOf, Index, NextIndex of a target.
    """

    type: Type


class Variable(Entity):
    """routine: name of the routine (control, parser, action, function) whose parameter or local it is."""

    name: str
    type: Type
    routine: str


class Const(Expression):
    """Bits, Bool, EnumMember: an int; Text: a str."""

    value: int | str


class ReadVariable(Expression):
    """A variable of the routine itself; while lowering, in an action also of the control that declares it."""

    variable: Variable


class FieldOf(Expression):
    """A field of a record; base may be any expression."""

    base: Expression
    field: str


class Index(Expression):
    """An element of an array."""

    base: Expression
    index: Expression


class NextIndex(Expression):
    """nextIndex of a stack, as bit<32>."""

    base: Expression


class RegisterCell(Expression):
    """A register's cell, which is there."""

    instance: ExternInstance
    index: Expression


class Not(Expression):
    """!operand, a Bool"""

    operand: Expression


class Binary(Expression):
    """operator: + - * & | ^ on equal Bits, / % on unsigned ones; << >> (right: any unsigned Bits); == != on equal
    types, no records or arrays; < <= > >= on Bits; && || on Bool (short-circuit shows only as time: operands
    are pure)."""

    operator: str
    left: Expression
    right: Expression


class BitSlice(Expression):
    """base[high:low], unsigned."""

    base: Expression
    high: int
    low: int


class Cast(Expression):
    """Bits to Bits: cut, or extended by the operand's sign; Bool to and from bit<1>; EnumMember never."""

    operand: Expression


class Mux(Expression):
    """condition ? yes : no"""

    condition: Expression
    yes: Expression
    no: Expression


class Valid(Expression):
    """isValid() of a header."""

    base: Expression


class Build(Expression):
    """A whole record (a header is valid then) or array from its parts, in order."""

    items: list[Expression]


class Invalid(Expression):
    """{#}: an invalid header or union, all its fields zero."""


class InValueSet(Expression):
    """Whether a value set holds these keys."""

    value_set: ValueSet
    keys: list[Expression]


class Guarded(Expression):
    """A scalar that is there where the condition holds; in the data of a Hash only."""

    condition: Expression
    value: Expression


# ---- statements


class Statement(Node):
    pass


class Assign(Statement):
    target: Expression
    value: Expression


class Reset(Statement):
    """Set to zero, headers invalid, nextIndex 0: what a variable or out parameter is before it is written."""

    target: Expression


class If(Statement):
    """The statements of the first of the cases whose condition holds, else the last ones, which may be none."""

    cases: list[tuple[Expression, list[Statement]]]
    otherwise: list[Statement]


class Loop(Statement):
    """for ever: Break leaves it; Continue begins it again."""

    body: list[Statement]


class Break(Statement):
    pass


class Continue(Statement):
    pass


class Invoke(Statement):
    """Run a routine: arguments in order of its parameters; result: where a function's value goes."""

    routine: Routine
    arguments: list[Expression]
    result: Expression | None = None


class ApplyTable(Statement):
    """hit (Bool) and action (EnumMember of the table's actions, by index): where to note what happened, if wanted."""

    table: Table
    hit: Expression | None = None
    action: Expression | None = None


class Return(Statement):
    """Of a parser: it accepts."""

    value: Expression | None = None


class GoTo(Statement):
    """On to a state of the parser. The last statement of every state is one, a Return, or a call of parser.reject."""

    state: str


class Exit(Statement):
    """Ends the whole top-level control."""


class SetValid(Statement):
    target: Expression
    valid: bool


class ShiftStack(Statement):
    """push_front(count), count < 0: pop_front(-count)."""

    target: Expression
    count: int


class Extract(Statement):
    """Into a header; varbits: bits of its one varbit field, an expression.

    Too short: error PacketTooShort; a varbit longer than its type: HeaderTooShort; not a multiple of 8 bits in all:
    ParserInvalidArgument. Any error ends the parser in reject.
    """

    target: Expression
    varbits: Expression | None = None


class Lookahead(Statement):
    """Read a value of the target's type without moving on; headers become valid."""

    target: Expression


class Emit(Statement):
    """Append the header, or those of the stack, as far as they are valid."""

    value: Expression


class Hash(Statement):
    """target: bit<64>; data: scalars, of which Guarded ones may be missing; payload: the packet's follows."""

    target: Expression
    algorithm: str
    data: list[Expression]
    payload: bool = False


class CallExtern(Statement):
    """name: a row of `extern_kinds.CALLS`."""

    name: str
    instance: ExternInstance | None
    arguments: list[Expression]


# ---- routines


class Parameter(Entity):
    """direction: in, out, inout, or data (an action's, from the control plane or a direct call)."""

    variable: Variable
    direction: str


class Routine(Entity):
    """kind: function, action, control, parser. name: unique. owner: of an action, its control (None: top level).

    packet_in, packet_out and extern parameters are gone: there is one packet, and instances are known. locals: all
    variables, temporaries too; each is Reset or assigned before it is read. An out parameter is Reset by the routine
    where that shows, but for the parser of the program: its headers are zero and invalid when it starts. A parser's
    body runs before its first state, `start`.
    """

    name: str
    kind: str
    parameters: list[Parameter] = field(default_factory=list)
    locals: list[Variable] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    returns: Type | None = None
    owner: Routine | None = None
    states: dict[str, list[Statement]] = field(default_factory=dict)
    position: Position = NOWHERE


class ValueSet(Entity):
    """matches: match kinds of its fields (exact unless annotated)."""

    name: str
    types: tuple[Type, ...]
    size: int
    matches: tuple[str, ...] = ()


# ---- what the control plane sees


class ExternInstance(Entity):
    """kind: register, counter, direct_counter, meter, direct_meter, action_profile, action_selector, …

    arguments: constructor's, enum members by name. name: as in the control plane, "MyIngress.r"; alias: its last part.
    """

    name: str
    kind: str
    type_arguments: tuple[Type, ...] = ()
    arguments: tuple[int | str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    position: Position = NOWHERE

    @property
    def cells(self) -> int:
        """The number of cells; 0: none, as direct counters and meters."""
        return next((argument for argument in self.arguments if isinstance(argument, int)), 0)

    @property
    def initial(self) -> int:
        """What a register's cells hold at the start."""
        value = self.arguments[1] if self.kind == "register" and len(self.arguments) > 1 else 0
        return value if isinstance(value, int) else 0

    @property
    def cell(self) -> Type:
        """The type of a register's cells."""
        return self.type_arguments[0] if self.type_arguments else Bits(32)


class Key(Node):
    """name: as in the control plane ("hdr.ipv4.dst", or @name). match: exact lpm ternary range optional selector."""

    name: str
    match: str
    expression: Expression


class TableAction(Node):
    """name: as in the control plane, "MyIngress.forward", "NoAction". bound: arguments of its directed parameters."""

    name: str
    routine: Routine
    bound: list[Expression] = field(default_factory=list)
    table_only: bool = False
    default_only: bool = False
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> list[Parameter]:
        """Parameters that an entry gives."""
        return [p for p in self.routine.parameters if p.direction == "data"]

    @property
    def does_something(self) -> bool:
        return bool(self.routine.body) or any(p.direction in ("out", "inout") for p in self.routine.parameters)


class Entry(Entity):
    """An entry written in the program. keys: (value, mask or upper bound or prefix length, or None) for each key:
    exact (value, None); lpm (value, prefix length); ternary and optional (value, mask); range (low, high).
    action: index into the table's actions. priority: smaller wins, None for tables without one."""

    keys: list[tuple[int, int | None]]
    action: int
    arguments: tuple[int, ...]
    priority: int | None = None


class Table(Entity):
    """default: index of the default action and its arguments. setup: statements that evaluate the keys' parts before
    apply (calls inside key expressions). implementation: action_profile or action_selector."""

    name: str
    keys: list[Key]
    actions: list[TableAction]
    default: int
    default_arguments: tuple[int, ...] = ()
    default_const: bool = False
    entries: list[Entry] = field(default_factory=list)
    entries_const: bool = False
    size: int = 1024
    implementation: ExternInstance | None = None
    counter: ExternInstance | None = None
    meter: ExternInstance | None = None
    support_timeout: bool = False
    setup: list[Statement] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    position: Position = NOWHERE


@dataclass(frozen=True, slots=True)
class ControllerHeader:
    """fields: (name, bits), in order."""

    type_name: str
    fields: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SerializableEnum:
    """members: name -> value, in order of writing."""

    width: int
    members: dict[str, int]


class ProgramIr(Entity):
    """A program. file: its path as given. blocks: role -> routine, whose parameters are the records that its step in
    the architecture names. state: those records' types.

    routines: all of them, callees before callers. field_lists: number -> fields of the architecture's listed record, as
    paths of field names.
    """

    file: str
    architecture: Architecture
    blocks: dict[str, Routine]
    state: dict[str, Record]
    errors: EnumMember
    routines: list[Routine] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    externs: list[ExternInstance] = field(default_factory=list)
    value_sets: list[ValueSet] = field(default_factory=list)
    field_lists: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    controller_headers: dict[str, ControllerHeader] = field(default_factory=dict)
    enums: dict[str, SerializableEnum] = field(default_factory=dict)

    def field_type(self, path: str) -> Type | None:
        """The type of "record.field" of the state; None: the program's record has no such field."""
        record, _, name = path.partition(".")
        return dict(self.state[record].fields).get(name)
