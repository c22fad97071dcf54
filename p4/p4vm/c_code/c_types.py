"""How types look in C: storage, structs, comparison, zeros.

Numbers lie in the smallest of uint8_t … uint64_t, p4_u128, or an array of limbs; signed ones as two's complement, cut
to their width. Expressions work in `Rep`s: 32, 64, 128 bits, or limbs.
"""

import re
import struct
from dataclasses import dataclass

from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

HAS_128 = struct.calcsize("P") == 8
"""gcc and clang have __int128 wherever pointers have 64 bits."""


@dataclass(frozen=True, slots=True)
class Rep:
    """bits: 32, 64, 128; 0: an array of limbs."""

    bits: int
    limbs: int

    @property
    def c(self) -> str:
        return {32: "uint32_t", 64: "uint64_t", 128: "p4_u128"}.get(self.bits, f"struct p4_w{self.limbs}")


def rep(width: int) -> Rep:
    """The C type that represents values of so many bits in expressions."""
    if width <= 32:
        return Rep(32, 1)
    if width <= 64:
        return Rep(64, 1)
    if width <= 128 and HAS_128:
        return Rep(128, 2)
    return Rep(0, (width + 63) // 64)


def limbs_of(width: int) -> int:
    """64-bit limbs of a value in a buffer."""
    return max(1, (width + 63) // 64)


def is_number(kind: ir.Type) -> bool:
    """Whether it is a value of C, rather than a struct that is passed by address."""
    return isinstance(kind, ir.Bits | ir.Bool | ir.EnumMember)


def identifier(text: str) -> str:
    """The text as part of a C name."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def varbit_of(kind: ir.Type) -> ir.Varbits | None:
    """The varbit field in a header, or in structs of it."""
    if isinstance(kind, ir.Varbits):
        return kind
    if isinstance(kind, ir.Record):
        return next((varbit for _, field in kind.fields if (varbit := varbit_of(field))), None)
    return None


class CTypes:
    """Types of one program. definitions: C text, each after what it needs."""

    def __init__(self) -> None:
        self.definitions: list[str] = []
        self.functions: list[str] = []
        self.names: dict[ir.Type, str] = {}
        self.wide: set[int] = {2} if HAS_128 else set()
        self.function_keys: set[tuple[str, str]] = set()

    def storage(self, kind: ir.Type) -> str:
        """The C type of a variable or field."""
        if isinstance(kind, ir.Bits):
            return self.number(kind.width)
        if isinstance(kind, ir.EnumMember):
            return "uint32_t"
        if isinstance(kind, ir.Bool):
            return "uint8_t"
        if kind not in self.names:
            lines = self._struct(kind)
            self.names[kind] = f"struct s{len(self.names)}_{identifier(getattr(kind, 'name', ''))[:40]}"
            self.definitions.append(f"{self.names[kind]} {{\n" + "".join(f"    {line}\n" for line in lines) + "};")
        return self.names[kind]

    def _struct(self, kind: ir.Type) -> list[str]:
        """The members of a varbit, an array or a record."""
        match kind:
            case ir.Varbits():
                return ["uint32_t bits;", f"uint8_t b[{max(1, (kind.width + 7) // 8)}];"]
            case ir.Array():
                return ["uint32_t next_index;", f"{self.storage(kind.element)} items[{max(1, kind.size)}];"]
            case ir.Record():
                lines = [f"{self.storage(field)} {self.field(name)};" for name, field in kind.fields]
                return (["uint8_t valid;"] if kind.kind == "header" else []) + lines or ["uint8_t nothing;"]
        raise P4Error("a string is no value that programs work on")

    def number(self, width: int) -> str:
        for bits in (8, 16, 32, 64):
            if width <= bits:
                return f"uint{bits}_t"
        return self.rep_c(rep(width))

    def rep_c(self, of: Rep) -> str:
        """The type's name in C, defined from now on."""
        if not of.bits and of.limbs not in self.wide:
            self.wide.add(of.limbs)
            self.definitions.append(f"P4_WIDE({of.limbs})")
        return of.c

    @staticmethod
    def field(name: str) -> str:
        return f"f_{identifier(name)}"

    def once(self, what: str, c_type: str) -> bool:
        """Whether a function of this kind for this type is still to be written."""
        if (what, c_type) in self.function_keys:
            return False
        self.function_keys.add((what, c_type))
        return True

    @staticmethod
    def suffix(c_type: str) -> str:
        return c_type.removeprefix("struct ")
