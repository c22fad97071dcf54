"""What every command is made of: its usage, its words, and how numbers among them are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4vm.control.values import hex_bytes, show_key
from p4vm.engine import ActionCall
from p4vm.ir import nodes as ir
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.control.switch import Switch
    from p4vm.control.values import Pair

Run = Callable[["Switch", list[str]], str]


@dataclass(frozen=True, slots=True)
class Command:
    """names: what each word after the command names ("table", "table action", "register", …), for completion.
    least, most: how many words it takes."""

    usage: str
    says: str
    action: Run
    least: int = 0
    most: int | None = None
    names: tuple[str, ...] = ()

    def run(self, switch: Switch, words: list[str]) -> str:
        if len(words) < self.least and self.most != self.least:
            raise P4Error(f"Insufficient number of args, expected {self.least} but got {len(words)}; {self.usage}")
        if len(words) < self.least or (self.most is not None and len(words) > self.most):
            raise P4Error(f"Wrong number of args, expected {self.most} but got {len(words)}; {self.usage}")
        return self.action(switch, words)


def number(word: str, what: str) -> int:
    """A whole number, decimal or with 0x. Raises P4Error."""
    try:
        return int(word, 0)
    except ValueError:
        raise P4Error(f"Bad format for {what}, expected integer, got '{word[:80]}'") from None


def short_data_words(table_action: ir.TableAction, call: ActionCall) -> list[str]:
    """An action's arguments in hex as dumps have them: bytes of zeros in front are left out."""
    words = []
    for word in data_words(table_action, call):
        digits = word.lstrip("0")
        words.append("0" * (len(digits) % 2) + digits or "00")
    return words


def data_words(table_action: ir.TableAction, call: ActionCall, separator: str = "") -> list[str]:
    """An action's arguments in hex, all bytes."""
    return [
        hex_bytes(value, parameter.variable.type, separator)
        for value, parameter in zip(call.arguments, table_action.data, strict=True)
    ]


def keys_text(keys: list[ir.Key], pairs: tuple[Pair, ...]) -> str:
    """A key as table_add repeats it: EXACT-0a:00:00:01."""
    return "\t".join(
        f"{_word(key)}-{show_key(pair, key.expression.type, key.match, ':')}"
        for key, pair in zip(keys, pairs, strict=True)
    )


def _word(key: ir.Key) -> str:
    return "TERNARY" if key.match == "optional" else key.match.upper()
