"""Values as users of a switch's command line write and read them: numbers, addresses, and the four ways to match.

A key in the engine is a pair: exact (value, None); lpm (value, prefix length); ternary, optional (value, mask); range
(low, high). Words for it: `5`, `0x0a`, `10.0.0.1`, `::1`, `aa:bb:cc:dd:ee:ff`; `10.0.0.0/8`; `0x10&&&0xf0`; `1->5`.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import SupportsInt

from p4vm.bit_arithmetic import limits, wrap
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed
from p4vm.source import P4Error

MASKED = frozenset({"ternary", "optional"})
"""Kinds of match whose pair holds a mask."""

PRIORITIZED = frozenset({"ternary", "optional", "range"})
"""Kinds of match whose tables need a priority in each entry."""

SEPARATORS = {"lpm": "/", "ternary": "&&&", "optional": "&&&", "range": "->"}
"""Kind of match -> what stands between the two parts of its words."""

BMV2_MATCHES = {"exact": "exact", "lpm": "lpm", "ternary": "ternary", "optional": "ternary", "range": "range"}
"""Kind of match -> as bmv2's command line calls it."""

_DIGIT_BITS = {"x": 4, "o": 3, "b": 1}

Pair = tuple[int, int | None]
Word = str | int | tuple[int, int | None]
"""A caller gives a key as words as above, a plain number, or the pair itself."""


def width_of(kind: ir.Type) -> int:
    """Bits of a value in a key or argument. Raises P4Error for types that have none."""
    if isinstance(kind, ir.Varbits):
        return kind.width
    if not isinstance(kind, ir.Bits | ir.Bool | ir.EnumMember):
        raise P4Error(f"a control plane can't set a value of {type(kind).__name__.lower()} type")
    return ir.width_of(kind)


def source_type(key: ir.Key) -> ir.Type:
    """The type as the program writes it: lowering turns int<W> keys into patterns of as many bits."""
    bits, cast = key.expression.type, key.expression
    if isinstance(cast, ir.Cast) and isinstance(bits, ir.Bits):
        inner = cast.operand.type
        return inner if isinstance(inner, ir.Bits) and inner.width == bits.width else bits
    return bits


def key_pair(word: Word, key: ir.Key, plain: bool = False) -> Pair:
    """As `parse_key` for a table's key: the pair that the engine takes. Raises P4Error."""
    kind = source_type(key)
    value, other = parse_key(word, kind, key.match, plain)
    return (value & full_mask(kind), other) if kind != key.expression.type else (value, other)


def full_mask(kind: ir.Type) -> int:
    return (1 << width_of(kind)) - 1


def whole_range(kind: ir.Type) -> tuple[int, int]:
    """The least and the greatest value."""
    if isinstance(kind, ir.EnumMember):
        return 0, len(kind.members) - 1
    return limits(kind) if isinstance(kind, ir.Bits) and kind.width else (0, full_mask(kind))


def parse_number(text: str, kind: ir.Type) -> int:
    """A value of that type. Raises P4Error: it names the fault, and what would fit."""
    if isinstance(kind, ir.EnumMember) and text in kind.members:
        return kind.members.index(text)
    width = width_of(kind)
    address = _address(text, width)
    value = _integer(text) if address is None else address
    return fit(value, kind)


def _integer(text: str) -> int:
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text, 0)
    except ValueError:
        raise P4Error(
            f"'{text[:80]}': Invalid input, could not cast to integer, try in hex with 0x prefix (or 10.0.0.1 for 32, "
            "aa:bb:cc:dd:ee:ff for 48, ::1 for 128 bits)"
        ) from None


def _mac_address(text: str) -> int:
    if not re.fullmatch("[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}", text):
        raise ValueError
    return int("".join(part.zfill(2) for part in text.split(":")), 16)


_ADDRESSES: dict[int, tuple[str, Callable[[str], SupportsInt], str]] = {
    32: (".", ipaddress.IPv4Address, "IPv4 address; expected four numbers up to 255: 10.0.0.1"),
    48: (":", _mac_address, "MAC address; expected six bytes: 08:00:00:00:01:11"),
    128: (":", ipaddress.IPv6Address, "IPv6 address; expected one like 2001:db8::1"),
}
"""Width -> the sign in addresses of that width, what reads them, and how one is written."""


def _address(text: str, width: int) -> int | None:
    """The value of an address of that width; None: it doesn't look like one."""
    sign, read, form = _ADDRESSES.get(width, ("", int, ""))
    if not sign or sign not in text:
        return None
    try:
        return int(read(text))
    except ValueError:
        raise P4Error(f"'{text[:80]}': Invalid {form}") from None


def fit(value: int, kind: ir.Type) -> int:
    """The value as the engine holds it. A signed type takes its bits too: 0xff is -1 of int<8>. Raises P4Error."""
    width = width_of(kind)
    if isinstance(kind, ir.EnumMember):
        if not 0 <= value < len(kind.members):
            raise P4Error(f"{value} is no member of {kind.name}; it has: {', '.join(kind.members)}")
        return value
    signed = is_signed(kind)
    if signed and width and -(1 << (width - 1)) <= value < 0:
        return value
    if value < 0:
        raise P4Error(f"{value}: negative, but the type is bit<{width}>; expected 0 to {(1 << width) - 1}")
    if value >> width:
        text = f"{value:#x}" if value.bit_length() < 400 else f"a number of {value.bit_length()} bits"
        raise P4Error(
            f"Parameter is too large: {text} needs {value.bit_length()} bits, but the type has {width}; "
            f"expected at most {(1 << width) - 1:#x}"
        )
    return wrap(value, kind) if isinstance(kind, ir.Bits) else value


def parse_key(word: Word, kind: ir.Type, match: str, plain: bool = False) -> Pair:
    """The pair for one key of a table. plain: a value alone is taken whatever the match. Raises P4Error."""
    if isinstance(word, tuple):
        return check_pair(word, kind, match)
    text = str(word)
    if plain and (match == "exact" or SEPARATORS[match] not in text):
        return _plain_pair(text, kind, match)
    if match == "exact":
        return parse_number(text, kind), None
    if match == "lpm":
        value, slash, length = text.rpartition("/")
        if not slash or not length.isdecimal():
            raise P4Error(f"Invalid LPM value {text[:80]}, use '/' to separate prefix and length: 10.0.0.0/8")
        return check_pair((parse_number(value, kind), int(length[:6])), kind, match)
    if match == "range":
        low, arrow, high = text.partition("->")
        if not arrow:
            raise P4Error(f"Invalid range value {text[:80]}, use '->' to separate range start and range end: 1->5")
        return check_pair((parse_number(low, kind), parse_number(high, kind)), kind, match)
    return _parse_masked(text, kind, match)


def _parse_masked(text: str, kind: ir.Type, match: str) -> Pair:
    if text == "*":
        return 0, 0
    value, ands, mask = text.partition("&&&")
    if not ands:
        if match == "optional":
            return parse_number(value, kind), full_mask(kind)
        raise P4Error(f"Invalid ternary value {text[:80]}, use '&&&' to separate key and mask: 0x0800&&&0xffff, or *")
    return check_pair((parse_number(value, kind), parse_mask(mask, kind)), kind, match)


def parse_mask(text: str, kind: ir.Type) -> int:
    return parse_number(text, ir.Bits(width_of(kind)))


def _plain_pair(text: str, kind: ir.Type, match: str) -> Pair:
    """A value alone means itself, whatever the kind of match; of 0x…, 0b…, 0o… a digit * matches any."""
    for other, separator in SEPARATORS.items():
        if separator in text:
            raise P4Error(f"'{separator}' belongs to {other} keys; this one is {match}")
    full = full_mask(kind)
    value, mask = _starred(text, kind) if "*" in text else (parse_number(text, kind), full)
    if match in MASKED:
        return check_pair((value, mask), kind, match)
    if match == "lpm":
        length = mask.bit_count()
        if mask != full & ~(full >> length):
            raise P4Error(f"{text}: in an lpm key only the last digits may be *")
        return check_pair((value, length), kind, match)
    if mask != full:
        raise P4Error(f"{text}: * belongs to ternary, optional and lpm keys; this one is {match}")
    return value, value if match == "range" else None


def _starred(text: str, kind: ir.Type) -> tuple[int, int]:
    """Value and mask of a number with * for digits; digits that aren't written are zeros that matter."""
    if text == "*":
        return 0, 0
    bits, digits = _DIGIT_BITS.get(text[1:2].lower(), 0), text[2:]
    value = parse_number(text.replace("*", "0") if bits else text, kind)
    if len(digits) * bits >= width_of(kind) + bits:
        raise P4Error(f"{text}: {len(digits)} digits are more than the key's {width_of(kind)} bits")
    free = sum((1 << bits) - 1 << bits * place for place, digit in enumerate(reversed(digits)) if digit == "*")
    return value, full_mask(kind) & ~free


def check_pair(pair: Pair, kind: ir.Type, match: str) -> Pair:
    """The pair as the engine holds it: bits outside mask or prefix are cleared. Raises P4Error."""
    value, other = fit(pair[0], kind), pair[1]
    width = width_of(kind)
    if match == "exact":
        if other is not None:
            raise P4Error(f"{pair}: an exact key is one value, without mask or prefix")
        return value, None
    if other is None:
        raise P4Error(f"{pair}: a key of kind {match} needs a second part")
    if match == "lpm":
        if not 0 <= other <= width:
            raise P4Error(f"prefix length {other} is beyond the key's {width} bits; expected 0 to {width}")
        return _masked(value, ((1 << other) - 1) << (width - other), kind), other
    if match == "range":
        high = fit(other, kind)
        if value > high:
            raise P4Error(f"{value}->{high}: start is greater than end of the range; expected low->high")
        return value, high
    mask = fit(other, ir.Bits(width))
    if match == "optional" and mask not in (0, full_mask(kind)):
        raise P4Error(f"mask {mask:#x}: an optional key matches the whole value or anything; expected a value or *")
    return _masked(value, mask, kind), mask


def _masked(value: int, mask: int, kind: ir.Type) -> int:
    bits = value & mask & full_mask(kind)
    return bits if isinstance(kind, ir.EnumMember) else fit(bits, kind)


def hex_bytes(value: int, kind: ir.Type, separator: str = "") -> str:
    """The value's bytes in hex, most significant first, as many as its type takes."""
    size = (width_of(kind) + 7) // 8
    data = (value & full_mask(kind)).to_bytes(size, "big")
    return data.hex(separator) if separator else data.hex()


def show_key(pair: Pair, kind: ir.Type, match: str, separator: str = "") -> str:
    """A key as dumps print it; separator ":" as table_add prints it."""
    value, other = pair
    first = hex_bytes(value, kind, separator)
    if match == "exact" or other is None:
        return first
    if match == "lpm":
        return f"{first}/{other}"
    if match == "range":
        return f"{first} -> {hex_bytes(other, kind, separator)}"
    return f"{first} &&& {hex_bytes(other, ir.Bits(width_of(kind)), separator)}"
