"""Calls of externs in C. algorithms.py and python/pipeline.py number what each does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4vm.architectures.v1model import DROP_PORT
from p4vm.c_code.c_tables import RecordSite
from p4vm.c_code.c_types import CTypes, is_number, limbs_of, rep
from p4vm.c_code.c_wire import data_limbs, scalars
from p4vm.ir import ir_nodes as ir
from p4vm.ir.extern_kinds import (
    ExternArgument,
    algorithm_of,
    colors_of,
    extern_of,
    hash_name,
    random_bounds,
)
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.c_code.c_statements import CStatementWriter

HASHES = ("crc32", "crc32_custom", "crc16", "crc16_custom", "random", "identity", "csum16", "xor16")
"""As `enum p4_hash`."""
STANDARD_PLACE = "((struct state *)e->current)->standard"


class CExternWriter:
    """Writes extern calls into a routine."""

    def __init__(self, writer: CStatementWriter) -> None:
        self.writer = writer
        self.expression = writer.expression
        self.line = writer.line
        self.nested = writer.nested

    def call(self, s: ir.CallExtern) -> None:
        """Raises P4Error: the extern is none of v1model's."""
        extern = extern_of(s)
        if extern.method:
            getattr(self, extern.method)(s)
        elif extern.c:
            arguments = [ExternArgument(lambda e, by: getattr(self.expression, by)(e), e) for e in s.arguments]
            instance = self.writer.context.layout.counters[s.instance.name][0] if s.instance else 0
            self.line(extern.c.format(*arguments, instance=instance, fields=self.field_list(s)))

    def instance(self, s: ir.CallExtern) -> ir.ExternInstance:
        if s.instance is None:
            raise P4Error(f"{s.name} has no instance", s.position)
        return s.instance

    def store_word(self, target: ir.Expression, word: str) -> None:
        """A uint64_t, cut to the target."""
        if isinstance(target.type, ir.Bits):
            self.expression.rep_c(target.type)
            word = self.expression.numbers.cast(word, 64, False, target.type.width)
        self.writer.store(target, word)

    # ---- state

    def register_read(self, s: ir.CallExtern) -> None:
        target, index = s.arguments
        place, cells = self.writer.context.register(self.instance(s).name)
        with self.nested("{", "}"):
            self.line(f"uint64_t i = {self.expression.index(index)};")
            with self.nested(f"if (i < {cells}u) {{"):
                self.writer.store(target, self.expression.load(place.format("i"), target.type))
            with self.nested("} else {", "}"):
                self.writer.store(target, self.expression(ir.Const(target.type, 0)))
                self.line("e->counts[P4_REGISTER_OUT_OF_RANGE]++;")

    def register_write(self, s: ir.CallExtern) -> None:
        index, value = s.arguments
        place, cells = self.writer.context.register(self.instance(s).name)
        self.line("{")
        self.line(f"    uint64_t i = {self.expression.index(index)};")
        self.line(f"    if (i < {cells}u)")
        self.line(f"        {place.format('i')} = {self.expression(value)};")
        self.line("    else")
        self.line("        e->counts[P4_REGISTER_OUT_OF_RANGE]++;")
        self.line("}")

    def meter_execute(self, s: ir.CallExtern) -> None:
        index, target = s.arguments
        number = self.writer.context.layout.meters[self.instance(s).name][0]
        color = self.writer.fresh("color")
        self.line(f"uint64_t {color} = p4_meter_color(e, {number}, {self.expression.index(index)});")
        self.store_color(target, color)

    def store_color(self, target: ir.Expression, color: str) -> None:
        if isinstance(target.type, ir.EnumMember):
            green, yellow, red = colors_of(target.type)
            color = f"({color} == 0 ? {green}u : {color} == 1 ? {yellow}u : {red}u)"
            self.writer.store(target, color)
        else:
            self.store_word(target, color)

    def direct_meter_read(self, s: ir.CallExtern) -> None:
        tables = self.writer.context.program.tables
        number = next((at for at, table in enumerate(tables) if table.meter is s.instance), None)
        if number is None:
            self.store_color(s.arguments[0], "(uint64_t)0")
            return
        table = f"e->tables[{number}]"
        self.store_color(s.arguments[0], f"({table}.met_pass == e->pass ? (uint64_t){table}.color : 0)")

    # ---- numbers

    def random(self, s: ir.CallExtern) -> None:
        target, low, high = s.arguments
        drawn = self.writer.fresh("drawn")
        bounds = f"{self.expression.word(low)}, {self.expression.word(high)}"
        self.line(f"uint64_t {drawn};")
        with self.nested(f"if (p4_random_between(e, {bounds}, {int(is_signed(low.type))}, &{drawn})) {{", "}"):
            self.store_word(target, drawn)

    def hash(self, s: ir.CallExtern) -> None:
        target, algorithm, base, data, limit = s.arguments
        hashed = self.hashed(s, algorithm, [data])
        self.store_within(target, hashed, base, limit)

    def get_hash(self, s: ir.CallExtern) -> None:
        target, *operands = s.arguments
        hashed = self.hash_of(hash_name(s), [operands[len(operands) // 2]], s, payload=False)
        if len(operands) > 1:
            self.store_within(target, hashed, operands[0], operands[2])
        else:
            self.store_word(target, hashed)

    def random_read(self, s: ir.CallExtern) -> None:
        low, high = random_bounds(s)
        drawn = self.writer.fresh("drawn")
        self.line(f"uint64_t {drawn} = 0;")
        self.line(f"p4_random_between(e, {low}u, {high}u, 0, &{drawn});")
        self.store_word(s.arguments[0], drawn)

    def store_within(self, target: ir.Expression, hashed: str, base: ir.Expression, limit: ir.Expression) -> None:
        base_word, limit_word = self.expression.word(base), self.expression.word(limit)
        self.store_word(target, f"p4_within({hashed}, {base_word}, {limit_word})")

    def hashed(self, s: ir.CallExtern, algorithm: ir.Expression, data: list[ir.Expression]) -> str:
        name = algorithm_of(s, algorithm)
        return self.hash_of(name, data, s, payload=s.name.endswith("_with_payload"))

    def hash_of(self, name: str, data: list[ir.Expression], s: ir.Statement, *, payload: bool) -> str:
        """A variable that holds H of the data, as uint64_t."""
        if name not in HASHES:
            raise P4Error(f"there is no algorithm {name}; there are {', '.join(HASHES)}", s.position)
        function = "p4_hash_payload" if payload else "p4_hash"
        hashed = self.writer.fresh("hashed")
        self.line(f"uint64_t {hashed};")
        with self.nested("{", "}"):
            self.line(f"{hashed} = {function}(e, P4_{name.upper()}, p, {self.pack(data)});")
        return hashed

    def checksum16(self, s: ir.CallExtern) -> None:
        hashed = self.hash_of("csum16", [s.arguments[0]], s, payload=False)
        if s.result is not None:
            self.store_word(s.result, hashed)

    def verify_checksum(self, s: ir.CallExtern) -> None:
        condition, data, checksum, algorithm = s.arguments
        tests = [self.expression(condition)]
        if isinstance(checksum, ir.FieldOf) and getattr(checksum.base.type, "kind", "") == "header":
            tests.append(f"{self.expression.place(checksum.base)}.valid")
        with self.nested(f"if ({' && '.join(tests)}) {{", "}"):
            hashed = self.hashed(s, algorithm, [data])
            width = width_of(checksum.type)
            cut = self.expression.numbers.cast(hashed, 64, False, width)
            differs = self.expression.numbers.compare("!=", width, False, cut, self.expression(checksum))
            self.line(f"if ({differs}) {STANDARD_PLACE}.{CTypes.field('checksum_error')} = 1;")

    def update_checksum(self, s: ir.CallExtern) -> None:
        condition, data, checksum, algorithm = s.arguments
        with self.nested(f"if ({self.expression(condition)}) {{", "}"):
            self.store_word(checksum, self.hashed(s, algorithm, [data]))

    # ---- strings of bits and of limbs

    def pack(self, data: list[ir.Expression]) -> str:
        """Declares p and fills it with the data's bits; returns how many bytes, as text."""
        items = [item for e in data for item in self.pieces(e)]
        most = sum(kind.width if isinstance(kind, ir.Varbits) else width_of(kind) for kind, _, _ in items)
        if all(not guard and is_number(kind) for kind, _, guard in items):
            self.line(f"uint8_t p[{(most + 7) // 8 + 1}];")
            for line in self.writer.context.wire.put_all([(kind, text) for kind, text, _ in items]):
                self.line(line)
            return f"{(most + 7) // 8}"
        self.line(f"uint8_t p[{(most + 7) // 8 + 1}] = {{0}};")
        self.line("uint64_t n = 0;")
        for kind, text, guard in items:
            lead = f"if ({guard}) " if guard else ""
            if isinstance(kind, ir.Varbits):
                self.line(f"{lead}p4_bits_copy(p, n, {text}.b, 0, {text}.bits), n += {text}.bits;")
            elif width_of(kind):
                put = self.writer.context.wire.put_bits(kind, text, "n").rstrip(";")
                self.line(f"{lead}{put}, n += {width_of(kind)};")
        return "(n + 7) / 8"

    def pieces(self, e: ir.Expression) -> list[tuple[ir.Type, str, str]]:
        """(type, value or place, condition) of all scalars; an invalid header's don't count."""
        if isinstance(e, ir.Invalid):
            return []
        if isinstance(e, ir.Build):
            return [piece for item in e.items for piece in self.pieces(item)]
        if is_number(e.type):
            return [(e.type, self.expression(e), "")]
        return self.inner_pieces(e.type, self.expression.place(e), "")

    def inner_pieces(self, kind: ir.Type, place: str, guard: str) -> list[tuple[ir.Type, str, str]]:
        if isinstance(kind, ir.Record):
            valid = f"{place}.valid" if kind.kind == "header" else guard
            fields = [(field, f"{place}.{CTypes.field(name)}") for name, field in kind.fields]
            return [piece for field, where in fields for piece in self.inner_pieces(field, where, valid)]
        if isinstance(kind, ir.Array):
            elements = [f"{place}.e[{at}]" for at in range(kind.size)]
            return [piece for where in elements for piece in self.inner_pieces(kind.element, where, guard)]
        return [(kind, self.expression.load(place, kind) if is_number(kind) else place, guard)]

    def values(self, e: ir.Expression) -> list[tuple[ir.Type, str]]:
        """(type, value or place) of all scalars, whether headers are valid or not."""
        if isinstance(e, ir.Build):
            return [value for item in e.items for value in self.values(item)]
        if isinstance(e, ir.Invalid):
            return [(kind, "") for kind, _ in scalars(e.type, "")]
        if is_number(e.type):
            return [(e.type, self.expression(e))]
        return [
            (kind, self.expression.load(place, kind) if is_number(kind) else place)
            for kind, place in scalars(e.type, self.expression.place(e))
        ]

    def record(self, site: RecordSite, values: list[tuple[ir.Type, str]], where: str) -> None:
        """A log line or digest with these values, which Python renders."""
        site.types = [kind for kind, _ in values]
        number = self.writer.context.site(site)
        limbs = sum(data_limbs(kind) for kind in site.types)
        self.line("{")
        self.line(f"    uint64_t *w = p4_record(e, &e->{where}, {number}, {limbs});")
        self.line("    if (w) {")
        at = 0
        for kind, text in values:
            if text:
                self.line(f"        {self.put_limbs(kind, text, at)}")
            at += data_limbs(kind)
        self.line("    }")
        self.line("}")

    def put_limbs(self, kind: ir.Type, text: str, at: int) -> str:
        if isinstance(kind, ir.Varbits):
            return f"p4_bits_get_wide(w + {at}, {text}.b, 0, {text}.bits);"
        width = width_of(kind)
        if rep(width).bits in (32, 64):
            return f"w[{at}] = {text};"
        pointer, count = self.expression.numbers.limbs(text, width).rsplit(", ", 1)
        return f"p4_wide_resize(w + {at}, {limbs_of(width)}, {pointer}, {count});"

    # ---- requests to the pipeline

    def mark_to_drop(self, s: ir.CallExtern) -> None:
        standard = self.writer.context.program.state["standard"]
        base = self.expression.place(s.arguments[0], write=True) if s.arguments else STANDARD_PLACE
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            if any(field == name for field, _ in standard.fields):
                self.line(f"{base}.{CTypes.field(name)} = {value};")

    def field_list(self, s: ir.CallExtern) -> str:
        if not s.name.endswith("_preserving_field_list"):
            return "UINT32_MAX"
        return self.expression.index(s.arguments[-1])

    def digest(self, s: ir.CallExtern) -> None:
        *receivers, data = s.arguments
        receiver = self.values(receivers[0]) if receivers else [(ir.Bits(32), "0u")]
        self.record(RecordSite("digest"), [*receiver, *self.values(data)], "digests")

    def log_msg(self, s: ir.CallExtern) -> None:
        text = s.arguments[0]
        assert isinstance(text, ir.Const)
        values = [value for argument in s.arguments[1:] for value in self.values(argument)]
        self.record(RecordSite("log_msg", str(text.value)), values, "log")

    def check(self, s: ir.CallExtern) -> None:
        number = self.writer.context.site(RecordSite(s.name, f"{s.position}: {s.name} failed"))
        self.line(f"if (!{self.expression(s.arguments[0])}) return p4_failed(e, P4_{s.name.upper()}_FAILED, {number});")

    def length(self, s: ir.CallExtern) -> None:
        if s.result is not None:
            self.writer.store(s.result, "(uint32_t)(e->limit >> 3)")
