"""A checked program made small: what the back ends read.

Names are resolved, widths and constants evaluated, generics and constructor parameters specialised per instance, calls
inside expressions taken out in order of evaluation, so that expressions are pure. Parsers, controls, actions and
functions become routines.

What holds everywhere, so that back ends agree to the bit:
- Storage is plain: everything is zero and every header invalid when a packet starts; writing a field of an invalid
  header writes its storage, reading reads it; setInvalid and setValid change the valid bit alone (setValid of a union
  member makes the others invalid). Two invalid headers are equal whatever they store. A header copied is copied whole.
- An Index beyond its array reads zero (an invalid header) and writes nothing.
- bit<W> values are 0 … 2**W - 1, int<W> values -2**(W-1) … 2**(W-1)-1. A shift by W or more gives 0, or -1 for a
  negative int<W> shifted right. Division and remainder by zero give 0. width may be 0 or beyond 2048.
- out and inout arguments may be passed by reference: lowering has put temporaries wherever that would show. So may
  records, arrays and varbits that are `in`: the callee never writes them, nor does anything else while it runs.
- Arguments of Invoke that are passed so, and what an extern writes, are plain places: Locals, and Members and Indexes
  (constant, within the array) of them. The place for a result overlaps none of them.
- Build and Invalid stand as an Assign's value, within another Build, and as arguments of externs only. An Assign's
  Build never reads what the Assign writes, so it may be built in place. A Mux is never a record or array.
- An extern reads all its arguments before it writes any. Only SetValid touches other members of a union: where
  assigning or extracting one makes others invalid, a SetValid follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p4vm.ir.expressions import *
from p4vm.source import NOWHERE, Position

# ---- statements


@dataclass(slots=True, eq=False)
class Assign:
    target: Expression
    value: Expression
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Reset:
    """Set to zero, headers invalid, nextIndex 0: what a variable or out parameter is before it is written."""

    target: Expression


@dataclass(slots=True, eq=False)
class If:
    condition: Expression
    yes: list[Statement]
    no: list[Statement]


@dataclass(slots=True, eq=False)
class Switch:
    """The first case that holds the subject's value; cases don't fall through; default may be empty."""

    subject: Expression
    cases: list[tuple[list[int], list[Statement]]]
    default: list[Statement]


@dataclass(slots=True, eq=False)
class Loop:
    """for ever: body; Break leaves it; Continue goes on with `step`, which also follows the body."""

    body: list[Statement]
    step: list[Statement]
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Break:
    pass


@dataclass(slots=True, eq=False)
class Continue:
    pass


@dataclass(slots=True, eq=False)
class Invoke:
    """Run a routine: arguments in order of its parameters; result: where a function's value goes."""

    routine: Routine
    arguments: list[Expression]
    result: Expression | None = None
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class ApplyTable:
    """hit (Bool) and action (Symbol of the table's actions, by index): where to note what happened, if wanted."""

    table: Table
    hit: Expression | None = None
    action: Expression | None = None
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Return:
    value: Expression | None = None


@dataclass(slots=True, eq=False)
class Exit:
    """Ends the whole top-level control."""


@dataclass(slots=True, eq=False)
class SetValid:
    target: Expression
    valid: bool


@dataclass(slots=True, eq=False)
class Push:
    """push_front(count), count < 0: pop_front(-count)."""

    target: Expression
    count: int


@dataclass(slots=True, eq=False)
class Extract:
    """Into a header; varbits: bits of its one varbit field, an expression. Next, or a member of Next, then advances.

    Too short: error PacketTooShort; a varbit longer than its type: HeaderTooShort; not a multiple of 8 bits in all:
    ParserInvalidArgument. Any error ends the parser in reject.
    """

    target: Expression
    varbits: Expression | None = None
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Lookahead:
    """Read a value of the target's type without moving on; headers become valid."""

    target: Expression
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Advance:
    bits: Expression
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Verify:
    condition: Expression
    error: Expression
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Emit:
    """Append what is valid: headers, unions, stacks, structs of them in order."""

    value: Expression


@dataclass(slots=True, eq=False)
class CallExtern:
    """name: "hash", "mark_to_drop", "register.read", "packet_in.length", …; arguments: values, and targets where the
    extern writes; result: where a returned value goes. type_arguments as resolved."""

    name: str
    instance: ExternInstance | None
    arguments: list[Expression]
    result: Expression | None = None
    type_arguments: tuple[Type, ...] = ()
    position: Position = NOWHERE


Statement = (
    Assign
    | Reset
    | If
    | Switch
    | Loop
    | Break
    | Continue
    | Invoke
    | ApplyTable
    | Return
    | Exit
    | SetValid
    | Push
    | Extract
    | Lookahead
    | Advance
    | Verify
    | Emit
    | CallExtern
)


# ---- routines


@dataclass(slots=True, eq=False)
class Parameter:
    """direction: in, out, inout, or data (an action's, from the control plane or a direct call)."""

    variable: Variable
    direction: str


@dataclass(slots=True, eq=False)
class Routine:
    """kind: function, action, control, parser. name: unique. owner: of an action, its control (None: top level).

    packet_in, packet_out and extern parameters are gone: there is one packet, and instances are known. locals: all
    variables, temporaries too; each is Reset or assigned before it is read. An out parameter is Reset by the routine
    where that shows, but for the parser of the program: its headers are zero and invalid when it starts. A parser's
    body runs before its first state, `start`; states accept and reject are implied.
    """

    name: str
    kind: str
    parameters: list[Parameter] = field(default_factory=list)
    locals: list[Variable] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    returns: Type | None = None
    owner: Routine | None = None
    states: dict[str, State] = field(default_factory=dict)
    start: str = ""
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class State:
    """keys empty: goes to `next`. Else the first case all of whose sets hold the keys; none: NoMatch, reject."""

    name: str
    body: list[Statement]
    keys: list[Expression] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    next: str = "reject"
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Case:
    """sets: one for each key."""

    sets: list[KeySet]
    next: str


@dataclass(slots=True, eq=False)
class Anything:
    pass


@dataclass(slots=True, eq=False)
class Exactly:
    value: Expression


@dataclass(slots=True, eq=False)
class Masked:
    value: Expression
    mask: Expression


@dataclass(slots=True, eq=False)
class Between:
    low: Expression
    high: Expression


@dataclass(slots=True, eq=False)
class InValueSet:
    """Stands in the first key's place and holds as many keys as the value set's types; the rest are Anything."""

    value_set: ValueSet


KeySet = Anything | Exactly | Masked | Between | InValueSet


@dataclass(slots=True, eq=False)
class ValueSet:
    """matches: match kinds of its fields (exact unless annotated)."""

    name: str
    types: tuple[Type, ...]
    size: int
    matches: tuple[str, ...] = ()


# ---- what the control plane sees


@dataclass(slots=True, eq=False)
class ExternInstance:
    """kind: register, counter, direct_counter, meter, direct_meter, action_profile, action_selector, …

    arguments: constructor's, enum members by name. name: as in the control plane, "MyIngress.r"; alias: its last part.
    """

    name: str
    kind: str
    type_arguments: tuple[Type, ...] = ()
    arguments: tuple[int | str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Key:
    """name: as in the control plane ("hdr.ipv4.dst", or @name). match: exact lpm ternary range optional selector."""

    name: str
    match: str
    expression: Expression
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class TableAction:
    """name: as in the control plane, "MyIngress.forward", "NoAction". bound: arguments of its directed parameters."""

    name: str
    routine: Routine
    bound: list[Expression] = field(default_factory=list)
    table_only: bool = False
    default_only: bool = False

    @property
    def data(self) -> list[Parameter]:
        """Parameters that an entry gives."""
        return [p for p in self.routine.parameters if p.direction == "data"]


@dataclass(slots=True, eq=False)
class Entry:
    """An entry written in the program. keys: (value, mask or upper bound or prefix length, or None) for each key:
    exact (value, None); lpm (value, prefix length); ternary and optional (value, mask); range (low, high).
    action: index into the table's actions. priority: smaller wins, None for tables without one."""

    keys: list[tuple[int, int | None]]
    action: int
    arguments: tuple[int, ...]
    priority: int | None = None


@dataclass(slots=True, eq=False)
class Table:
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


@dataclass(slots=True, eq=False)
class Program:
    """A v1model program. file: its path as given. The six routines have these parameters, in this order:

    parser (out headers, inout metadata, inout standard); verify, compute (inout headers, inout metadata); ingress,
    egress (inout headers, inout metadata, inout standard); deparser (in headers).
    routines: all of them, callees before callers. field_lists: number -> metadata fields as paths of field names.
    """

    file: str
    parser: Routine
    verify: Routine
    ingress: Routine
    egress: Routine
    compute: Routine
    deparser: Routine
    headers: Record
    metadata: Record
    standard: Record
    errors: Symbol
    routines: list[Routine] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    externs: list[ExternInstance] = field(default_factory=list)
    value_sets: list[ValueSet] = field(default_factory=list)
    field_lists: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
