"""P4 statements as Python statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.lines import Lines
from p4vm.python.python_expressions import ATOM, BIT_AND, COMPARE, LAMBDA, NOT, Expressions, PythonText
from p4vm.python.python_externs import ExternWriter
from p4vm.python.python_names import PythonNames
from p4vm.python.records import is_scalar
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.python.routines import RoutineLayout


class StatementWriter(Lines):
    """Writes the statements of one routine.

    layout: what its calls need to know of other routines. names: of its variables. returned: what `return` gives back,
    for (exited, value).
    """

    comment = "# {}"

    def __init__(
        self,
        layout: RoutineLayout,
        routine: ir.Routine,
        names: PythonNames,
        returned: Callable[[bool, str | None], str],
    ) -> None:
        super().__init__()
        self.layout = layout
        self.routine = routine
        self.names = names
        self.returned = returned
        self.steps: list[list[ir.Statement]] = []
        self.expression: Expressions = Expressions(layout.names, names, self.line, parser=routine in layout.rejecting)
        self.externs: ExternWriter = ExternWriter(self)

    def block(self, head: str, statements: list[ir.Statement]) -> None:
        """head, and the statements below it, of which there is at least one."""
        with self.nested(head):
            before = len(self.lines)
            self.statements(statements)
            if len(self.lines) == before:
                self.line("pass")

    def statements(self, statements: list[ir.Statement]) -> None:
        for statement in statements:
            with self.at(statement.position):
                STATEMENTS[type(statement)](self, statement)

    def give_back(self, exited: bool, value: str | None = None) -> None:
        """`return`, with what the routine's callers expect."""
        self.line(f"return {self.returned(exited, value)}".rstrip())

    # ---- writing to places

    def store(self, target: ir.Expression, value: PythonText) -> None:
        """Assigns a scalar to a place, or to some bits of it."""
        if isinstance(target, ir.BitSlice):
            width = width_of(target.base.type)
            mask = (1 << target.high - target.low + 1) - 1
            others = (1 << width) - 1 & ~(mask << target.low)
            shifted = f"{value.at(ATOM)} << {target.low}" if target.low else value.at(ATOM)
            kept = self.expression(target.base, ATOM)
            masked = PythonText(f"{kept} & {hex(others)} | {shifted}", LAMBDA)
            signed = is_signed(target.base.type)
            self.store(target.base, self.expression.fitted(masked, target.base.type) if signed else masked)
        else:
            self.line(f"{self.expression(target)} = {value.text}")

    def assign(self, s: ir.Assign) -> None:
        if is_scalar(s.target.type):
            self.store(s.target, self.expression.text(s.value))
        elif isinstance(s.value, ir.Invalid):
            self.line(f"{self.expression(s.target, ATOM)}.reset()")
        else:
            self.line(f"{self.expression(s.target, ATOM)}.assign({self.expression(s.value)})")

    def reset(self, s: ir.Reset) -> None:
        if is_scalar(s.target.type):
            self.store(s.target, PythonText("EMPTY" if isinstance(s.target.type, ir.Varbits) else "0"))
        else:
            self.line(f"{self.expression(s.target, ATOM)}.reset()")

    def set_valid(self, s: ir.SetValid) -> None:
        target = self.expression(s.target, ATOM)
        if isinstance(s.target, ir.FieldOf):
            union = s.target.base.type
            if isinstance(union, ir.Record) and union.kind == "union":
                base = self.expression(s.target.base, ATOM)
                for name, _ in union.fields:
                    if name != s.target.field:
                        self.line(f"{base}.{self.expression.slot(union, name)}.valid = False")
        self.line(f"{target}.valid = {s.valid}")

    # ---- flow

    def if_(self, s: ir.If, word: str = "if") -> None:
        self.block(f"{word} {self.expression(s.condition)}:", s.yes)
        if len(s.no) == 1 and isinstance(s.no[0], ir.If) and self.in_place(s.no[0].condition):
            self.if_(s.no[0], "elif")
        elif s.no:
            self.block("else:", s.no)

    def in_place(self, condition: ir.Expression) -> bool:
        """Whether a condition takes no line before its own."""
        before = len(self.lines)
        self.expression(condition)
        hoisted = len(self.lines) > before
        del self.lines[before:]
        return not hoisted

    def switch(self, s: ir.Branches) -> None:
        subject = self.expression(s.subject)
        if not isinstance(s.subject, ir.ReadVariable):
            subject, value = self.names.fresh("choice"), subject
            self.line(f"{subject} = {value}")
        word = "if"
        for values, body in s.cases:
            if not values:
                continue
            test = f"== {values[0]}" if len(values) == 1 else f"in {tuple(values)}"
            self.block(f"{word} {subject} {test}:", body)
            word = "elif"
        if word == "if":
            self.statements(s.default)
        elif s.default:
            self.block("else:", s.default)

    def loop(self, s: ir.Loop) -> None:
        with self.nested("while True:"):
            self.line("packet.turn()")
            self.steps.append(s.step)
            self.statements(s.body)
            self.steps.pop()
            self.statements(s.step)

    def continue_(self, _: ir.Continue) -> None:
        self.statements(self.steps[-1])
        self.line("continue")

    # ---- calls

    def invoke(self, s: ir.Invoke) -> None:
        self.call(s.routine, [self.expression(argument) for argument in s.arguments], s.arguments, s.result)

    def call(
        self, routine: ir.Routine, texts: list[str], places: list[ir.Expression], result: ir.Expression | None
    ) -> None:
        """texts: arguments as Python; places: as expressions, where out ones are written back."""
        lead = ["packet", *(["here"] if self.layout.takes_frame(routine) else [])]
        call = f"{self.layout.names.of(routine)}({', '.join([*lead, *texts])})"
        targets = []
        if routine in self.layout.exits:
            targets.append("exited")
        if self.layout.gives_rejected(routine):
            targets.append("rejected")
        record_result = result is not None and not is_scalar(result.type)
        if routine.returns is not None:
            place = "_" if result is None else "value" if record_result else self.expression(result)
            targets.append(place)
        for parameter, place_expression in zip(routine.parameters, places, strict=False):
            if parameter.direction in ("out", "inout") and is_scalar(parameter.variable.type):
                targets.append(self.expression(place_expression))
        if not targets:
            self.line(call)
        elif targets == ["exited"]:
            with self.nested(f"if {call}:"):
                self.give_back(True)
            return
        else:
            self.line(f"{', '.join(targets)} = {call}")
        if record_result and result is not None:
            self.line(f"{self.expression(result, ATOM)}.assign(value)")
        if "exited" in targets:
            with self.nested("if exited:"):
                self.give_back(True)
        if "rejected" in targets:
            self.line("if rejected is not None:")
            self.line("    raise rejected")

    def apply_table(self, s: ir.ApplyTable) -> None:
        table = s.table
        self.statements(table.setup)
        keys = [self.pattern(key) for key in table.keys]
        look = f"{self.layout.names.of(table)}.look(packet, ({', '.join(keys)}{',' if len(keys) == 1 else ''}))"
        self.line(f"entry = {look}")
        # what happened is noted first: an action may end the control
        if s.hit is not None:
            self.store(s.hit, PythonText("entry.hit"))
        if s.action is not None:
            self.store(s.action, PythonText("entry.action"))
        word = "if"
        for at, action in enumerate(table.actions):
            if action.does_something:
                with self.nested(f"{word} entry.action == {at}:"):
                    self.run_action(action)
                word = "elif"

    def pattern(self, key: ir.Key) -> str:
        """A key as its bits; for a range of int<W>, so that order is that of numbers."""
        kind = key.expression.type
        if not isinstance(kind, ir.Bits | ir.Bool | ir.EnumMember):
            raise P4Error(f"key {key.name} is neither a number nor bool, enum or error; match its parts", key.position)
        if not isinstance(kind, ir.Bits) or not kind.signed:
            return self.expression(key.expression)
        if key.match == "range":
            return f"{self.expression(key.expression, NOT)} + {(1 << kind.width) >> 1}"
        return f"{self.expression(key.expression, NOT)} & {hex((1 << kind.width) - 1)}"

    def run_action(self, action: ir.TableAction) -> None:
        bound, given = iter(action.bound), itertools.count()
        texts: list[str] = []
        places: list[ir.Expression] = []
        for parameter in action.routine.parameters:
            data = parameter.direction == "data"
            places.append(ir.Const(parameter.variable.type, 0) if data else next(bound))
            texts.append(f"entry.arguments[{next(given)}]" if data else self.expression(places[-1]))
        self.call(action.routine, texts, places, None)

    # ---- packets

    def extract(self, s: ir.Extract) -> None:
        varbits = "" if s.varbits is None else f", {self.expression(s.varbits)}"
        if isinstance(s.target, ir.Next):
            self.line(f"packet.extract_next({self.expression(s.target.base)}{varbits})")
            return
        name = "extract_varbits" if varbits else "extract"
        self.line(f"packet.{name}({self.expression(s.target)}{varbits})")
        if isinstance(s.target, ir.FieldOf) and isinstance(s.target.base, ir.Next):
            self.line(f"{self.expression(s.target.base.base, ATOM)}.next_index += 1")

    def lookahead(self, s: ir.Lookahead) -> None:
        kind = s.target.type
        peek = PythonText(f"packet.peek({width_of(kind)})")
        if isinstance(kind, ir.Bits):
            self.store(s.target, self.expression.fitted(peek, kind) if kind.signed else peek)
        elif isinstance(kind, ir.Varbits):
            self.store(s.target, PythonText("EMPTY"))
        elif is_scalar(kind):
            self.store(s.target, peek)
        else:
            self.line(f"{self.expression(s.target, ATOM)}.take({peek.text})")

    def verify(self, s: ir.Verify) -> None:
        with self.nested(f"if not {self.expression(s.condition, NOT)}:"):
            self.line(f"raise Reject({self.expression(s.error)})")

    def emit(self, text: str, kind: ir.Type) -> None:
        if isinstance(kind, ir.Array):
            with self.nested(f"for item in {text}.items:"):
                self.emit("item", kind.element)
        elif isinstance(kind, ir.Record):
            if kind.kind == "header":
                self.line(f"packet.emit({text})")
                return
            for name, field in kind.fields:
                self.emit(f"{text}.{self.expression.slot(kind, name)}", field)

    # ---- parser states

    def transition(self, name: str, numbers: dict[str, int]) -> None:
        if name == "accept":
            self.give_back(False)
        elif name == "reject":
            self.line("raise Reject(0)")
        else:
            self.line(f"state = {numbers[name]}")

    def select(self, state: ir.ParserState, numbers: dict[str, int]) -> None:
        """Writes which state follows."""
        if not state.keys:
            self.transition(state.next, numbers)
            return
        keys = []
        for key in state.keys:
            keys.append(self.names.fresh("key"))
            self.line(f"{keys[-1]} = {self.expression(key)}")
        word = "if"
        for case in state.cases:
            tests = self.case_tests(case, state.keys, keys)
            if not tests:
                break
            with self.nested(f"{word} {' and '.join(tests)}:"):
                self.transition(case.next, numbers)
            word = "elif"
        else:
            case = None
        with self.nested("else:") if word == "elif" else nullcontext():
            if case is None:
                self.line('raise packet.reject("NoMatch")')
            else:
                self.transition(case.next, numbers)

    def case_tests(self, case: ir.Case, expressions: list[ir.Expression], keys: list[str]) -> list[str]:
        tests = []
        for key, expression, keyset in zip(keys, expressions, case.sets, strict=True):
            match keyset:
                case ir.Exactly(value):
                    tests.append(self.same(key, expression.type, value))
                case ir.Masked(value, mask):
                    by = self.expression(mask, ATOM)
                    tests.append(f"{key} & {by} == {self.expression(value, BIT_AND)} & {by}")
                case ir.Between(low, high):
                    tests.append(
                        f"{self.expression(low, COMPARE + 1)} <= {key} <= {self.expression(high, COMPARE + 1)}"
                    )
                case ir.InValueSet(value_set):
                    held = [self.set_key(value_set, at, key) for at, key in enumerate(keys[: len(value_set.types)])]
                    tests.append(f"{self.layout.names.of(value_set)}.holds(({', '.join(held)},))")
        return tests

    def same(self, key: str, kind: ir.Type, value: ir.Expression) -> str:
        if is_scalar(kind):
            return f"{key} == {self.expression(value, COMPARE + 1)}"
        return f"{key}.same({self.expression(value)})"

    @staticmethod
    def set_key(value_set: ir.ValueSet, at: int, key: str) -> str:
        """A key of a value set as its bits, as `pattern`."""
        kind = value_set.types[at]
        if not isinstance(kind, ir.Bits) or not kind.signed:
            return key
        if value_set.matches[at : at + 1] == ("range",):
            return f"{key} + {(1 << kind.width) >> 1}"
        return f"{key} & {hex((1 << kind.width) - 1)}"


STATEMENTS: dict[type[ir.Statement], Callable[[StatementWriter, Any], None]] = {
    ir.Assign: StatementWriter.assign,
    ir.Reset: StatementWriter.reset,
    ir.If: StatementWriter.if_,
    ir.Branches: StatementWriter.switch,
    ir.Loop: StatementWriter.loop,
    ir.Break: lambda writer, _: writer.line("break"),
    ir.Continue: StatementWriter.continue_,
    ir.Invoke: StatementWriter.invoke,
    ir.ApplyTable: StatementWriter.apply_table,
    ir.Return: lambda writer, s: writer.give_back(False, None if s.value is None else writer.expression(s.value)),
    ir.Exit: lambda writer, _: writer.give_back(True),
    ir.SetValid: StatementWriter.set_valid,
    ir.ShiftStack: lambda writer, s: writer.line(f"{writer.expression(s.target, ATOM)}.push({s.count})"),
    ir.Extract: StatementWriter.extract,
    ir.Lookahead: StatementWriter.lookahead,
    ir.Advance: lambda writer, s: writer.line(f"packet.advance({writer.expression(s.bits)})"),
    ir.Verify: StatementWriter.verify,
    ir.Emit: lambda writer, s: writer.emit(writer.expression(s.value, ATOM), s.value.type),
    ir.CallExtern: lambda writer, s: writer.externs.call(s),
}
