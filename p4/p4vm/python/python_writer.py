"""What a routine is in Python."""

from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any

from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.python.python_names import PythonNames
from p4vm.python.records import is_scalar, zero
from p4vm.writer.code_writer import CodeWriter, EntryData, pattern

if TYPE_CHECKING:
    from p4vm.python.routines import RoutineLayout


class PythonWriter(CodeWriter):
    """Writes the statements and expressions of one routine.

    layout: what its calls need to know of other routines. names: of its variables.
    """

    LANGUAGE = "python"
    IF, ELSE_IF, ELSE, LOOP, END, STOP = "if {}:", "elif {}:", "else:", "while True:", "", ""
    AND, OR, NOT = "and", "or", "not "
    comment = "# {}"

    def __init__(self, layout: "RoutineLayout", routine: ir.Routine, names: PythonNames) -> None:
        super().__init__(routine)
        self.layout = layout
        self.names = names
        self.states = {name: at for at, name in enumerate(routine.states)}

    # ---- places

    def field(self, record: ir.Record, name: str) -> str:
        return self.layout.names.slot(record, name)

    def cell(self, e: ir.RegisterCell) -> str:
        return f"{self.layout.names.of(e.instance)}.cells[{self.text(e.index)}]"

    def element(self, stack: ir.Array, base: str, index: str) -> str:
        return f"{base}.at({index})"

    def load(self, place: str, kind: ir.Type) -> str:
        return place

    # ---- expressions

    def const(self, e: ir.Const) -> str:
        if isinstance(e.value, str):
            return repr(e.value)
        value = int(e.value)
        text = hex(value) if abs(value) > 0xFFFF else str(value)
        return f"({text})" if value < 0 else text

    def fitted(self, value: str, kind: ir.Type) -> str:
        """A number of any size, cut to this type."""
        width = width_of(kind)
        if not width:
            return "0"
        return f"wrap({value}, {hex(1 << width - 1)})" if is_signed(kind) else f"({value} & {hex((1 << width) - 1)})"

    def number(self, e: ir.Binary, left: str, right: str) -> str:
        match e.operator:
            case "/" | "%":
                return f"{'quotient' if e.operator == '/' else 'remainder'}({left}, {right})"
            case "<<" | ">>":
                return self.shift(e, left, right)
            case "+" | "-" | "*":
                return self.fitted(f"({left} {e.operator} {right})", e.type)
        return f"({left} {e.operator} {right})"

    def shift(self, e: ir.Binary, left: str, right: str) -> str:
        width = width_of(e.type)
        if not isinstance(e.right, ir.Const):
            name = "shift_left" if e.operator == "<<" else "shift_right"
            shifted = f"{name}({left}, {right}, {width})"
        else:
            shifted = f"({left} {e.operator} {right})"
            narrow = e.left.operand.type if isinstance(e.left, ir.Cast) else e.type
            if not is_signed(narrow) and width_of(narrow) + int(e.right.value) <= width:
                return shifted
        return self.fitted(shifted, e.type) if e.operator == "<<" else shifted

    def slice(self, e: ir.BitSlice) -> str:
        base, mask = self.text(e.base), hex((1 << e.high - e.low + 1) - 1)
        return f"({base} >> {e.low} & {mask})" if e.low else f"({base} & {mask})"

    def cast(self, e: ir.Cast) -> str:
        value, kind, to = self.text(e.operand), e.operand.type, e.type
        if not isinstance(to, ir.Bits):
            return value
        if not isinstance(kind, ir.Bits):
            return f"int({value})"
        fits = kind.width + (to.signed and not kind.signed) <= to.width and to.signed >= kind.signed
        return value if fits else self.fitted(value, to)

    def mux(self, e: ir.Mux) -> str:
        return f"({self.text(e.yes)} if {self.text(e.condition)} else {self.text(e.no)})"

    def in_value_set(self, e: ir.InValueSet) -> str:
        matches = e.value_set.matches or ("exact",) * len(e.keys)
        keys = [self.text(pattern(key, match)) for key, match in zip(e.keys, matches, strict=False)]
        return f"{self.layout.names.of(e.value_set)}.holds(({', '.join(keys)},))"

    def entry_data(self, e: EntryData) -> str:
        return f"outcome.arguments[{len(e.before)}]"

    # ---- writing to places

    def assign(self, s: ir.Assign) -> None:
        target, value = self.place(s.target), self.text(s.value)
        self.line(f"{target} = {value}" if is_scalar(s.target.type) else f"{target}.assign({value})")

    def reset(self, s: ir.Reset) -> None:
        target = self.place(s.target)
        if is_scalar(s.target.type):
            self.line(f"{target} = {zero(s.target.type, self.layout.names)}")
        else:
            self.line(f"{target}.reset()")

    def push(self, s: ir.ShiftStack) -> None:
        self.line(f"{self.place(s.target)}.push({s.count})")

    # ---- flow and calls

    def scope(self) -> Any:
        return nullcontext()

    def go_to(self, s: ir.GoTo) -> None:
        self.line(f"state = {self.states[s.state]}")
        self.line("continue")

    def return_(self, s: ir.Return) -> None:
        self.give_back(False, None if s.value is None else self.text(s.value))

    def exit(self, _: ir.Exit) -> None:
        self.give_back(True)

    def returned(self, exited: bool, value: str | None) -> str:
        """What `return` gives: exited, rejected, the function's value, scalars written for the caller."""
        results = []
        if self.routine in self.layout.exits:
            results.append(str(exited))
        if self.layout.gives_rejected(self.routine):
            results.append("None")
        if self.routine.returns is not None:
            results.append(zero(self.routine.returns, self.layout.names) if value is None else value)
        results += [self.places[variable] for variable in self.layout.scalar_outs(self.routine)]
        return results[0] if len(results) == 1 else f"({', '.join(results)})" if results else ""

    def give_back(self, exited: bool, value: str | None = None) -> None:
        """`return`, with what the routine's callers expect."""
        self.line(f"return {self.returned(exited, value)}".rstrip())

    def invoke(self, s: ir.Invoke) -> None:
        routine, result = s.routine, s.result
        call = f"{self.layout.names.of(routine)}({', '.join(['packet', *map(self.text, s.arguments)])})"
        targets = []
        if routine in self.layout.exits:
            targets.append("exited")
        if self.layout.gives_rejected(routine):
            targets.append("rejected")
        record = result is not None and not is_scalar(result.type)
        if result is not None:
            targets.append("value" if record else self.place(result))
        for parameter, argument in zip(routine.parameters, s.arguments, strict=False):
            if parameter.direction in ("out", "inout") and is_scalar(parameter.variable.type):
                targets.append(self.place(argument))
        self.line(f"{', '.join(targets)} = {call}" if targets else call)
        if record and result is not None:
            self.line(f"{self.place(result)}.assign(value)")
        if "exited" in targets:
            with self.nested("if exited:"):
                self.give_back(True)
        if "rejected" in targets:
            self.line("if rejected is not None:")
            self.line("    raise rejected")

    def look_up(self, table: ir.Table, keys: list[ir.Expression]) -> None:
        listed = "".join(f"{self.text(key)}, " for key in keys)
        self.line(f"outcome = {self.layout.names.of(table)}.look(packet, ({listed.rstrip(' ')}))")

    # ---- packets

    def extract(self, s: ir.Extract) -> None:
        target = self.place(s.target)
        if s.varbits is None:
            self.line(f"packet.extract({target})")
        else:
            self.line(f"packet.extract_varbits({target}, {self.text(s.varbits)})")

    def lookahead(self, s: ir.Lookahead) -> None:
        kind, target = s.target.type, self.place(s.target)
        value = f"packet.peek({width_of(kind)})"
        if not is_scalar(kind):
            self.line(f"{target}.take({value})")
        elif isinstance(kind, ir.Varbits):
            self.line(f"{target} = EMPTY")
        else:
            self.line(f"{target} = {self.fitted(value, kind) if is_signed(kind) else value}")

    def emit(self, s: ir.Emit) -> None:
        if isinstance(s.value.type, ir.Array):
            self.line(f"for item in {self.place(s.value)}.items:")
            self.line("    packet.emit(item)")
        else:
            self.line(f"packet.emit({self.place(s.value)})")

    # ---- externs

    def call_instance(self, s: ir.CallExtern) -> str:
        assert s.instance is not None
        return self.layout.names.of(s.instance)

    def call_position(self, s: ir.CallExtern) -> str:
        return str(s.position)

    def hash(self, s: ir.Hash) -> None:
        pieces = []
        for condition, group in groupby(s.data, lambda e: e.condition if isinstance(e, ir.Guarded) else None):
            texts = [self.piece(e.value if isinstance(e, ir.Guarded) else e) for e in group]
            pieces += texts if condition is None else [f"*([{', '.join(texts)}] if {self.text(condition)} else ())"]
        function = "packet.shared.random.next" if s.algorithm == "random" else s.algorithm
        payload = " + packet.payload" if s.payload else ""
        self.line(f"{self.place(s.target)} = {function}(joined([{', '.join(pieces)}]){payload})")

    def piece(self, e: ir.Expression) -> str:
        """(width, number) of a scalar."""
        return self.text(e) if isinstance(e.type, ir.Varbits) else f"({width_of(e.type)}, {self.text(e)})"

    def record(self, s: ir.CallExtern) -> None:
        first, *scalars = s.arguments
        values = [f"{self.text(e)}[1]" if isinstance(e.type, ir.Varbits) else self.text(e) for e in scalars]
        name = "log" if s.name == "log_msg" else "digest"
        self.line(f"packet.{name}({self.text(first)}, [{', '.join(values)}])")
