"""What every command is made of: its usage, its arguments, and how numbers among them are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p4vm.control.values import hex_bytes, show_key
from p4vm.engine import ActionCall
from p4vm.ir import nodes as ir
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.control.switch import Switch
    from p4vm.control.values import Pair

Run = Callable[["Switch", list[str]], str]

NAMED = {"TABLE": "table", "PROFILE": "profile", "REGISTER": "register", "COUNTER": "counter", "METER": "meter"}
NAMED |= {"VALUE_SET": "value set"}
"""First word of a usage -> what of the program it names."""

NUMBERS = {
    "HANDLE": "entry handle",
    "MEMBER": "member handle",
    "table.MEMBER": "handle",
    "GROUP": "group handle",
    "mc.GROUP": "multicast group id",
    "mirroring.GROUP": "mgrp",
    "NODE": "node handle",
    "SESSION": "mirror_id",
    "PACKETS": "nb_pkts",
    "PACKETS_PER_S": "rate_pps",
    "PORT": "egress_port",
    "PRIORITY": "priority",
    "INDEX": "index",
}
"""Words of a usage that are numbers -> how errors call them; after a dot where commands that begin so call it else."""


@dataclass(frozen=True, slots=True)
class Form:
    """words: those after a command's name, of alternatives the first. numbers: how errors call each; None: no number.
    least, most: how many words it takes."""

    words: list[str]
    numbers: list[str | None]
    least: int
    most: int | None


def form_of(usage: str) -> Form:
    """`KEYS…` stands for any number of words; what begins with `[` may be left out."""
    name, *written = re.sub(r" ?\| ?[^\s\]]+", "", usage).split()
    optional = next((at for at, word in enumerate(written) if word.startswith("[")), len(written))
    least = sum(not word.endswith("…") and word != "=>" for word in written[:optional])
    words = [word.strip("[]…") for word in written]
    numbers = [NUMBERS.get(f"{name.partition('_')[0]}.{word}") or NUMBERS.get(word) for word in words]
    return Form(words, numbers, least, None if "…" in usage else len(words))


@dataclass(frozen=True, slots=True)
class Command:
    """A row of a table of commands: how it is written, what help says, what it does and what it prints.

    does: carries it out, given its words; None: the switch's method of the command's name does, given the words that
    usage names, numbers as numbers. prints: the answer then, in which {result} and words of the usage stand for what
    they are. counted: the usage by which words are counted, where that isn't the one shown.
    """

    usage: str
    says: str
    does: Run | None = None
    prints: str = ""
    counted: str = ""
    form: Form = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", form_of(self.counted or self.usage))

    @property
    def name(self) -> str:
        return self.usage.partition(" ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """What each word after the command names ("table", "table action", "register", …), for completion."""
        words = self.form.words
        if not words or words[0] not in NAMED:
            return ()
        named = NAMED[words[0]]
        return (named, f"{named} action") if words[1:2] == ["ACTION"] else (named,)

    def run(self, switch: Switch, words: list[str]) -> str:
        """Raises P4Error."""
        form = self.form
        if len(words) < form.least and form.most != form.least:
            raise P4Error(f"Insufficient number of args, expected {form.least} but got {len(words)}; {self.usage}")
        if len(words) < form.least or (form.most is not None and len(words) > form.most):
            raise P4Error(f"Wrong number of args, expected {form.most} but got {len(words)}; {self.usage}")
        if self.does is not None:
            return self.does(switch, words)
        given = [number(text, what) if what else text for text, what in zip(words, form.numbers, strict=False)]
        result = getattr(switch, self.name)(*given, *words[len(given) :])
        return self.prints.format(result=result, **dict(zip(form.words, given, strict=False))) if self.prints else ""


def table(commands: Iterable[Command]) -> dict[str, Command]:
    return {command.name: command for command in commands}


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
