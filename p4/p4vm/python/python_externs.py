"""Calls of v1model's externs as Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4vm.algorithms import HASHES
from p4vm.architectures.v1model import DROP_PORT
from p4vm.ir import ir_nodes as ir
from p4vm.ir.extern_kinds import (
    ExternArgument,
    algorithm_of,
    colors_of,
    extern_of,
    hash_name,
    random_bounds,
)
from p4vm.python.python_expressions import ATOM, BIT_AND, LAMBDA, NOT, PythonText
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.python.python_statements import StatementWriter

STANDARD = "packet.state['standard']"
"""Where v1model's externs that don't get standard metadata find it."""
LEVELS = {"": LAMBDA, "BIT_AND": BIT_AND}
"""How rows of `ir.externs` call levels."""


class ExternWriter:
    """Writes extern calls into a routine."""

    def __init__(self, writer: StatementWriter) -> None:
        self.writer = writer

    def call(self, s: ir.CallExtern) -> None:
        """Raises P4Error: the extern is none of v1model's."""
        extern = extern_of(s)
        if extern.method:
            getattr(self, extern.method)(s)
        elif extern.python:
            arguments = [ExternArgument(lambda e, level: self.text(e, LEVELS[level]), e) for e in s.arguments]
            instance = self.instance(s) if s.instance else ""
            self.writer.line(extern.python.format(*arguments, instance=instance, fields=self.field_list(s)))

    # ---- shorter

    def text(self, e: ir.Expression, level: int = LAMBDA) -> str:
        return self.writer.expression(e, level)

    def store(self, target: ir.Expression | None, value: str, *, fits: bool = False) -> None:
        """fits: the value needs no cutting to the target's type."""
        if target is not None:
            made = PythonText(value, LAMBDA)
            self.writer.store(target, made if fits else self.writer.expression.fitted(made, target.type))

    def instance(self, s: ir.CallExtern) -> str:
        assert s.instance is not None
        return self.writer.layout.names.of(s.instance)

    def data(self, e: ir.Expression) -> str:
        """Bytes of hashed data."""
        pieces = self.writer.expression.pieces(e)
        if len(pieces) < 4:
            return f"joined([{', '.join(pieces)}])"
        inner = "\n" + "    " * (self.writer.indent + 1)
        return f"joined([{inner}{f',{inner}'.join(pieces)}])"

    def hashed(self, s: ir.CallExtern, name: str, data: ir.Expression) -> str:
        if name != "random" and name not in HASHES:
            raise P4Error(f"there is no algorithm {name}; there are {', '.join(HASHES)} and random", s.position)
        payload = " + packet.payload" if s.name.endswith("_with_payload") else ""
        function = "packet.shared.random.next" if name == "random" else name
        return f"{function}({self.data(data)}{payload})"

    # ---- state

    def register_read(self, s: ir.CallExtern) -> None:
        target, index = s.arguments
        self.store(target, f"{self.instance(s)}.read({self.text(index)})", fits=True)

    def register_write(self, s: ir.CallExtern) -> None:
        index, value = s.arguments
        text = f"int({self.text(value)})" if isinstance(value.type, ir.Bool) else self.text(value)
        self.writer.line(f"{self.instance(s)}.write({self.text(index)}, {text})")

    def meter_execute(self, s: ir.CallExtern) -> None:
        index, target = s.arguments
        self.store_color(target, f"{self.instance(s)}.execute({self.text(index)}, packet)")

    def direct_meter_read(self, s: ir.CallExtern) -> None:
        self.store_color(s.arguments[0], f"{self.instance(s)}.color")

    def store_color(self, target: ir.Expression, color: str) -> None:
        if isinstance(target.type, ir.EnumMember):
            self.store(target, f"{colors_of(target.type)}[{color}]", fits=True)
        else:
            self.store(target, color)

    # ---- numbers

    def random(self, s: ir.CallExtern) -> None:
        target, low, high = s.arguments
        drawn = self.writer.names.fresh("drawn")
        self.writer.line(f"{drawn} = packet.shared.random.between({self.word(low)}, {self.word(high)})")
        with self.writer.nested(f"if {drawn} is not None:"):
            self.store(target, drawn)

    def word(self, e: ir.Expression) -> str:
        """The low 64 bits of a number, with its type's sign."""
        if not isinstance(e.type, ir.Bits) or e.type.width <= 64:
            return self.text(e)
        return self.writer.expression.fitted(PythonText(self.text(e), LAMBDA), ir.Bits(64, e.type.signed)).text

    def hash(self, s: ir.CallExtern) -> None:
        target, algorithm, base, data, limit = s.arguments
        number = self.hashed(s, algorithm_of(s, algorithm), data)
        self.store(target, f"within({number}, {self.text(base)}, {self.text(limit)})")

    def get_hash(self, s: ir.CallExtern) -> None:
        target, *operands = s.arguments
        number = self.hashed(s, hash_name(s), operands[len(operands) // 2])
        if len(operands) > 1:
            number = f"within({number}, {self.text(operands[0])}, {self.text(operands[2])})"
        self.store(target, number)

    def random_read(self, s: ir.CallExtern) -> None:
        low, high = random_bounds(s)
        self.store(s.arguments[0], f"packet.shared.random.between({low}, {high})")

    def checksum16(self, s: ir.CallExtern) -> None:
        self.store(s.result, f"csum16({self.data(s.arguments[0])})", fits=True)

    def verify_checksum(self, s: ir.CallExtern) -> None:
        condition, data, checksum, algorithm = s.arguments
        tests = [self.text(condition, NOT)]
        holder = checksum.base.type if isinstance(checksum, ir.FieldOf) else None
        if isinstance(checksum, ir.FieldOf) and isinstance(holder, ir.Record) and holder.kind == "header":
            tests.append(f"{self.text(checksum.base, ATOM)}.valid")
        computed = PythonText(self.hashed(s, algorithm_of(s, algorithm), data))
        fitted = self.writer.expression.fitted(computed, checksum.type)
        tests.append(f"{fitted.at(BIT_AND)} != {self.text(checksum, BIT_AND)}")
        if isinstance(condition, ir.Const) and condition.value:
            tests.pop(0)
        with self.writer.nested(f"if {' and '.join(tests)}:"):
            self.writer.line(f"{STANDARD}.checksum_error = 1")

    def update_checksum(self, s: ir.CallExtern) -> None:
        condition, data, checksum, algorithm = s.arguments
        with self.writer.nested(f"if {self.text(condition)}:"):
            self.store(checksum, self.hashed(s, algorithm_of(s, algorithm), data))

    # ---- requests to the pipeline

    def mark_to_drop(self, s: ir.CallExtern) -> None:
        standard = self.text(s.arguments[0], ATOM) if s.arguments else STANDARD
        self.writer.line(f"{standard}.egress_spec = {DROP_PORT}")
        self.writer.line(f"{standard}.mcast_grp = 0")

    def field_list(self, s: ir.CallExtern) -> str:
        return self.text(s.arguments[-1]) if s.name.endswith("_preserving_field_list") else "None"

    def digest(self, s: ir.CallExtern) -> None:
        *receivers, data = s.arguments
        receiver = self.text(receivers[0]) if receivers else "0"
        values = self.writer.expression.values(data)
        self.writer.line(f"packet.digest({receiver}, [{', '.join(values)}])")

    def log_msg(self, s: ir.CallExtern) -> None:
        values = [value for argument in s.arguments[1:] for value in self.writer.expression.values(argument)]
        self.writer.line(f"packet.log({self.text(s.arguments[0])}, [{', '.join(values)}])")

    def check(self, s: ir.CallExtern) -> None:
        with self.writer.nested(f"if not {self.text(s.arguments[0], NOT)}:"):
            self.writer.line(f"raise packet.failed({s.name!r}, {str(s.position)!r})")

    def length(self, s: ir.CallExtern) -> None:
        self.store(s.result, "len(packet.data)", fits=True)
