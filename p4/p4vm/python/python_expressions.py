"""P4 expressions as Python expressions: pure text, in Python's own precedence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4vm.ir import ir_nodes as ir
from p4vm.python.python_names import ProgramNames, PythonNames, fields_of
from p4vm.python.records import is_scalar, piece, zero

LAMBDA, MUX, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(14)
"""Python's precedences, loosest first."""
DEPTH_MAX = 24
"""Deeper expressions are taken apart: Python's own parser has limits."""

LEVELS = {"+": SUM, "-": SUM, "*": PRODUCT, "&": BIT_AND, "^": BIT_XOR, "|": BIT_OR, "&&": AND, "||": OR}
WORDS = {"&&": "and", "||": "or"}


class PythonText:
    """An expression in Python. depth: of brackets and operators within it."""

    __slots__ = ("depth", "level", "text")

    def __init__(self, text: str, level: int = ATOM, depth: int = 0) -> None:
        self.text = text
        self.level = level
        self.depth = depth

    def at(self, level: int) -> str:
        """In brackets where it binds looser than level."""
        return self.text if self.level >= level else f"({self.text})"


class Expressions:
    """Expressions of one routine.

    places: where its variables are, as text. parser: whether Next and Last may reject. hoist: takes a line that must
    run before the statement at hand.
    """

    def __init__(
        self, program_names: ProgramNames, names: PythonNames, hoist: Callable[[str], None], *, parser: bool
    ) -> None:
        self.program_names = program_names
        self.names = names
        self.hoist = hoist
        self.parser = parser
        self.places: dict[int, str] = {}
        self.slots: dict[str, dict[str, str]] = {}

    def slot(self, record: ir.Record, field: str) -> str:
        if record.name not in self.slots:
            self.slots[record.name] = fields_of(record)
        return self.slots[record.name][field]

    def __call__(self, expression: ir.Expression, level: int = LAMBDA) -> str:
        """The expression, in brackets where it binds looser than level."""
        return self.text(expression).at(level)

    def text(self, expression: ir.Expression) -> PythonText:
        made = EXPRESSIONS[type(expression)](self, expression)
        if made.depth > DEPTH_MAX:
            name = self.names.fresh("part")
            self.hoist(f"{name} = {made.text}")
            return PythonText(name)
        return made

    def join(self, level: int, form: str, *parts: tuple[ir.Expression, int]) -> PythonText:
        """form with {0}, {1}, … for the parts, each bracketed for its level."""
        texts = [(self.text(part), at) for part, at in parts]
        depth = 1 + max((text.depth for text, _ in texts), default=0)
        return PythonText(form.format(*(text.at(at) for text, at in texts)), level, depth)

    # ---- places

    def const(self, e: ir.Const) -> PythonText:
        if isinstance(e.value, str):
            return PythonText(repr(e.value))
        value = int(e.value)
        shown = hex(value) if abs(value) > 0xFFFF else str(value)
        return PythonText(shown, UNARY if value < 0 else ATOM)

    def member(self, e: ir.FieldOf) -> PythonText:
        assert isinstance(e.base.type, ir.Record)
        return self.join(ATOM, f"{{0}}.{self.slot(e.base.type, e.field)}", (e.base, ATOM))

    def index(self, e: ir.Index) -> PythonText:
        assert isinstance(e.base.type, ir.Array)
        if isinstance(e.index, ir.Const) and 0 <= int(e.index.value) < e.base.type.size:
            return self.join(ATOM, "{0}.items[{1}]", (e.base, ATOM), (e.index, LAMBDA))
        return self.join(ATOM, "{0}.at({1})", (e.base, ATOM), (e.index, LAMBDA))

    def by_next(self, e: ir.Next | ir.Last) -> PythonText:
        """An element that nextIndex tells: in parsers one beyond the stack ends the parser."""
        if self.parser:
            return self.join(ATOM, f"packet.{'next' if isinstance(e, ir.Next) else 'last'}({{0}})", (e.base, LAMBDA))
        return self.join(ATOM, f"{{0}}.at({{0}}.next_index{'' if isinstance(e, ir.Next) else ' - 1'})", (e.base, ATOM))

    # ---- numbers

    def fitted(self, value: PythonText, kind: ir.Type) -> PythonText:
        """A number of any size, cut to this type."""
        assert isinstance(kind, ir.Bits)
        if not kind.width:
            return PythonText("0")
        if kind.signed:
            return PythonText(f"wrap({value.text}, {hex(1 << kind.width - 1)})", ATOM, value.depth + 1)
        return PythonText(f"{value.at(BIT_AND)} & {hex((1 << kind.width) - 1)}", BIT_AND, value.depth + 1)

    def unary(self, e: ir.Unary) -> PythonText:
        if e.operator == "!":
            return self.join(NOT, "not {0}", (e.operand, NOT))
        return self.fitted(self.join(UNARY, f"{e.operator}{{0}}", (e.operand, UNARY)), e.type)

    def binary(self, e: ir.Binary) -> PythonText:
        match e.operator:
            case "==" | "!=":
                return self.equality(e)
            case "<" | "<=" | ">" | ">=":
                return self.join(COMPARE, f"{{0}} {e.operator} {{1}}", (e.left, BIT_OR), (e.right, BIT_OR))
            case "<<" | ">>":
                return self.shift(e)
            case "/" | "%":
                name = "quotient" if e.operator == "/" else "remainder"
                return self.join(ATOM, f"{name}({{0}}, {{1}})", (e.left, LAMBDA), (e.right, LAMBDA))
            case "|+|" | "|-|":
                return self.saturated(e)
        level = LEVELS[e.operator]
        word = WORDS.get(e.operator, e.operator)
        made = self.join(level, f"{{0}} {word} {{1}}", (e.left, level), (e.right, level + 1))
        return self.fitted(made, e.type) if e.operator in "+-*" else made

    def equality(self, e: ir.Binary) -> PythonText:
        if is_scalar(e.left.type):
            return self.join(COMPARE, f"{{0}} {e.operator} {{1}}", (e.left, BIT_OR), (e.right, BIT_OR))
        if e.operator == "==":
            return self.join(ATOM, "{0}.same({1})", (e.left, ATOM), (e.right, LAMBDA))
        return self.join(NOT, "not {0}.same({1})", (e.left, ATOM), (e.right, LAMBDA))

    def shift(self, e: ir.Binary) -> PythonText:
        assert isinstance(e.type, ir.Bits)
        width = e.type.width
        if isinstance(e.right, ir.Const) and int(e.right.value) < width:
            made = self.join(SHIFT, f"{{0}} {e.operator} {{1}}", (e.left, SHIFT), (e.right, SUM))
        else:
            name = "shift_left" if e.operator == "<<" else "shift_right"
            made = self.join(ATOM, f"{name}({{0}}, {{1}}, {width})", (e.left, LAMBDA), (e.right, LAMBDA))
        return self.fitted(made, e.type) if e.operator == "<<" else made

    def saturated(self, e: ir.Binary) -> PythonText:
        assert isinstance(e.type, ir.Bits)
        half = 1 << e.type.width >> 1
        low, high = (-half, half - 1) if e.type.signed else (0, (1 << e.type.width) - 1)
        if not e.type.width:
            return PythonText("0")
        return self.join(
            ATOM, f"clamp({{0}} {e.operator[1]} {{1}}, {low}, {hex(high)})", (e.left, SUM), (e.right, PRODUCT)
        )

    def concat(self, e: ir.Concat) -> PythonText:
        left, right = e.left.type, e.right.type
        assert isinstance(left, ir.Bits)
        assert isinstance(right, ir.Bits)
        assert isinstance(e.type, ir.Bits)
        high = self.join(SHIFT, f"{{0}} << {right.width}", (e.left, SHIFT))
        low = self.text(e.right)
        if right.signed:
            low = self.fitted(low, ir.Bits(right.width))
        made = PythonText(f"{high.at(BIT_OR)} | {low.at(BIT_XOR)}", BIT_OR, 1 + max(high.depth, low.depth))
        return self.fitted(made, e.type) if left.signed or e.type.signed else made

    def slice(self, e: ir.BitSlice) -> PythonText:
        mask = hex((1 << e.high - e.low + 1) - 1)
        if not e.low:
            return self.join(BIT_AND, f"{{0}} & {mask}", (e.base, BIT_AND))
        return self.join(BIT_AND, f"{{0}} >> {e.low} & {mask}", (e.base, SHIFT))

    def cast(self, e: ir.Cast) -> PythonText:
        given, wanted = e.operand.type, e.type
        if isinstance(wanted, ir.Bool) or not isinstance(wanted, ir.Bits):
            return self.text(e.operand)
        if isinstance(given, ir.Bool):
            return self.join(ATOM, "int({0})", (e.operand, LAMBDA))
        if isinstance(given, ir.Bits):
            if given == wanted or (not given.signed and given.width < wanted.width + (not wanted.signed)):
                return self.text(e.operand)
            if given.signed and wanted.signed and given.width <= wanted.width:
                return self.text(e.operand)
        return self.fitted(self.text(e.operand), wanted)

    # ---- records

    def valid(self, e: ir.Valid) -> PythonText:
        kind = e.base.type
        if isinstance(kind, ir.Record) and kind.kind == "union":
            slots = [self.slot(kind, name) for name, _ in kind.fields]
            base = self(e.base, ATOM)
            return PythonText(" or ".join(f"{base}.{slot}.valid" for slot in slots) or "False", OR, 1)
        return self.join(ATOM, "{0}.valid", (e.base, ATOM))

    def build(self, e: ir.Build) -> PythonText:
        items = [self.text(item) for item in e.items]
        texts = [
            item.text if is_scalar(part.type) or isinstance(part, ir.Build) else f"{item.at(ATOM)}.copy()"
            for item, part in zip(items, e.items, strict=True)
        ]
        depth = 1 + max((item.depth for item in items), default=0)
        if isinstance(e.type, ir.Array):
            element = self.program_names.record(e.type.element)
            return PythonText(f"stack_of({element}, [{', '.join(texts)}])", ATOM, depth)
        assert isinstance(e.type, ir.Record)
        return PythonText(f"{self.program_names.record(e.type)}.build({', '.join(texts)})", ATOM, depth)

    # ---- as what externs take

    def pieces(self, e: ir.Expression) -> list[str]:
        """(width, number) of all scalars in e, each an expression; records that exist already give their own."""
        if isinstance(e, ir.Build) and not (isinstance(e.type, ir.Record) and e.type.kind == "header"):
            return [made for item in e.items for made in self.pieces(item)]
        return [piece(e.type, self(e))] if is_scalar(e.type) else [f"*{self(e, ATOM)}.pieces()"]

    def values(self, e: ir.Expression) -> list[str]:
        """All scalars in e as numbers."""
        if isinstance(e, ir.Build):
            return [made for item in e.items for made in self.values(item)]
        if isinstance(e.type, ir.Varbits):
            return [f"{self(e, ATOM)}[1]"]
        return [self(e)] if is_scalar(e.type) else [f"*{self(e, ATOM)}.values()"]


EXPRESSIONS: dict[type[ir.Expression], Callable[[Expressions, Any], PythonText]] = {
    ir.Const: Expressions.const,
    ir.ReadVariable: lambda writer, e: PythonText(writer.places[id(e.variable)]),
    ir.FieldOf: Expressions.member,
    ir.Index: Expressions.index,
    ir.Next: Expressions.by_next,
    ir.Last: Expressions.by_next,
    ir.LastIndex: lambda writer, e: writer.join(BIT_AND, "{0}.next_index - 1 & 0xffffffff", (e.base, ATOM)),
    ir.Unary: Expressions.unary,
    ir.Binary: Expressions.binary,
    ir.Concat: Expressions.concat,
    ir.BitSlice: Expressions.slice,
    ir.Cast: Expressions.cast,
    ir.Mux: lambda writer, e: writer.join(MUX, "{1} if {0} else {2}", (e.condition, OR), (e.yes, OR), (e.no, MUX)),
    ir.Valid: Expressions.valid,
    ir.Build: Expressions.build,
    ir.Invalid: lambda writer, e: PythonText(zero(e.type, writer.program_names)),
}
