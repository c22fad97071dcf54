"""Arithmetic in C: from operands as text to a result as text, to the bit as ir/ir_nodes.py defines it.

Operands and results are values of their width's `Rep`, zero beyond the width.
"""

from p4vm.c_code.c_types import CTypes, Rep, rep

WIDE = {
    "+": "p4_wide_add",
    "-": "p4_wide_sub",
    "*": "p4_wide_mul",
    "&": "p4_wide_and",
    "|": "p4_wide_or",
    "^": "p4_wide_xor",
    "/": "p4_wide_div",
    "%": "p4_wide_mod",
}


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

    def binary(self, operator: str, width: int, left: str, right: str) -> str:
        """+ - * / % & | ^"""
        if width == 0:
            return "0u"
        of = rep(width)
        if not of.bits:
            return f"p4_w{of.limbs}_do({WIDE[operator]}, {left}, {right}, {width})"
        if operator in ("&", "|", "^"):
            return f"({left} {operator} {right})"
        if operator in ("+", "-", "*"):
            return self.mask(f"{left} {operator} {right}", width)
        if of.bits == 128:
            return f"p4_one(p4_w2_do({WIDE[operator]}, p4_two({left}), p4_two({right}), {width}))"
        return f"({of.c}){'p4_div' if operator == '/' else 'p4_mod'}({left}, {right})"

    def shift(self, operator: str, width: int, signed: bool, left: str, by: int | str) -> str:
        """by: a number below the width, or the text of one that may be greater."""
        if width == 0:
            return "0u"
        of = rep(width)
        if of.bits and isinstance(by, int) and (operator == "<<" or not signed):
            return self.mask(f"{left} << {by}", width) if operator == "<<" else f"({left} >> {by})"
        name = "shl" if operator == "<<" else "sar" if signed else "shr"
        if of.bits == 128:
            return f"p4_one(p4_w2_shift(p4_wide_{name}, p4_two({left}), {by}, {width}))"
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
            return f"p4_one(p4_w2_slice({arguments}))"
        if to.bits:
            return f"({to.c})p4_slice64({arguments})"
        self.types.rep_c(to)
        return f"p4_w{to.limbs}_slice({arguments})"

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
            return f"p4_one(p4_w2_cast({self.limbs(text, width)}, {width}, {to_width}))"
        self.types.rep_c(to)
        assert of.limbs <= to.limbs
        return f"p4_w{to.limbs}_cast({self.limbs(text, width)}, {width}, {to_width})"
