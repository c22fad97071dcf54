"""Parsers' states as C: labels and jumps."""

from __future__ import annotations

from p4vm.c_code.numbers import literal
from p4vm.c_code.statements import StatementWriter
from p4vm.c_code.types import is_number
from p4vm.ir import nodes as ir
from p4vm.ir.nodes import is_signed, width_of


class StateWriter(StatementWriter):
    """Writes a parser's states behind its statements."""

    def states(self) -> None:
        labels = {name: f"state_{at}" for at, name in enumerate(self.routine.states)}
        self.jump(self.routine.start, labels)
        for name, state in self.routine.states.items():
            self.line(f"{labels[name]}:;")
            self.line("{")
            self.indent += 1
            timeout = self.context.error("ParserTimeout")
            self.line(f"if (++e->steps > e->program->limits.steps) return p4_reject(e, {timeout});")
            self.statements(state.body)
            self.select(state, labels)
            self.indent -= 1
            self.line("}")

    def jump(self, name: str, labels: dict[str, str]) -> None:
        if name == "accept":
            self.line("return 0;")
        elif name == "reject":
            self.line("return p4_reject(e, 0);")
        else:
            self.line(f"goto {labels[name]};")

    def select(self, state: ir.State, labels: dict[str, str]) -> None:
        """Which state follows."""
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
            self.line(f"return p4_reject(e, {self.context.error('NoMatch')});")

    def select_one(self, state: ir.State, labels: dict[str, str]) -> bool:
        """As a switch, where one number decides by constants alone. Whether it does."""
        key = state.keys[0]
        if len(state.keys) > 1 or not isinstance(key.type, ir.Bits) or not 0 < key.type.width <= 64:
            return False
        cases: dict[int, str] = {}
        rest = None
        for case in state.cases:
            one = case.sets[0]
            if isinstance(one, ir.Anything):
                rest = case.next
                break
            if not isinstance(one, ir.Exactly) or not isinstance(one.value, ir.Const):
                return False
            cases.setdefault(int(one.value.value) & (1 << key.type.width) - 1, case.next)
        self.line("switch (key_0) {")
        self.indent += 1
        for value, following in cases.items():
            self.line(f"case {value:#x}ull:")
            self.indent += 1
            self.jump(following, labels)
            self.indent -= 1
        self.line("default:")
        self.indent += 1
        if rest is None:
            self.line(f"return p4_reject(e, {self.context.error('NoMatch')});")
        else:
            self.jump(rest, labels)
        self.indent -= 2
        self.line("}")
        return True

    def case(self, case: ir.Case, state: ir.State, keys: list[str], labels: dict[str, str]) -> None:
        self.line("{")
        self.indent += 1
        tests = [
            test
            for key, e, one in zip(keys, state.keys, case.sets, strict=False)
            if (test := self.test(one, key, e.type, state.keys))
        ]
        if tests:
            self.line(f"if ({' && '.join(tests)}) {{")
            self.indent += 1
        self.jump(case.next, labels)
        if tests:
            self.indent -= 1
            self.line("}")
        self.indent -= 1
        self.line("}")

    def test(self, one: ir.KeySet, key: str, kind: ir.Type, keys: list[ir.Expression]) -> str:
        """Whether a set holds the key; "": any."""
        width, signed = width_of(kind), is_signed(kind)
        numbers = self.expression.numbers
        match one:
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
