"""Expressions of the IR as C expressions.

Numbers become values of their width's `Rep`, in text that binds tightly; records, arrays and varbits become places.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from p4vm.c_code.c_numbers import CNumbers, literal
from p4vm.c_code.c_types import CTypes, is_number, rep
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.source import P4Error

if TYPE_CHECKING:
    from collections.abc import Iterator


class CExpressions:
    """Writes the expressions of one routine.

    variables: where its variables are, by identity. hoist: takes a line that runs before the statement at hand.
    rejects: whether Next and Last beyond the stack end the routine in reject; how: the statement that does.
    """

    def __init__(
        self, types: CTypes, hoist: Callable[[str], None], *, rejects: bool, how: str, fresh: Callable[[str], str]
    ) -> None:
        self.types = types
        self.numbers = CNumbers(types)
        self.hoist = hoist
        self.rejects = rejects
        self.how = how
        self.fresh = fresh
        self.variables: dict[int, str] = {}
        self.checked: set[str] = set()

    def __call__(self, e: ir.Expression) -> str:
        return EXPRESSIONS[type(e)](self, e)

    # ---- places

    def place(self, e: ir.Expression, *, write: bool = False) -> str:
        """The place of e: an lvalue of C."""
        match e:
            case ir.ReadVariable():
                return self.variables[id(e.variable)]
            case ir.FieldOf():
                return f"{self.place(e.base, write=write)}.{CTypes.field(e.field)}"
            case ir.Index():
                return self._element(e, write=write)
            case ir.Next():
                self._within(e.base, "next")
                base = self.place(e.base, write=write)
                return self._guarded(e.base, base, f"{base}.next", write=write)
            case ir.Last():
                self._within(e.base, "last")
                base = self.place(e.base, write=write)
                return self._guarded(e.base, base, f"(uint64_t){base}.next - 1", write=write)
        raise P4Error(f"{type(e).__name__} is no place")

    def _element(self, e: ir.Index, *, write: bool) -> str:
        kind = e.base.type
        assert isinstance(kind, ir.Array)
        base = self.place(e.base, write=write)
        if isinstance(e.index, ir.Const):
            at = int(e.index.value)
            if 0 <= at < kind.size:
                return f"{base}.e[{at}]"
            index = "UINT64_MAX"
        else:
            index = self.numbers.small(self(e.index), width_of(e.index.type), is_signed(e.index.type))
        return self._guarded(e.base, base, index, write=write)

    def _guarded(self, stack: ir.Expression, base: str, index: str, *, write: bool) -> str:
        assert isinstance(stack.type, ir.Array)
        if not write:
            return f"(*{self.types.at(stack.type)}(&{base}, {index}))"
        sink = self.fresh("sink")
        self.hoist(f"{self.types.storage(stack.type.element)} {sink};")
        return f"(*{self.types.put(stack.type)}(&{base}, {index}, &{sink}))"

    def _within(self, stack: ir.Expression, which: str) -> None:
        """In parsers: reject before the statement where there is no such element."""
        if not self.rejects:
            return
        assert isinstance(stack.type, ir.Array)
        base = self.place(stack)
        test = f"{base}.next >= {stack.type.size}u"
        if which == "last":
            test = f"!{base}.next || {base}.next > {stack.type.size}u"
        self.hoist(f"if ({test}) {self.how}")

    # ---- what is in places

    def load(self, place: str, kind: ir.Type) -> str:
        """The number in a place, as its rep."""
        if not isinstance(kind, ir.Bits):
            return place
        return f"(uint32_t){place}" if kind.width <= 16 else place

    def const(self, e: ir.Const) -> str:
        if isinstance(e.value, str):
            raise P4Error("a string is no value that programs work on")
        if isinstance(e.type, ir.Bits):
            return literal(int(e.value), e.type.width)
        return f"{int(e.value)}u"

    def loaded(self, e: ir.Expression) -> str:
        return self.load(self.place(e), e.type)

    def valid(self, e: ir.Valid) -> str:
        kind, base = e.base.type, self.place(e.base)
        if isinstance(kind, ir.Record) and kind.kind == "union":
            tests = [f"{base}.{CTypes.field(name)}.valid" for name, _ in kind.fields]
            return f"({' || '.join(tests) or '0'})"
        return f"{base}.valid"

    # ---- numbers

    def unary(self, e: ir.Unary) -> str:
        operand = self(e.operand)
        if e.operator == "!":
            return f"!{operand}"
        width = width_of(e.type)
        return self.numbers.negate(operand, width) if e.operator == "-" else self.numbers.invert(operand, width)

    def binary(self, e: ir.Binary) -> str:
        operator = e.operator
        if operator in ("&&", "||"):
            return self._logical(e)
        width, signed = width_of(e.left.type), is_signed(e.left.type)
        if operator in ("<<", ">>"):
            return self._shift(e, width, signed)
        if operator in ("==", "!=") and not is_number(e.left.type):
            test = self.types.equal(self.place(e.left), self.place(e.right), e.left.type)
            return f"({test})" if operator == "==" else f"!({test})"
        left, right = self(e.left), self(e.right)
        if operator in ("==", "!=", "<", "<=", ">", ">="):
            return self.numbers.compare(operator, width, signed, left, right)
        return self.numbers.binary(operator, width, signed, left, right)

    def _shift(self, e: ir.Binary, width: int, signed: bool) -> str:
        left = self(e.left)
        if isinstance(e.right, ir.Const):
            return self.numbers.shift_by(e.operator, width, signed, left, int(e.right.value))
        by = self.numbers.small(self(e.right), width_of(e.right.type))
        return self.numbers.shift(e.operator, width, signed, left, by)

    @contextmanager
    def _apart(self) -> Iterator[list[str]]:
        """Within it, lines that would be hoisted are collected."""
        lines: list[str] = []
        saved, self.hoist = self.hoist, lines.append
        try:
            yield lines
        finally:
            self.hoist = saved

    def _logical(self, e: ir.Binary) -> str:
        left = self(e.left)
        with self._apart() as lines:
            right = self(e.right)
        if not lines:
            return f"({left} {e.operator} {right})"
        name = self.fresh("holds")
        self.hoist(f"uint8_t {name} = {left};")
        self.hoist(f"if ({'' if e.operator == '&&' else '!'}{name}) {{")
        for line in [*lines, f"{name} = {right};"]:
            self.hoist(f"    {line}")
        self.hoist("}")
        return name

    def mux(self, e: ir.Mux) -> str:
        condition = self(e.condition)
        with self._apart() as yes_lines:
            yes = self(e.yes)
        with self._apart() as no_lines:
            no = self(e.no)
        if not yes_lines and not no_lines:
            return f"({condition} ? {yes} : {no})"
        name = self.fresh("chosen")
        self.hoist(f"{self.rep_c(e.type)} {name};")
        self.hoist(f"if ({condition}) {{")
        for line in [*yes_lines, f"{name} = {yes};"]:
            self.hoist(f"    {line}")
        self.hoist("} else {")
        for line in [*no_lines, f"{name} = {no};"]:
            self.hoist(f"    {line}")
        self.hoist("}")
        return name

    def rep_c(self, kind: ir.Type) -> str:
        """C type of an expression of this type."""
        if isinstance(kind, ir.Bits):
            return self.types.rep_c(rep(kind.width))
        return "uint32_t" if is_number(kind) else self.types.storage(kind)

    def concat(self, e: ir.Concat) -> str:
        self.rep_c(e.type)
        left, right = self(e.left), self(e.right)
        return self.numbers.concat(left, width_of(e.left.type), right, width_of(e.right.type))

    def cast(self, e: ir.Cast) -> str:
        operand, wanted, text = e.operand.type, e.type, self(e.operand)
        if not isinstance(operand, ir.Bits):
            return f"(uint32_t){text}" if isinstance(wanted, ir.Bits) else text
        if not isinstance(wanted, ir.Bits):
            return text
        self.rep_c(wanted)
        return self.numbers.cast(text, operand.width, operand.signed, wanted.width)

    # ---- for externs

    def word(self, e: ir.Expression) -> str:
        """The low 64 bits, as uint64_t, with the type's sign."""
        return self.numbers.word(self(e), width_of(e.type), is_signed(e.type))

    def index(self, e: ir.Expression) -> str:
        """As uint64_t, too large where it is beyond 64 bits or negative."""
        return self.numbers.small(self(e), width_of(e.type), is_signed(e.type))


EXPRESSIONS: dict[type[ir.Expression], Callable[[CExpressions, Any], str]] = {
    ir.Const: CExpressions.const,
    ir.ReadVariable: CExpressions.loaded,
    ir.FieldOf: CExpressions.loaded,
    ir.Index: CExpressions.loaded,
    ir.Next: CExpressions.loaded,
    ir.Last: CExpressions.loaded,
    ir.LastIndex: lambda writer, e: f"({writer.place(e.base)}.next - 1u)",
    ir.Unary: CExpressions.unary,
    ir.Binary: CExpressions.binary,
    ir.Concat: CExpressions.concat,
    ir.BitSlice: lambda writer, e: writer.numbers.slice(writer(e.base), width_of(e.base.type), e.high, e.low),
    ir.Cast: CExpressions.cast,
    ir.Mux: CExpressions.mux,
    ir.Valid: CExpressions.valid,
}
"""All but Build and Invalid, which are places and no values."""
