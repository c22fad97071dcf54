"""Headers between packets and storage, and values as strings of bits or limbs, in C."""

from collections.abc import Callable, Iterator

from p4vm.c_code.c_numbers import CNumbers
from p4vm.c_code.c_types import CTypes, limbs_of, rep, varbit_of
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import width_of


def load_bytes(pointer: str, at: int, count: int) -> str:
    """1 to 8 bytes as a number, the first most significant."""
    if count == 1:
        return f"{pointer}[{at}]"
    if count in (2, 4, 8):
        return f"p4_load{8 * count}({pointer} + {at})"
    high = 4 if count > 4 else 2
    wide = "(uint64_t)" if count > 4 else ""
    rest = load_bytes(pointer, at + high, count - high)
    return f"({wide}{load_bytes(pointer, at, high)} << {8 * (count - high)} | {rest})"


def store_bytes(pointer: str, at: int, count: int, value: str) -> Iterator[str]:
    """Statements that write the low `count` bytes of a value, which is evaluated more than once."""
    if count == 1:
        yield f"{pointer}[{at}] = (uint8_t)({value});"
    elif count in (2, 4, 8):
        yield f"p4_store{8 * count}({pointer} + {at}, {f'(uint32_t)({value})' if count < 8 else value});"
    else:
        high = 4 if count > 4 else 2
        yield from store_bytes(pointer, at, high, f"({value}) >> {8 * (count - high)}")
        yield from store_bytes(pointer, at + high, count - high, value)


def pieces(kind: ir.Type, place: str) -> Iterator[tuple[ir.Type, str]]:
    """(type, place) of all headers and scalars in a place, in order."""
    if isinstance(kind, ir.Record):
        if kind.kind == "header":
            yield kind, place
        for name, field in kind.fields:
            yield from pieces(field, f"{place}.{CTypes.field(name)}")
    elif isinstance(kind, ir.Array):
        for at in range(kind.size):
            yield from pieces(kind.element, f"{place}.items[{at}]")
    else:
        yield kind, place


class Wire:
    """Functions that take and make packets, for one program. errors: numbers of P4's core errors."""

    def __init__(self, types: CTypes, errors: Callable[[str], int]) -> None:
        self.types = types
        self.numbers = CNumbers(types)
        self.errors = errors

    # ---- from bits

    def get(self, kind: ir.Type, at: int) -> str:
        """The number at bit `at` of p, as its rep or its storage."""
        width = width_of(kind)
        if not width:
            return "0"
        of = rep(width)
        if of.bits > 64:
            return f"p4_one(p4_get_two(p, {at}, {width}))"
        first, skip = at // 8, at % 8
        span = (skip + width + 7) // 8
        if span > 8:
            return f"p4_bits_get(p, {at}, {width})"
        right = 8 * span - skip - width
        text = load_bytes("p", first, span)
        text = f"{text} >> {right}" if right else text
        return f"({text}) & {p_mask(width)}" if skip else text

    def get_statement(self, kind: ir.Type, place: str, at: str) -> str:
        """Fill a place from bit `at` (C text, perhaps a number) of p."""
        width = width_of(kind)
        if isinstance(kind, ir.Bits) and not rep(width).bits:
            return f"p4_bits_get_wide({place}.w, p, {at}, {width});"
        if at.isdigit():
            return f"{place} = {self.get(kind, int(at))};"
        if rep(width).bits == 128:
            return f"{place} = p4_one(p4_get_two(p, {at}, {width}));"
        return f"{place} = p4_bits_get(p, {at}, {width});"

    def fill(self, kind: ir.Type, place: str, varbits: str = "") -> list[str]:
        """Statements that fill a place from p. varbits: bits of its varbit, C text."""
        lines, at, behind = [], 0, False
        for scalar, where in pieces(kind, place):
            if isinstance(scalar, ir.Record):
                lines.append(f"{where}.valid = 1;")
                continue
            if isinstance(scalar, ir.Varbits):
                lines.append(f"memset(&{where}, 0, sizeof {where});")
                if varbits:
                    lines.append(f"{where}.bits = (uint32_t){varbits};")
                    lines.append(f"p4_bits_copy({where}.b, 0, p, {at}, {varbits});")
                    behind = True
                continue
            lines.append(self.get_statement(scalar, where, f"{at} + {varbits}" if behind else str(at)))
            at += width_of(scalar)
        return lines

    def extract(self, kind: ir.Record, *, with_varbits: bool) -> str:
        """Name of the function: (engine, header[, bits of the varbit]) -> 0 or P4_REJECT."""
        c, width = self.types.storage(kind), width_of(kind)
        name = f"extract_{CTypes.suffix(c)}"
        too_short = f"p4_reject(e, {self.errors('PacketTooShort')})"
        varbit = varbit_of(kind)
        if with_varbits:
            name += "_v"
        if not self.types.once(name, c):
            return name
        lines = []
        if with_varbits:
            most = varbit.width if varbit else 0
            invalid, header = self.errors("ParserInvalidArgument"), self.errors("HeaderTooShort")
            lines.append(f"if (({width} + n) & 7) return p4_reject(e, {invalid});")
            lines.append(f"if (n > e->limit || {width} + n > e->limit - e->cursor) return {too_short};")
            lines.append(f"if (n > {most}) return p4_reject(e, {header});")
        else:
            lines.append(f"if ({width} > e->limit - e->cursor) return {too_short};")
        total = f"{width} + n" if with_varbits else str(width)
        lines += [f"const uint8_t *p = p4_read(e, {total});", "(void)p;"]
        lines += self.fill(kind, "(*h)", "n" if with_varbits and varbit else "")
        lines += [f"e->cursor += {total};", "return 0;"]
        extra = ", uint64_t n" if with_varbits else ""
        body = "".join(f"    {line}\n" for line in lines)
        self.types.functions.append(f"static int {name}(struct p4_engine *e, {c} *h{extra}) {{\n{body}}}")
        return name

    # ---- to bits

    def put_all(self, items: list[tuple[ir.Type, str]]) -> list[str]:
        """Statements that write numbers to p, one behind the other, with zeros up to a whole byte.

        items: (type, value as its rep). Neighbours that fill whole bytes are written at once.
        """
        lines: list[str] = []
        group: list[tuple[int, str]] = []
        at = width = 0
        items = [item for item in items if width_of(item[0])]
        for number, (kind, value) in enumerate(items):
            bits = width_of(kind)
            if bits > 64 or width + bits > 64:
                if width or bits % 8:
                    start = at
                    return [*lines, *self._put_slowly(items[number - len(group) :], start)]
                lines.append(self.put_bits(kind, value, str(at)))
                at += bits
                continue
            group.append((bits, value))
            width += bits
            if width % 8 == 0:
                lines += store_bytes("p", at // 8, width // 8, joined(group, width))
                at += width
                group, width = [], 0
        if group:
            size = (width + 7) // 8
            group.append((8 * size - width, "0u"))
            lines += store_bytes("p", at // 8, size, joined(group, 8 * size))
        return lines

    def _put_slowly(self, items: list[tuple[ir.Type, str]], at: int) -> list[str]:
        total = sum(width_of(kind) for kind, _ in items)
        lines = [f"memset(p + {at // 8}, 0, {(total + 7) // 8});"]
        for kind, value in items:
            lines.append(self.put_bits(kind, value, str(at)))
            at += width_of(kind)
        return lines

    def put_bits(self, kind: ir.Type, value: str, at: str) -> str:
        width = width_of(kind)
        if rep(width).bits in (32, 64):
            return f"p4_bits_put(p, {at}, {width}, {value});"
        pointer = self.numbers.limbs(value, width).rpartition(",")[0]
        return f"p4_bits_put_wide(p, {at}, {width}, {pointer});"

    def emit(self, kind: ir.Record) -> str:
        """Name of the function: (engine, header) -> void."""
        c = self.types.storage(kind)
        name = f"emit_{CTypes.suffix(c)}"
        if self.types.once("emit", c):
            body = "".join(f"    {line}\n" for line in ["(void)e, (void)h;", *self._emit_header(kind)])
            self.types.functions.append(f"static void {name}(struct p4_engine *e, const {c} *h) {{\n{body}}}")
        return name

    def _emit_header(self, kind: ir.Record) -> list[str]:
        width, varbit = width_of(kind), varbit_of(kind)
        if not width and not varbit:
            return []
        items = [item for item in pieces(kind, "(*h)") if not isinstance(item[0], ir.Record)]
        total = f"{width}u"
        if varbit:
            place = next(where for scalar, where in items if isinstance(scalar, ir.Varbits))
            total = f"({width}u + {place}.bits)"
        lines = [f"if (!h->valid || !p4_room(e, {total})) return;"]
        lines.append("uint8_t *p = e->out_bits & 7 ? e->aligned : e->out + (e->out_bits >> 3);")
        if varbit:
            lines += [f"memset(p, 0, ({total} + 7) / 8);", *self._put_varbit(items)]
        else:
            lines += self.put_all(items)
        lines.append("if (e->out_bits & 7)")
        lines.append(f"    p4_append(e, p, {total});")
        return [*lines, "else", f"    e->out_bits += {total};"]

    def _put_varbit(self, items: list[tuple[ir.Type, str]]) -> list[str]:
        lines, at, behind = [], 0, ""
        for kind, where in items:
            if isinstance(kind, ir.Varbits):
                lines.append(f"p4_bits_copy(p, {at}, {where}.b, 0, {where}.bits);")
                behind = f" + {where}.bits"
            elif width_of(kind):
                lines.append(self.put_bits(kind, where, f"{at}{behind}"))
                at += width_of(kind)
        return lines


def p_mask(width: int) -> str:
    return f"{(1 << width) - 1:#x}{'u' if width <= 32 else 'ull'}"


def joined(group: list[tuple[int, str]], width: int) -> str:
    """Numbers side by side, as one of `width` bits."""
    if len(group) == 1:
        return group[0][1]
    cast = "(uint64_t)" if width > 32 else "(uint32_t)"
    terms, left = [], width
    for bits, value in group:
        left -= bits
        if value != "0u":
            terms.append(f"{cast}{value} << {left}" if left else f"{cast}{value}")
    return f"({' | '.join(terms)})" if terms else "0u"


def data_limbs(kind: ir.Type) -> int:
    """Limbs that a scalar takes in a record of the log, a digest, an action's data."""
    return limbs_of(kind.width if isinstance(kind, ir.Varbits) else width_of(kind))
