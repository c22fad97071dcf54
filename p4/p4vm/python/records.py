"""A Python class for each struct, header and header union of a program."""

from collections.abc import Iterator

from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.python.python_names import ProgramNames, docstring, fields_of

CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def is_scalar(kind: ir.Type) -> bool:
    """Held in a Python variable by value."""
    return not isinstance(kind, ir.Record | ir.Array)


def zero(kind: ir.Type, names: ProgramNames) -> str:
    """What a variable of the type is before it is written."""
    if isinstance(kind, ir.Record):
        return f"{names.record(kind)}()"
    if isinstance(kind, ir.Array):
        return f"HeaderStack({names.record(kind.element)}, {kind.size})"
    return "EMPTY" if isinstance(kind, ir.Varbits) else "0"


def letter(kind: ir.Type) -> str:
    """What `runtime.Struct.FIELDS` calls a type: u i v (varbit) r (record or stack)."""
    if isinstance(kind, ir.Record | ir.Array):
        return "r"
    if isinstance(kind, ir.Varbits):
        return "v"
    return "i" if is_signed(kind) else "u"


def whole_of(kind: ir.Record) -> bool:
    """Headers that `unpack` and `pack` do fast: whole bytes, no varbit, scalars alone."""
    scalars = all(isinstance(field, ir.Bits | ir.Bool) for _, field in kind.fields)
    return kind.kind == "header" and scalars and width_of(kind) % 8 == 0 and width_of(kind) > 0


def in_order(kind: ir.Type) -> list[ir.Record]:
    """Records within the type, inner ones first, then itself."""
    if isinstance(kind, ir.Array):
        return in_order(kind.element)
    if not isinstance(kind, ir.Record):
        return []
    return [inner for _, field in kind.fields for inner in in_order(field)] + [kind]


class RecordWriter:
    """Writes the class of one record type."""

    def __init__(self, kind: ir.Record, names: ProgramNames) -> None:
        self.kind = kind
        self.names = names
        self.name = names.record(kind)
        self.slots = fields_of(kind)
        self.fields = [(self.slots[name], field) for name, field in kind.fields]
        self.header = kind.kind == "header"
        self.scalars = [(slot, field) for slot, field in self.fields if is_scalar(field)]
        self.composites = [(slot, field) for slot, field in self.fields if not is_scalar(field)]

    def lines(self) -> list[str]:
        varbits = sum(field.width for _, field in self.fields if isinstance(field, ir.Varbits))
        slots = [slot for slot, _ in self.fields]
        source = [f"class {self.name}({'Header' if self.header else 'Struct'}):"]
        source += ["    " + docstring(f"{self.kind.kind} {self.kind.name}"), ""]
        source += [f"    __slots__ = {tuple(slots)!r}", "    FIELDS = ("]
        source += [f"        {(slot, letter(field), width_of(field))!r}," for slot, field in self.fields]
        source += [
            "    )",
            f"    WIDTH, VARBITS, WHOLE_BYTES = {width_of(self.kind)}, {varbits}, {whole_of(self.kind)}",
        ]
        methods = [self.creation(), self.clearing(), self.assignment()]
        if whole_of(self.kind):
            methods.append(self.whole_bytes())
        for method in methods:
            source += ["", *(f"    {line}" if line else "" for line in method)]
        return source

    def cleared(self) -> list[str]:
        body = ["    self.valid = False"] if self.header else []
        numbers = [f"self.{slot} = " for slot, field in self.scalars if not isinstance(field, ir.Varbits)]
        for at in range(0, len(numbers), 8):
            body.append(f"    {''.join(numbers[at : at + 8])}0")
        body += [f"    self.{slot} = EMPTY" for slot, field in self.scalars if isinstance(field, ir.Varbits)]
        return body

    def creation(self) -> list[str]:
        inner = [f"    self.{slot} = {zero(field, self.names)}" for slot, field in self.composites]
        return ["def __init__(self):", *(self.cleared() + inner or ["    pass"])]

    def clearing(self) -> list[str]:
        inner = [f"    self.{slot}.reset()" for slot, _ in self.composites]
        return ["def reset(self):", *(self.cleared() + inner or ["    pass"])]

    def assignment(self) -> list[str]:
        body = ["def assign(self, other):"]
        body += ["    self.valid = other.valid"] if self.header else []
        body += [f"    self.{slot} = other.{slot}" for slot, _ in self.scalars]
        body += [f"    self.{slot}.assign(other.{slot})" for slot, _ in self.composites]
        return [*body, "    return self"]

    def whole_bytes(self) -> list[str]:
        """unpack, pack: by struct, in pieces of whole bytes."""
        pieces = list(self.whole_pieces())
        codes = "".join(code for code, _ in pieces)
        targets = [f"p{at}" if self.split(piece) else f"self.{piece[1][0][0]}" for at, piece in enumerate(pieces)]
        unpack = ["def unpack(self, data, at):", "    self.valid = True", "    ("]
        unpack += [f"        {target}," for target in targets]
        unpack += ["    ) = self.WIRE.unpack_from(data, at)"]
        pack = []
        for at, (code, fields) in enumerate(pieces):
            if not self.split((code, fields)):
                pack.append(f"self.{fields[0][0]}")
                continue
            number = f"p{at}"
            if code[-1] == "s":
                unpack.append(f'    p{at} = int.from_bytes(p{at}, "big")')
            left = sum(width_of(field) for _, field in fields)
            terms = []
            for slot, field in fields:
                left -= width_of(field)
                alone = len(fields) == 1 and not is_signed(field)
                unpack.append(f"    self.{slot} = {number if alone else part(number, str(left), field)}")
                signed = is_signed(field)
                value = f"(self.{slot} & {hex((1 << width_of(field)) - 1)})" if signed else f"self.{slot}"
                terms.append(f"{value} << {left}" if left else value)
            joined = " | ".join(terms)
            pack.append(
                f'{joined if len(fields) == 1 else f"({joined})"}.to_bytes({code[:-1]}, "big")'
                if code[-1] == "s"
                else f"({joined})"
            )
        body = [f'WIRE = Wire(">{codes}")', "", *unpack, ""]
        return [
            *body,
            "def pack(self):",
            "    return self.WIRE.pack(",
            *(f"        {value}," for value in pack),
            "    )",
        ]

    @staticmethod
    def split(piece: tuple[str, list[tuple[str, ir.Type]]]) -> bool:
        """Whether a piece is more than one field that struct knows."""
        code, fields = piece
        return len(fields) > 1 or code[-1] == "s" or isinstance(fields[0][1], ir.Bool)

    def whole_pieces(self) -> Iterator[tuple[str, list[tuple[str, ir.Type]]]]:
        """Fewest fields that make whole bytes, and struct's code for them."""
        fields: list[tuple[str, ir.Type]] = []
        width = 0
        for slot, field in self.fields:
            fields.append((slot, field))
            width += width_of(field)
            if width % 8 or not width:
                continue
            code = CODES.get(width, "")
            signed = len(fields) == 1 and is_signed(field)
            yield (code if signed else code.upper()) or f"{width // 8}s", fields
            fields, width = [], 0


def part(number: str, shift: str, field: ir.Type) -> str:
    """The field in these bits of a number."""
    width = width_of(field)
    if not width:
        return "0"
    cut = f"{number} >> {shift} & {hex((1 << width) - 1)}" if shift != "0" else f"{number} & {hex((1 << width) - 1)}"
    return f"wrap({cut}, {1 << width - 1})" if is_signed(field) else cut
