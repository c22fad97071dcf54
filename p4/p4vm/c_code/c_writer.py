"""What a routine is in C. Numbers are values of their width's `Rep`; records, arrays and varbits are places."""

from typing import TYPE_CHECKING, Any

from p4vm.c_code.c_numbers import CNumbers, literal
from p4vm.c_code.c_tables import KeyLayout, RecordSite
from p4vm.c_code.c_types import CTypes, is_number, limbs_of, rep
from p4vm.c_code.c_wire import data_limbs
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.source import P4Error
from p4vm.writer.code_writer import CodeWriter, EntryData, pattern

if TYPE_CHECKING:
    from p4vm.c_code.c_program import CProgram

HASHES = ("crc32", "crc32_custom", "crc16", "crc16_custom", "random", "identity", "csum16", "xor16")
"""As `enum p4_hash`."""


class CWriter(CodeWriter):
    """Writes the statements and expressions of one routine.

    context: what it must know of the program around it. sinks: elements beyond stacks, zero until they are written, by
    their C type.
    """

    LANGUAGE = "c"
    IF, ELSE_IF, ELSE, LOOP, END, STOP = "if ({}) {{", "}} else if ({}) {{", "} else {", "for (;;) {", "}", ";"
    AND, OR, NOT = "&&", "||", "!"
    comment = "/* {} */"

    def __init__(self, context: "CProgram", routine: ir.Routine) -> None:
        super().__init__(routine)
        self.context = context
        self.types = context.types
        self.numbers = CNumbers(context.types)
        self.labels = {name: f"state_{at}" for at, name in enumerate(routine.states)}
        self.sinks: dict[str, str] = {}

    # ---- places

    def field(self, record: ir.Record, name: str) -> str:
        return CTypes.field(name)

    def cell(self, e: ir.RegisterCell) -> str:
        return self.context.register(e.instance.name).format(self.text(e.index))

    def element(self, stack: ir.Array, base: str, index: str) -> str:
        kind = self.types.storage(stack.element)
        sink = self.sinks.setdefault(kind, f"sink_{len(self.sinks)}")
        zero = f"(memset(&{sink}, 0, sizeof {sink}), &{sink})"
        return f"(*({{ uint64_t i = {index}; i < {stack.size} ? &{base}.items[i] : {zero}; }}))"

    def load(self, place: str, kind: ir.Type) -> str:
        """The number in a place, as its rep."""
        return f"(uint32_t){place}" if isinstance(kind, ir.Bits) and kind.width <= 16 else place

    # ---- expressions

    def const(self, e: ir.Const) -> str:
        if isinstance(e.value, str):
            raise P4Error("a string is no value that programs work on")
        return literal(int(e.value), e.type.width) if isinstance(e.type, ir.Bits) else f"{int(e.value)}u"

    def number(self, e: ir.Binary, left: str, right: str) -> str:
        width, signed = width_of(e.left.type), is_signed(e.left.type)
        if isinstance(e.left.type, ir.Varbits):
            same = f"({left}.bits == {right}.bits && !memcmp({left}.b, {right}.b, ({left}.bits + 7) / 8))"
            return same if e.operator == "==" else f"!{same}"
        if e.operator in ("<<", ">>"):
            by = int(e.right.value) if isinstance(e.right, ir.Const) else right
            return self.numbers.shift(e.operator, width, signed, left, by)
        if e.operator in ("==", "!=", "<", "<=", ">", ">="):
            return self.numbers.compare(e.operator, width, signed, left, right)
        return self.numbers.binary(e.operator, width, left, right)

    def slice(self, e: ir.BitSlice) -> str:
        return self.numbers.slice(self.text(e.base), width_of(e.base.type), e.high, e.low)

    def cast(self, e: ir.Cast) -> str:
        kind, to, text = e.operand.type, e.type, self.text(e.operand)
        if not isinstance(kind, ir.Bits):
            return f"(uint32_t){text}" if isinstance(to, ir.Bits) else text
        return self.numbers.cast(text, kind.width, kind.signed, to.width) if isinstance(to, ir.Bits) else text

    def mux(self, e: ir.Mux) -> str:
        return f"({self.text(e.condition)} ? {self.text(e.yes)} : {self.text(e.no)})"

    def in_value_set(self, e: ir.InValueSet) -> str:
        number = self.context.program.value_sets.index(e.value_set)
        lines = self.key(e.keys, self.context.layout.value_sets[number])
        return f"({{ {' '.join(lines)} p4_table_find(&e->value_sets[{number}], key) != NULL; }})"

    def entry_data(self, e: EntryData) -> str:
        at = sum(limbs_of(width_of(kind)) for kind in e.before)
        of = rep(width_of(e.type))
        if of.bits == 128:
            return f"((p4_u128)outcome.arguments[{at + 1}] << 64 | outcome.arguments[{at}])"
        if of.bits:
            return f"({of.c})outcome.arguments[{at}]"
        return f"{self.types.rep_c(of).removeprefix('struct ')}_of(outcome.arguments + {at}, {of.limbs})"

    # ---- writing to places

    def assign(self, s: ir.Assign) -> None:
        self.stop(f"{self.place(s.target)} = {self.text(s.value)}")

    def reset(self, s: ir.Reset) -> None:
        place = self.place(s.target)
        if is_number(s.target.type):
            self.stop(f"{place} = {self.const(ir.Const(s.target.type, 0))}")
        else:
            self.stop(f"memset(&{place}, 0, sizeof {place})")

    def push(self, s: ir.ShiftStack) -> None:
        assert isinstance(s.target.type, ir.Array)
        stack = self.place(s.target)
        self.stop(
            f"p4_push({stack}.items, sizeof *{stack}.items, {s.target.type.size}, {s.count}, &{stack}.next_index)"
        )

    # ---- flow and calls

    def scope(self) -> Any:
        return self.nested("{", "}")

    def go_to(self, s: ir.GoTo) -> None:
        self.stop(f"goto {self.labels[s.state]}")

    def return_(self, s: ir.Return) -> None:
        if s.value is not None:
            self.stop(f"(*result) = {self.text(s.value)}")
        self.stop("return 0")

    def exit(self, _: ir.Exit) -> None:
        self.stop("return P4_EXIT")

    def invoke(self, s: ir.Invoke) -> None:
        routine = s.routine
        passed = ["e"]
        for parameter, argument in zip(routine.parameters, s.arguments, strict=True):
            writes = parameter.direction in ("out", "inout")
            by_value = is_number(argument.type) and not writes
            passed.append(self.text(argument) if by_value else f"&{self.place(argument)}")
        if s.result is not None:
            passed.append(f"&{self.place(s.result)}")
        call = f"{self.context.names[routine]}({', '.join(passed)})"
        self.stop(f"if ((end = {call})) return end" if routine in self.context.ending else f"(void){call}")

    def look_up(self, table: ir.Table, keys: list[ir.Expression]) -> None:
        number = self.context.program.tables.index(table)
        layout = self.context.layout.tables[number]
        self.line(f"struct p4_table *table = &e->tables[{number}];")
        for line in self.key(keys, layout.keys):
            self.line(line)
        self.line("const struct p4_entry *entry = p4_table_find(table, key);")
        profile, chosen = "NULL", "0"
        if layout.profile is not None:
            profile, chosen = f"&e->profiles[{layout.profile}]", self.selector_hash(table, keys)
        self.line(f"struct p4_call outcome = p4_table_call(table, {profile}, entry, {chosen});")
        if layout.counter is not None:
            self.line(f"if (outcome.hit) p4_count(e, {layout.counter}, entry->direct);")
        if layout.meter is not None:
            self.line("table->met_pass = outcome.hit ? e->pass : 0;")
            self.line(f"if (outcome.hit) table->color = p4_meter_color(e, {layout.meter}, entry->direct);")

    def selector_hash(self, table: ir.Table, keys: list[ir.Expression]) -> str:
        implementation = table.implementation
        if implementation is None or implementation.kind != "action_selector":
            return "0"
        named = next((argument for argument in implementation.arguments if isinstance(argument, str)), "")
        self.line("uint64_t chosen = 0;")
        with self.nested("if (entry && entry->kind == P4_GROUP) {", "}"):
            size = self.pack([e for key, e in zip(table.keys, keys, strict=True) if key.match == "selector"])
            algorithm = named if named in HASHES else "crc16"
            self.line(f"chosen = p4_hash(e, P4_{algorithm.upper()}, p, {size});")
        return "chosen"

    def key(self, keys: list[ir.Expression], layout: KeyLayout) -> list[str]:
        """Declarations and statements that fill `key` as tables.py lays it out."""
        words: dict[int, list[str]] = {}
        wide = []
        for e, place in zip(keys, layout.places, strict=False):
            if place.match == "selector":
                continue
            at = place.word + (layout.words if place.match == "range" else 0)
            text = self.text(pattern(e, place.match))
            if place.limbs > 1:
                pointer, count = self.numbers.limbs(text, place.width).rsplit(", ", 1)
                wide.append(f"p4_wide_resize(key + {at}, {place.limbs}, {pointer}, {count});")
            else:
                shift = f" << {place.shift}" if place.shift else ""
                words.setdefault(at, []).append(f"(uint64_t){text}{shift}")
        declared = f"uint64_t key[{max(layout.words + layout.range_words, 1)}];"
        return [declared, *(f"key[{at}] = {' | '.join(terms)};" for at, terms in words.items()), *wide]

    # ---- packets

    def extract(self, s: ir.Extract) -> None:
        assert isinstance(s.target.type, ir.Record)
        name = self.context.wire.extract(s.target.type, with_varbits=s.varbits is not None)
        varbits = "" if s.varbits is None else f", {self.text(s.varbits)}"
        self.line(f"if ({name}(e, &{self.place(s.target)}{varbits})) return P4_REJECT;")

    def lookahead(self, s: ir.Lookahead) -> None:
        kind, width = s.target.type, width_of(s.target.type)
        with self.scope():
            too_short = self.context.error("PacketTooShort")
            self.line(f"if ({width} > e->limit - e->cursor) return p4_reject(e, {too_short});")
            self.line(f"const uint8_t *p = p4_read(e, {width});")
            self.line(f"{self.types.storage(kind)} *ahead = &{self.place(s.target)};")
            for line in self.context.wire.fill(kind, "(*ahead)"):
                self.line(line)

    def emit(self, s: ir.Emit) -> None:
        kind, place = s.value.type, self.place(s.value)
        if isinstance(kind, ir.Array):
            emit = self.context.wire.emit(kind.element)
            self.line(f"for (uint32_t i = 0; i < {kind.size}; i++) {emit}(e, &{place}.items[i]);")
        elif isinstance(kind, ir.Record):
            self.line(f"{self.context.wire.emit(kind)}(e, &{place});")

    # ---- externs

    def call_instance(self, s: ir.CallExtern) -> int:
        assert s.instance is not None
        layout = self.context.layout
        return (layout.counters if s.instance.kind == "counter" else layout.meters)[s.instance.name][0]

    def call_table(self, s: ir.CallExtern) -> str:
        """The number of the table that has the direct meter."""
        tables = self.context.program.tables
        return next((str(at) for at, table in enumerate(tables) if table.meter is s.instance), "UINT32_MAX")

    def call_site(self, s: ir.CallExtern) -> int:
        """The number of an assert's or assume's message."""
        return self.context.site(RecordSite(s.name, f"{s.position}: {s.name} failed"))

    def hash(self, s: ir.Hash) -> None:
        with self.scope():
            function, size = "p4_hash_payload" if s.payload else "p4_hash", self.pack(s.data)
            target = self.place(s.target)
            self.line(f"{target} = {function}(e, P4_{s.algorithm.upper()}, p, {size});")

    def pack(self, data: list[ir.Expression]) -> str:
        """Declares p and fills it with the scalars' bits; returns how many bytes, as text."""
        most = sum(e.type.width if isinstance(e.type, ir.Varbits) else width_of(e.type) for e in data)
        if all(is_number(e.type) and not isinstance(e, ir.Guarded) for e in data):
            self.line(f"uint8_t p[{(most + 7) // 8 + 1}];")
            for line in self.context.wire.put_all([(e.type, self.text(e)) for e in data]):
                self.line(line)
            return f"{(most + 7) // 8}"
        self.line(f"uint8_t p[{(most + 7) // 8 + 1}] = {{0}};")
        self.line("uint64_t n = 0;")
        for e in data:
            lead = f"if ({self.text(e.condition)}) " if isinstance(e, ir.Guarded) else ""
            kind, text = e.type, self.text(e.value if isinstance(e, ir.Guarded) else e)
            if isinstance(kind, ir.Varbits):
                self.line(f"{lead}p4_bits_copy(p, n, {text}.b, 0, {text}.bits), n += {text}.bits;")
            elif width_of(kind):
                put = self.context.wire.put_bits(kind, text, "n").rstrip(";")
                self.line(f"{lead}{put}, n += {width_of(kind)};")
        return "(n + 7) / 8"

    def record(self, s: ir.CallExtern) -> None:
        """Python renders the record."""
        first, *values = s.arguments
        if isinstance(first, ir.Const) and isinstance(first.value, str):
            site, where = RecordSite("log_msg", first.value), "log"
        else:
            site, where, values = RecordSite("digest"), "digests", s.arguments
        site.types = [e.type for e in values]
        with self.scope():
            limbs = sum(map(data_limbs, site.types))
            self.line(f"uint64_t *w = p4_record(e, &e->{where}, {self.context.site(site)}, {limbs});")
            with self.nested("if (w) {", "}"):
                at = 0
                for e in values:
                    self.line(self.put_limbs(e.type, self.text(e), at))
                    at += data_limbs(e.type)

    def put_limbs(self, kind: ir.Type, text: str, at: int) -> str:
        if isinstance(kind, ir.Varbits):
            return f"p4_bits_get_wide(w + {at}, {text}.b, 0, {text}.bits);"
        width = width_of(kind)
        if rep(width).bits in (32, 64):
            return f"w[{at}] = {text};"
        pointer, count = self.numbers.limbs(text, width).rsplit(", ", 1)
        return f"p4_wide_resize(w + {at}, {limbs_of(width)}, {pointer}, {count});"
