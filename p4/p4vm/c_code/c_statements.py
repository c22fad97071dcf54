"""Statements of the IR as C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from p4vm.c_code.c_expressions import CExpressions
from p4vm.c_code.c_externs import HASHES, CExternWriter
from p4vm.c_code.c_numbers import literal
from p4vm.c_code.c_types import CTypes, is_number, limbs_of, rep
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.lines import Lines

if TYPE_CHECKING:
    from p4vm.c_code.c_program import CProgram

NO_MATCH = ""
"""The "state" after a select without a case for its keys: reject, with an error."""
NO_DECLARATIONS = ("if (", "}", "switch (", "for (", "e->")
"""Lines that begin so declare nothing in their block."""


class CStatementWriter(Lines):
    """Writes the statements of one routine. context: what it must know of the program around it."""

    comment = "/* {} */"

    def __init__(self, context: CProgram, routine: ir.Routine) -> None:
        super().__init__()
        self.context = context
        self.routine = routine
        self.count = 0
        self.loops: list[tuple[str, str]] = []
        self.used: set[str] = set()
        out_of_bounds = f"return p4_reject(e, {context.error('StackOutOfBounds')});"
        self.expression = CExpressions(
            context.types, self.line, rejects=routine in context.rejecting, how=out_of_bounds, fresh=self.fresh
        )
        self.externs: CExternWriter = CExternWriter(self)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def statements(self, statements: list[ir.Statement]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, statement: ir.Statement) -> None:
        """Writes a statement, in a block of its own where its lines may declare something."""
        with self.at(statement.position):
            before = len(self.lines)
            STATEMENTS[type(statement)](self, statement)
            block = self.lines[before:]
            outer = "    " * self.indent
            direct = [line.removeprefix(outer) for line in block if not line.startswith(f"{outer} ")]
            if len(block) > 1 and not all(line.startswith(NO_DECLARATIONS) for line in direct):
                self.lines[before:] = [f"{outer}{{", *(f"    {line}" for line in block), f"{outer}}}"]

    def block(self, head: str, statements: list[ir.Statement], end: str = "") -> None:
        with self.nested(head, end):
            self.statements(statements)

    # ---- writing to places

    def store(self, target: ir.Expression, text: str) -> None:
        """Assigns a number, as its rep, to a place, or to some bits of it."""
        low = 0
        width = width_of(target.type)
        sliced = target
        while isinstance(sliced, ir.BitSlice):
            low += sliced.low
            sliced = sliced.base
        if sliced is target:
            self.line(f"{self.expression.place(target, write=True)} = {text};")
        elif width:
            self._store_bits(sliced, text, width, low)

    def _store_bits(self, number: ir.Expression, text: str, width: int, low: int) -> None:
        """text to the bits from `low` on of a wider number."""
        total = width_of(number.type)
        of = rep(total)
        pointer = self.fresh("bits")
        self.line(
            f"{self.context.types.storage(number.type)} *{pointer} = &{self.expression.place(number, write=True)};"
        )
        if not of.bits:
            limbs = self.expression.numbers.limbs(text, width).rsplit(", ", 1)[0]
            self.line(f"p4_wide_put({pointer}->w, {of.limbs}, {low}, {width}, {limbs});")
            return
        kept_bits = literal(((1 << total) - 1) & ~(((1 << width) - 1) << low), total)
        shifted = f"({of.c}){text} << {low}" if low else f"({of.c}){text}"
        self.line(f"*{pointer} = (*{pointer} & {kept_bits}) | {shifted};")

    def assign(self, s: ir.Assign) -> None:
        if is_number(s.target.type):
            self.store(s.target, self.expression(s.value))
        else:
            self._assign_whole(self.expression.place(s.target, write=True), s.value)

    def _assign_whole(self, place: str, value: ir.Expression) -> None:
        kind = value.type
        if isinstance(value, ir.Invalid):
            self.line(f"memset(&{place}, 0, sizeof {place});")
        elif not isinstance(value, ir.Build):
            source = self.expression(value) if is_number(kind) else self.expression.place(value)
            self.line(f"{place} = {source};")
        elif isinstance(kind, ir.Array):
            self.line(f"{place}.next = 0;")
            for at, item in enumerate(value.items):
                self._assign_whole(f"{place}.e[{at}]", item)
        else:
            assert isinstance(kind, ir.Record)
            if kind.kind == "header":
                self.line(f"{place}.valid = 1;")
            for (name, _), item in zip(kind.fields, value.items, strict=False):
                self._assign_whole(f"{place}.{CTypes.field(name)}", item)

    def reset(self, s: ir.Reset) -> None:
        if is_number(s.target.type):
            zero = ir.Const(s.target.type, 0)
            self.store(s.target, self.expression(zero))
            return
        place = self.expression.place(s.target, write=True)
        self.line(f"memset(&{place}, 0, sizeof {place});")

    def set_valid(self, s: ir.SetValid) -> None:
        target = s.target
        union = target.base.type if isinstance(target, ir.FieldOf) else None
        if isinstance(target, ir.FieldOf) and isinstance(union, ir.Record) and union.kind == "union":
            base = self.expression.place(target.base, write=True)
            for name, _ in union.fields:
                if name != target.field:
                    self.line(f"{base}.{CTypes.field(name)}.valid = 0;")
        self.line(f"{self.expression.place(target, write=True)}.valid = {int(s.valid)};")

    def push(self, s: ir.ShiftStack) -> None:
        assert isinstance(s.target.type, ir.Array)
        place = self.expression.place(s.target, write=True)
        self.line(f"{self.context.types.push(s.target.type)}(&{place}, {s.count});")

    # ---- flow

    def if_(self, s: ir.If) -> None:
        self.block(f"if ({self.expression(s.condition)}) {{", s.yes)
        while len(s.no) == 1 and isinstance(s.no[0], ir.If):
            inner = s.no[0]
            before = len(self.lines)
            condition = self.expression(inner.condition)
            if len(self.lines) > before:  # it needs lines of its own, which belong behind the else
                del self.lines[before:]
                break
            self.block(f"}} else if ({condition}) {{", inner.yes)
            s = inner
        if s.no:
            self.block("} else {", s.no)
        self.line("}")

    def switch(self, s: ir.Branches) -> None:
        width = width_of(s.subject.type)
        if width > 64:
            self._switch_wide(s, width)
            return
        mask = (1 << width) - 1 if isinstance(s.subject.type, ir.Bits) else -1
        seen: set[int] = set()
        with self.nested(f"switch ({self.expression(s.subject)}) {{", "}"):
            for values, body in s.cases:
                fresh = list(dict.fromkeys(value & mask for value in values if value & mask not in seen))
                seen.update(fresh)
                if fresh:
                    for value in fresh:
                        self.line(f"case {value}ull:")
                    self.block("", body, "    break;")
            self.block("default:", s.default, "    break;")

    def _switch_wide(self, s: ir.Branches, width: int) -> None:
        subject = self.fresh("subject")
        self.line(f"{self.expression.rep_c(s.subject.type)} {subject} = {self.expression(s.subject)};")
        word = "if"
        for values, body in s.cases:
            tests = [self.expression.numbers.compare("==", width, False, subject, literal(v, width)) for v in values]
            if tests:
                self.block(f"{word} ({' || '.join(tests)}) {{", body)
                word = "} else if"
        if word == "if":
            self.statements(s.default)
            return
        self.block("} else {", s.default, "}")

    def loop(self, s: ir.Loop) -> None:
        leave, following = self.fresh("leave"), self.fresh("following")
        self.loops.append((leave, following))
        self.line("for (;;) {")
        self.block("    if (p4_turn(e)) return P4_DROP;", s.body)
        if following in self.used:
            self.line(f"{following}:;")
        self.block("", s.step, "}")
        if leave in self.used:
            self.line(f"{leave}:;")
        self.loops.pop()

    def go_to(self, label: str) -> None:
        self.used.add(label)
        self.line(f"goto {label};")

    def return_(self, s: ir.Return) -> None:
        if s.value is not None:
            self._assign_whole("(*result)", s.value)
        self.line("return 0;")

    # ---- calls

    def invoke(self, s: ir.Invoke) -> None:
        routine = s.routine
        passed = [self.argument(p, a) for p, a in zip(routine.parameters, s.arguments, strict=True)]
        if routine.returns is None:
            self.call(routine, passed)
            return
        if s.result is not None and not isinstance(s.result, ir.BitSlice):
            self.call(routine, [*passed, f"&{self.expression.place(s.result, write=True)}"])
            return
        value = self.fresh("value")
        self.line(f"{self.context.types.storage(routine.returns)} {value};")
        self.call(routine, [*passed, f"&{value}"])
        if s.result is not None:
            self.store(s.result, self.expression.load(value, routine.returns))

    def argument(self, parameter: ir.Parameter, e: ir.Expression) -> str:
        if parameter.direction in ("out", "inout"):
            return f"&{self.expression.place(e, write=True)}"
        return self.expression(e) if is_number(e.type) else f"&{self.expression.place(e)}"

    def call(self, routine: ir.Routine, passed: list[str]) -> None:
        lead = ["e"]
        if routine.owner is not None and routine.owner in self.context.frames:
            lead.append("f" if self.routine.owner is routine.owner else "&frame")
        call = f"{self.context.routine(routine)}({', '.join([*lead, *passed])})"
        if routine in self.context.ending:
            end = self.fresh("end")
            self.line(f"int {end} = {call};")
            self.line(f"if ({end}) return {end};")
        else:
            self.line(f"(void){call};")

    def apply_table(self, s: ir.ApplyTable) -> None:
        table, number = s.table, self.context.table_number(s.table)
        layout = self.context.layout.tables[number]
        self.statements(table.setup)
        self.line(f"struct p4_table *table = &e->tables[{number}];")
        self.key([key.expression for key in table.keys], number)
        self.line("const struct p4_entry *entry = p4_table_find(table, key);")
        hashed = self._selector_hash(s) if layout.profile is not None else "0"
        profile = "NULL" if layout.profile is None else f"&e->profiles[{layout.profile}]"
        self.line(f"struct p4_call call = p4_table_call(table, {profile}, entry, {hashed});")
        if layout.counter is not None:
            self.line(f"if (call.hit) p4_count(e, {layout.counter}, entry->direct);")
        if layout.meter is not None:
            self.line("table->met_pass = call.hit ? e->pass : 0;")
            self.line(f"if (call.hit) table->color = p4_meter_color(e, {layout.meter}, entry->direct);")
        if s.hit is not None:
            self.store(s.hit, "call.hit")
        if s.action is not None:
            self.store(s.action, "call.action")
        self._actions(table)

    def _actions(self, table: ir.Table) -> None:
        calls = [(at, action) for at, action in enumerate(table.actions) if action.does_something]
        if calls:
            with self.nested("switch (call.action) {", "}"):
                for at, action in calls:
                    with self.nested(f"case {at}: {{", "}"):
                        self._run_action(action)
                        self.line("break;")

    def _run_action(self, action: ir.TableAction) -> None:
        bound = iter(action.bound)
        passed = []
        at = 0
        for parameter in action.routine.parameters:
            kind = parameter.variable.type
            if parameter.direction != "data":
                passed.append(self.argument(parameter, next(bound)))
                continue
            width = width_of(kind)
            of = rep(width)
            if of.bits == 128:
                passed.append(f"((p4_u128)call.arguments[{at + 1}] << 64 | call.arguments[{at}])")
            elif of.bits:
                passed.append(f"({of.c})call.arguments[{at}]")
            else:
                passed.append(
                    f"{self.expression.rep_c(kind).removeprefix('struct ')}_of(call.arguments + {at}, {of.limbs})"
                )
            at += limbs_of(width)
        self.call(action.routine, passed)

    def _selector_hash(self, s: ir.ApplyTable) -> str:
        implementation = s.table.implementation
        selected = [key.expression for key in s.table.keys if key.match == "selector"]
        if implementation is None or implementation.kind != "action_selector":
            return "0"
        named = next((argument for argument in implementation.arguments if isinstance(argument, str)), "")
        algorithm = named if named in HASHES else "crc16"
        self.line("uint64_t chosen = 0;")
        with self.nested("if (entry && entry->kind == P4_GROUP) {", "}"):
            self.line(f"chosen = {self.externs.hash_of(algorithm, selected, s, payload=False)};")
        return "chosen"

    def key(self, keys: list[ir.Expression], number: int, *, value_set: bool = False) -> None:
        """Declares `key` and fills it as tables.py lays it out."""
        layout = self.context.layout.value_sets[number] if value_set else self.context.layout.tables[number].keys
        total = layout.words + layout.range_words
        words: dict[int, list[str]] = {}
        wide = []
        for e, place in zip(keys, layout.places, strict=False):
            if place.match == "selector":
                continue
            at = place.word + (layout.words if place.match == "range" else 0)
            text = self.expression(e)
            if place.match == "range" and place.signed and place.width:
                flip = literal(1 << place.width - 1, place.width)
                text = self.expression.numbers.binary("^", place.width, False, text, flip)
            if place.limbs > 1:
                pointer, count = self.expression.numbers.limbs(text, place.width).rsplit(", ", 1)
                wide.append(f"p4_wide_resize(key + {at}, {place.limbs}, {pointer}, {count});")
            else:
                words.setdefault(at, []).append(
                    f"(uint64_t){text} << {place.shift}" if place.shift else f"(uint64_t){text}"
                )
        self.line(f"uint64_t key[{max(total, 1)}];")
        for at, terms in words.items():
            self.line(f"key[{at}] = {' | '.join(terms)};")
        for text in wide:
            self.line(text)

    # ---- packets

    def extract(self, s: ir.Extract) -> None:
        target = s.target
        assert isinstance(target.type, ir.Record)
        place = self.expression.place(target, write=True)
        name = self.context.wire.extract(target.type, with_varbits=s.varbits is not None)
        varbits = "" if s.varbits is None else f", {self.expression.index(s.varbits)}"
        self.line(f"if ({name}(e, &{place}{varbits})) return P4_REJECT;")
        stack = target if isinstance(target, ir.Next) else target.base if isinstance(target, ir.FieldOf) else None
        if isinstance(stack, ir.Next):
            self.line(f"{self.expression.place(stack.base, write=True)}.next++;")

    def lookahead(self, s: ir.Lookahead) -> None:
        kind = s.target.type
        width = width_of(kind)
        self.line(f"if ({width} > e->limit - e->cursor) return p4_reject(e, {self.context.error('PacketTooShort')});")
        self.line(f"const uint8_t *p = p4_read(e, {width});")
        self.line("(void)p;")
        if is_number(kind):
            value = self.fresh("ahead")
            self.line(f"{self.context.types.storage(kind)} {value};")
            self.line(self.context.wire.get_statement(kind, value, "0"))
            self.store(s.target, self.expression.load(value, kind))
            return
        place = self.fresh("ahead")
        self.line(f"{self.context.types.storage(kind)} *{place} = &{self.expression.place(s.target, write=True)};")
        for line in self.context.wire.fill(kind, f"(*{place})"):
            self.line(line)

    def advance(self, s: ir.Advance) -> None:
        bits = self.fresh("bits")
        self.line(f"uint64_t {bits} = {self.expression.index(s.bits)};")
        too_short = self.context.error("PacketTooShort")
        self.line(f"if ({bits} > e->limit - e->cursor) return p4_reject(e, {too_short});")
        self.line(f"e->cursor += {bits};")

    def verify(self, s: ir.Verify) -> None:
        self.line(f"if (!{self.expression(s.condition)}) return p4_reject(e, {self.expression(s.error)});")

    def emit(self, s: ir.Emit) -> None:
        if isinstance(s.value.type, ir.Record | ir.Array):
            self.line(f"{self.context.wire.emit(s.value.type)}(e, &{self.expression.place(s.value)});")

    # ---- parser states: labels and jumps

    def states(self) -> None:
        labels = {name: f"state_{at}" for at, name in enumerate(self.routine.states)}
        self.jump(self.routine.start, labels)
        for name, state in self.routine.states.items():
            self.line(f"{labels[name]}:;")
            with self.nested("{", "}"):
                timeout = self.context.error("ParserTimeout")
                self.line(f"if (++e->steps > e->program->limits.steps) return p4_reject(e, {timeout});")
                self.statements(state.body)
                self.select(state, labels)

    def jump(self, name: str, labels: dict[str, str]) -> None:
        """To a state, or out of the parser."""
        if name == "accept":
            self.line("return 0;")
        elif name in ("reject", NO_MATCH):
            self.line(f"return p4_reject(e, {0 if name == 'reject' else self.context.error('NoMatch')});")
        else:
            self.line(f"goto {labels[name]};")

    def select(self, state: ir.ParserState, labels: dict[str, str]) -> None:
        """Writes which state follows."""
        if not state.keys:
            self.jump(state.next, labels)
            return
        keys = []
        for at, key in enumerate(state.keys):
            if is_number(key.type):
                self.line(f"{self.expression.rep_c(key.type)} key_{at} = {self.expression(key)};")
                keys.append(f"key_{at}")
            else:
                keys.append(self.expression.place(key))
        if not self.select_one(state, labels):
            for case in state.cases:
                self.case(case, state, keys, labels)
            self.jump(NO_MATCH, labels)

    def select_one(self, state: ir.ParserState, labels: dict[str, str]) -> bool:
        """As a switch, where one number decides by constants alone. Whether it does."""
        key = state.keys[0]
        if len(state.keys) > 1 or not isinstance(key.type, ir.Bits) or not 0 < key.type.width <= 64:
            return False
        cases: dict[int, str] = {}
        rest = NO_MATCH
        for case in state.cases:
            key_set = case.sets[0]
            if isinstance(key_set, ir.Anything):
                rest = case.next
                break
            if not isinstance(key_set, ir.Exactly) or not isinstance(key_set.value, ir.Const):
                return False
            cases.setdefault(int(key_set.value.value) & (1 << key.type.width) - 1, case.next)
        with self.nested("switch (key_0) {", "}"):
            for value, following in cases.items():
                with self.nested(f"case {value:#x}ull:"):
                    self.jump(following, labels)
            with self.nested("default:"):
                self.jump(rest, labels)
        return True

    def case(self, case: ir.Case, state: ir.ParserState, keys: list[str], labels: dict[str, str]) -> None:
        with self.nested("{", "}"):
            tests = [
                test
                for key, e, key_set in zip(keys, state.keys, case.sets, strict=False)
                if (test := self.test(key_set, key, e.type, state.keys))
            ]
            with self.nested(f"if ({' && '.join(tests)}) {{", "}") if tests else nullcontext():
                self.jump(case.next, labels)

    def test(self, key_set: ir.KeySet, key: str, kind: ir.Type, keys: list[ir.Expression]) -> str:
        """Whether a set holds the key; "": any."""
        width, signed = width_of(kind), is_signed(kind)
        numbers = self.expression.numbers
        match key_set:
            case ir.Exactly(value):
                if not is_number(kind):
                    return self.context.types.equal(key, self.expression.place(value), kind)
                return numbers.compare("==", width, signed, key, self.fitted(value, kind))
            case ir.Masked(value, mask):
                by = self.fitted(mask, kind)
                left = numbers.binary("&", width, signed, key, by)
                right = numbers.binary("&", width, signed, self.fitted(value, kind), by)
                return numbers.compare("==", width, False, left, right)
            case ir.Between(low, high):
                above = numbers.compare("<=", width, signed, self.fitted(low, kind), key)
                return f"{above} && {numbers.compare('<=', width, signed, key, self.fitted(high, kind))}"
            case ir.InValueSet(value_set):
                number = self.context.value_sets[id(value_set)]
                self.key(keys[: len(value_set.types)], number, value_set=True)
                return f"p4_table_find(&e->value_sets[{number}], key)"
        return ""

    def fitted(self, e: ir.Expression, kind: ir.Type) -> str:
        """A number that is compared with a key, as the key's rep."""
        if isinstance(e, ir.Const) and isinstance(kind, ir.Bits):
            return literal(int(e.value), kind.width)
        return self.expression(e)


STATEMENTS: dict[type[ir.Statement], Callable[[CStatementWriter, Any], None]] = {
    ir.Assign: CStatementWriter.assign,
    ir.Reset: CStatementWriter.reset,
    ir.If: CStatementWriter.if_,
    ir.Branches: CStatementWriter.switch,
    ir.Loop: CStatementWriter.loop,
    ir.Break: lambda writer, _: writer.go_to(writer.loops[-1][0]),
    ir.Continue: lambda writer, _: writer.go_to(writer.loops[-1][1]),
    ir.Invoke: CStatementWriter.invoke,
    ir.ApplyTable: CStatementWriter.apply_table,
    ir.Return: CStatementWriter.return_,
    ir.Exit: lambda writer, _: writer.line("return P4_EXIT;"),
    ir.SetValid: CStatementWriter.set_valid,
    ir.ShiftStack: CStatementWriter.push,
    ir.Extract: CStatementWriter.extract,
    ir.Lookahead: CStatementWriter.lookahead,
    ir.Advance: CStatementWriter.advance,
    ir.Verify: CStatementWriter.verify,
    ir.Emit: CStatementWriter.emit,
    ir.CallExtern: lambda writer, s: writer.externs.call(s),
}
