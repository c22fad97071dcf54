"""Arithmetic in C: from operands as text to a result as text, to the bit as ir/nodes.py defines it.

Operands and results are values of their width's `Rep`, zero beyond the width.
"""

from __future__ import annotations

from p4vm.c_code.c_types import CTypes, Rep, rep

SIMPLE = {"+": "+", "-": "-", "*": "*", "&": "&", "|": "|", "^": "^"}
WIDE = {
    "+": "p4_wide_add",
    "-": "p4_wide_sub",
    "*": "p4_wide_mul",
    "&": "p4_wide_and",
    "|": "p4_wide_or",
    "^": "p4_wide_xor",
    "/": "p4_wide_div",
    "%": "p4_wide_mod",
    "|+|": "p4_wide_sat_add",
    "|-|": "p4_wide_sat_sub",
}
SIGNED_WIDE = WIDE | {"|+|": "p4_wide_signed_sat_add", "|-|": "p4_wide_signed_sat_sub"}


def literal(value: int, width: int) -> str:
    """A constant, cut to its width."""
    value &= (1 << width) - 1
    of = rep(width)
    if of.bits == 32:
        return f"{value:#x}u" if value > 9 else f"{value}u"
    if of.bits == 64:
        return f"{value:#x}ull"
    if of.bits == 128:
        high, low = value >> 64, value & (1 << 64) - 1
        return f"((p4_u128){high:#x}ull << 64 | {low:#x}ull)" if high else f"((p4_u128){low:#x}ull)"
    limbs = ", ".join(f"{value >> 64 * at & (1 << 64) - 1:#x}ull" for at in range(of.limbs))
    return f"((struct p4_w{of.limbs}){{{{{limbs}}}}})"


class CNumbers:
    """types: learns which widths are in use."""

    def __init__(self, types: CTypes) -> None:
        self.types = types

    def mask(self, text: str, width: int) -> str:
        """A value of the rep that may have bits beyond its width, cut."""
        of = rep(width)
        if width == 0:
            return "0u"
        if width == of.bits:
            return f"({of.c})({text})"
        return f"(({text}) & {literal(-1, width)})"

    def limbs(self, text: str, width: int) -> str:
        """(pointer, count): two arguments for a function of limbs."""
        of = rep(width)
        if of.bits == 128:
            return f"p4_two({text}).w, 2"
        if of.bits:
            return f"(const uint64_t[1]){{{text}}}, 1"
        return f"({text}).w, {of.limbs}"

    def to_wide(self, text: str, width: int, limbs: int) -> str:
        """As struct p4_w<limbs>, zeros above."""
        if rep(width) == Rep(0, limbs):
            return text
        self.types.rep_c(Rep(0, limbs))
        return f"p4_w{limbs}_of({self.limbs(text, width)})"

    def from_128(self, call: str) -> str:
        """struct p4_w2 -> p4_u128"""
        return f"p4_one({call})"

    def binary(self, operator: str, width: int, signed: bool, left: str, right: str) -> str:
        """+ - * / % |+| |-| & | ^"""
        if width == 0:
            return "0u"
        of = rep(width)
        if not of.bits:
            name = (SIGNED_WIDE if signed else WIDE)[operator]
            return f"p4_w{of.limbs}_do({name}, {left}, {right}, {width})"
        if operator in ("&", "|", "^"):
            return f"({left} {operator} {right})"
        if operator in SIMPLE:
            return self.mask(f"{left} {operator} {right}", width)
        if of.bits == 128:
            name = (SIGNED_WIDE if signed else WIDE)[operator]
            return self.from_128(f"p4_w2_do({name}, p4_two({left}), p4_two({right}), {width})")
        return f"({of.c}){self._small(operator, width, signed, left, right)}"

    def _small(self, operator: str, width: int, signed: bool, left: str, right: str) -> str:
        if signed:
            name = {"|+|": "sat_add", "|-|": "sat_sub"}[operator]
            return f"p4_signed_{name}({left}, {right}, {width})"
        if operator == "|+|":
            return f"p4_sat_add({left}, {right}, {width})"
        name = {"/": "div", "%": "mod", "|-|": "sat_sub"}[operator]
        return f"p4_{name}({left}, {right})"

    def negate(self, text: str, width: int) -> str:
        of = rep(width)
        if not of.bits:
            return f"p4_w{of.limbs}_negate({text}, {width})"
        return self.mask(f"({of.c})0 - {text}", width)

    def invert(self, text: str, width: int) -> str:
        of = rep(width)
        if not of.bits:
            return f"p4_w{of.limbs}_not({text}, {width})"
        return self.mask(f"~{text}", width)

    def shift_by(self, operator: str, width: int, signed: bool, left: str, by: int) -> str:
        """By a known number of bits."""
        of = rep(width)
        if not of.bits or (signed and operator == ">>"):
            return self.shift(operator, width, signed, left, f"{min(by, width)}u")
        if by >= width:
            return literal(0, width)
        return self.mask(f"{left} << {by}", width) if operator == "<<" else f"({left} >> {by})"

    def shift(self, operator: str, width: int, signed: bool, left: str, by: str) -> str:
        """by: uint64_t."""
        if width == 0:
            return "0u"
        of = rep(width)
        name = "shl" if operator == "<<" else "sar" if signed else "shr"
        if of.bits == 128:
            return self.from_128(f"p4_w2_shift(p4_wide_{name}, p4_two({left}), {by}, {width})")
        if not of.bits:
            return f"p4_w{of.limbs}_shift(p4_wide_{name}, {left}, {by}, {width})"
        return f"({of.c})p4_{name}({left}, {by}, {width})"

    def compare(self, operator: str, width: int, signed: bool, left: str, right: str) -> str:
        """== != < <= > >="""
        of = rep(width)
        if not of.bits:
            if signed and operator not in ("==", "!="):
                return f"(p4_wide_signed_compare(({left}).w, ({right}).w, {of.limbs}, {width}) {operator} 0)"
            return f"(p4_wide_compare(({left}).w, ({right}).w, {of.limbs}) {operator} 0)"
        if signed and width and operator not in ("==", "!="):
            sign = literal(1 << width - 1, width)
            return f"(({left} ^ {sign}) {operator} ({right} ^ {sign}))"
        return f"({left} {operator} {right})"

    def slice(self, text: str, width: int, high: int, low: int) -> str:
        """text[high:low], of a value of `width` bits."""
        of, to = rep(width), rep(high - low + 1)
        if not of.bits:
            return self._from_limbs(text, width, high, low)
        shifted = f"({text} >> {low})" if low else text
        cut = f"({to.c}){shifted}" if to != of else shifted
        return cut if high >= width - 1 else self.mask(cut, high - low + 1)

    def _from_limbs(self, text: str, width: int, high: int, low: int) -> str:
        of, to = rep(width), rep(high - low + 1)
        arguments = f"({text}).w, {of.limbs}, {high}, {low}"
        if to.bits == 128:
            return self.from_128(f"p4_w2_slice({arguments})")
        if to.bits:
            return f"({to.c})p4_slice64({arguments})"
        self.types.rep_c(to)
        return f"p4_w{to.limbs}_slice({arguments})"

    def concat(self, left: str, left_width: int, right: str, right_width: int) -> str:
        width = left_width + right_width
        of = rep(width)
        if not left_width:
            return right
        if not right_width:
            return left
        if of.bits:
            return f"(({of.c}){left} << {right_width} | {right})"
        high, low = self.to_wide(left, left_width, of.limbs), self.to_wide(right, right_width, of.limbs)
        shifted = f"p4_w{of.limbs}_shift(p4_wide_shl, {high}, {right_width}, {width})"
        return f"p4_w{of.limbs}_do(p4_wide_or, {shifted}, {low}, {width})"

    def cast(self, text: str, width: int, signed: bool, to_width: int) -> str:
        """To another width: cut, or extended by the sign."""
        of, to = rep(width), rep(to_width)
        if to_width == 0:
            return "0u"
        if width == 0:
            return literal(0, to_width)
        if to_width == width:
            return text
        if to_width < width:
            return self.slice(text, width, to_width - 1, 0)
        if not signed:
            if to.bits:
                return f"({to.c}){text}"
            return self.to_wide(text, width, to.limbs)
        if to.bits in (32, 64):
            return self.mask(f"({to.c})p4_extend({text}, {width})", to_width)
        if to.bits == 128:
            return self.from_128(f"p4_w2_cast({self.limbs(text, width)}, {width}, {to_width})")
        self.types.rep_c(to)
        assert of.limbs <= to.limbs
        return f"p4_w{to.limbs}_cast({self.limbs(text, width)}, {width}, {to_width})"

    def small(self, text: str, width: int, signed: bool = False) -> str:
        """As uint64_t to index or shift by: too large is too large still, and so is what is below zero."""
        of = rep(width)
        if of.bits == 128 or not of.bits:
            return f"p4_wide_small({self.limbs(text, width)})"
        return f"p4_extend({text}, {width})" if signed else f"(uint64_t){text}"

    def word(self, text: str, width: int, signed: bool) -> str:
        """The low 64 bits, with the type's sign."""
        of = rep(width)
        if of.bits == 128:
            return f"(uint64_t){text}"
        if not of.bits:
            return f"({text}).w[0]"
        return f"p4_extend({text}, {width})" if signed else f"(uint64_t){text}"
