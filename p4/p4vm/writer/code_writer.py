"""One walk over the IR of a routine that writes it as code. A subclass of `CodeWriter` says what a language has."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from p4vm.ir import ir_nodes as ir
from p4vm.ir.extern_kinds import call_of
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.lines import Lines
from p4vm.source import P4Error


class EntryData(ir.Expression):
    """A value that the entry of a table gives to its action. before: types of the values before it."""

    before: tuple[ir.Type, ...]


def pattern(key: ir.Expression, match: str) -> ir.Expression:
    """A key as its bits; for a range of int<W>, so that order is that of numbers. Raises P4Error: it is no scalar."""
    kind = key.type
    if not isinstance(kind, ir.Bits | ir.Bool | ir.EnumMember):
        raise P4Error("a key is neither a number nor bool, enum or error; match its parts", key.position)
    if not is_signed(kind):
        return key
    bits = ir.Bits(width_of(kind))
    half = ir.Const(bits, (1 << bits.width) >> 1 if match == "range" else 0)
    return ir.Binary(bits, "^", ir.Cast(bits, key), half) if half.value else ir.Cast(bits, key)


@dataclass(frozen=True, slots=True)
class CallParts:
    """What a row of `extern_kinds.CALLS` calls s: the writer's methods say what belongs to a call."""

    writer: "CodeWriter"
    statement: ir.CallExtern

    def __getattr__(self, name: str) -> str:
        return str(getattr(self.writer, f"call_{name}")(self.statement))


class CodeWriter(Lines):
    """Writes the statements and expressions of one routine.

    places: where its variables are. What has no text here is a method of the language, of the name that its row in
    `EXPRESSIONS` or `STATEMENTS` has.
    """

    LANGUAGE: ClassVar[str]
    """The field of `extern_kinds.CallRow`."""
    IF: ClassVar[str]
    ELSE_IF: ClassVar[str]
    ELSE: ClassVar[str]
    LOOP: ClassVar[str]
    """Heads of blocks, with {} for a condition."""
    END: ClassVar[str]
    """What ends a block's last line; "": nothing does."""
    STOP: ClassVar[str]
    """What ends a statement."""
    AND: ClassVar[str]
    OR: ClassVar[str]
    NOT: ClassVar[str]

    def __init__(self, routine: ir.Routine) -> None:
        super().__init__()
        self.routine = routine
        self.places: dict[ir.Variable, str] = {}

    # ---- expressions

    def text(self, e: ir.Expression) -> str:
        """The value of an expression, in text that binds tightly."""
        row = EXPRESSIONS[type(e)]
        return str(getattr(self, row)(e) if isinstance(row, str) else row(self, e))

    def place(self, e: ir.Expression) -> str:
        """Where a value is read or written."""
        match e:
            case ir.ReadVariable():
                return self.places[e.variable]
            case ir.FieldOf():
                assert isinstance(e.base.type, ir.Record)
                return f"{self.place(e.base)}.{self.field(e.base.type, e.field)}"
            case ir.NextIndex():
                return f"{self.place(e.base)}.next_index"
            case ir.RegisterCell():
                return self.cell(e)
            case ir.Index():
                assert isinstance(e.base.type, ir.Array)
                base = self.place(e.base)
                if isinstance(e.index, ir.Const) and 0 <= int(e.index.value) < e.base.type.size:
                    return f"{base}.items[{e.index.value}]"
                return self.element(e.base.type, base, self.text(e.index))
        raise P4Error(f"{type(e).__name__} is no place")

    def binary(self, e: ir.Binary) -> str:
        left, right = self.text(e.left), self.text(e.right)
        if e.operator in ("&&", "||"):
            return f"({left} {self.AND if e.operator == '&&' else self.OR} {right})"
        return self.number(e, left, right)

    # ---- statements

    def stop(self, text: str) -> None:
        """A line with a whole statement."""
        self.line(f"{text}{self.STOP}")

    def statements(self, statements: list[ir.Statement]) -> None:
        for statement in statements:
            with self.at(statement.position):
                row = STATEMENTS[type(statement)]
                if isinstance(row, str):
                    getattr(self, row)(statement)
                else:
                    row(self, statement)

    @contextmanager
    def branch(self, head: str) -> Iterator[None]:
        """Within it, lines are those of a branch; `end` follows the last."""
        with self.nested(head):
            before = len(self.lines)
            yield
            if len(self.lines) == before and not self.END:
                self.line("pass")

    def end(self) -> None:
        if self.END:
            self.line(self.END)

    def if_(self, s: ir.If) -> None:
        head = self.IF
        for condition, body in s.cases:
            with self.branch(head.format(self.text(condition))):
                self.statements(body)
            head = self.ELSE_IF
        if s.otherwise:
            with self.branch(self.ELSE):
                self.statements(s.otherwise)
        self.end()

    def loop(self, s: ir.Loop) -> None:
        with self.branch(self.LOOP):
            self.statements(s.body)
        self.end()

    def apply_table(self, s: ir.ApplyTable) -> None:
        """Looks the keys up, notes what happened, and runs the action that was chosen: it may end the control."""
        with self.scope():
            self.statements(s.table.setup)
            self.look_up(s.table, [pattern(key.expression, key.match) for key in s.table.keys])
            for target, what in ((s.hit, "hit"), (s.action, "action")):
                if target is not None:
                    self.stop(f"{self.place(target)} = outcome.{what}")
            head = self.IF
            for at, action in enumerate(s.table.actions):
                if action.does_something:
                    with self.branch(head.format(f"outcome.action == {at}")):
                        self.invoke(ir.Invoke(action.routine, arguments_of(action)))
                    head = self.ELSE_IF
            if head != self.IF:
                self.end()

    def call(self, s: ir.CallExtern) -> None:
        """A call of a row of `extern_kinds.CALLS`. Raises P4Error: there is no such row."""
        text = getattr(call_of(s), self.LANGUAGE)
        if text:
            self.line(text.format(*map(self.text, s.arguments), s=CallParts(self, s)))
        else:
            self.record(s)

    # ---- what languages differ in

    def field(self, record: ir.Record, name: str) -> str:
        raise NotImplementedError

    def cell(self, e: ir.RegisterCell) -> str:
        raise NotImplementedError

    def element(self, stack: ir.Array, base: str, index: str) -> str:
        """An element that is perhaps not there: then one that is zero, and that nothing reads once it was written."""
        raise NotImplementedError

    def number(self, e: ir.Binary, left: str, right: str) -> str:
        """left operator right, of scalars."""
        raise NotImplementedError

    def scope(self) -> Any:
        """A context manager: within it, lines may declare variables of their own."""
        raise NotImplementedError

    def look_up(self, table: ir.Table, keys: list[ir.Expression]) -> None:
        """Writes what leaves in `outcome` whether there was a hit, which action runs, and its data."""
        raise NotImplementedError

    def invoke(self, s: ir.Invoke) -> None:
        raise NotImplementedError

    def record(self, s: ir.CallExtern) -> None:
        """A line of the log or a digest: its text or receiver, and scalars."""
        raise NotImplementedError


def arguments_of(action: ir.TableAction) -> list[ir.Expression]:
    """What a table gives an action: what is bound in the program, and the entry's data."""
    bound = iter(action.bound)
    arguments: list[ir.Expression] = []
    before: tuple[ir.Type, ...] = ()
    for parameter in action.routine.parameters:
        kind = parameter.variable.type
        if parameter.direction == "data":
            arguments.append(EntryData(kind, before))
            before += (kind,)
        else:
            arguments.append(next(bound))
    return arguments


def loaded(writer: Any, e: ir.Expression) -> str:
    return str(writer.load(writer.place(e), e.type))


Row = str | Callable[[Any, Any], Any]
EXPRESSIONS: dict[type[ir.Expression], Row] = {
    ir.Const: "const",
    ir.ReadVariable: loaded,
    ir.FieldOf: loaded,
    ir.Index: loaded,
    ir.NextIndex: loaded,
    ir.RegisterCell: loaded,
    ir.Not: lambda writer, e: f"({writer.NOT}{writer.text(e.operand)})",
    ir.Binary: CodeWriter.binary,
    ir.BitSlice: "slice",
    ir.Cast: "cast",
    ir.Mux: "mux",
    ir.Valid: lambda writer, e: f"{writer.place(e.base)}.valid",
    ir.InValueSet: "in_value_set",
    EntryData: "entry_data",
}
STATEMENTS: dict[type[ir.Statement], Row] = {
    ir.Assign: "assign",
    ir.Reset: "reset",
    ir.If: CodeWriter.if_,
    ir.Loop: CodeWriter.loop,
    ir.Break: lambda writer, _: writer.stop("break"),
    ir.Continue: lambda writer, _: writer.stop("continue"),
    ir.Invoke: "invoke",
    ir.ApplyTable: CodeWriter.apply_table,
    ir.Return: "return_",
    ir.Exit: "exit",
    ir.GoTo: "go_to",
    ir.SetValid: lambda writer, s: writer.stop(f"{writer.place(s.target)}.valid = {int(s.valid)}"),
    ir.ShiftStack: "push",
    ir.Extract: "extract",
    ir.Lookahead: "lookahead",
    ir.Emit: "emit",
    ir.Hash: "hash",
    ir.CallExtern: CodeWriter.call,
}
"""A node -> its text or lines: the name of a method of the language, or how all languages write it."""
