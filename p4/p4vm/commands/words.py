"""The parts of every command: its usage, which says how its words are read, the call, and the answer."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from p4vm.control.control_tables import TableState
from p4vm.control.control_values import BMV2_MATCHES, Pair, hex_bytes, show_key
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import ActionCall, MeterRate
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

NAMED = {"TABLE": "table", "PROFILE": "profile", "REGISTER": "register", "COUNTER": "counter", "METER": "meter"}
NAMED |= {"VALUE_SET": "value set"}
"""First word of a usage -> what of the program it names."""

NUMBERS = {
    "HANDLE": "entry handle",
    "MEMBER": "member handle",
    "table_indirect_set_default.MEMBER": "handle",
    "GROUP": "group handle",
    "mc.GROUP": "multicast group id",
    "mirroring.GROUP": "mgrp",
    "RID": "rid",
    "NODE": "node handle",
    "SESSION": "mirror_id",
    "PACKETS": "nb_pkts",
    "counter.PACKETS": "packets",
    "BYTES": "bytes",
    "PACKETS_PER_S": "rate_pps",
    "PORT": "egress_port",
    "PRIORITY": "priority",
    "INDEX": "index",
    "POLYNOMIAL": "CRC parameter",
    "INITIAL": "CRC parameter",
    "FINAL_XOR": "CRC parameter",
}
"""Words of a usage that are numbers -> how errors call them; before a dot: in commands that are called or begin so."""


def number(word: str, what: str) -> int:
    """A whole number, decimal or with 0x. Raises P4Error."""
    try:
        return int(word, 0)
    except ValueError:
        raise P4Error(f"Bad format for {what}, expected integer, got '{word[:80]}'") from None


def _truth(word: str) -> bool:
    if word in ("true", "True", "false", "False"):
        return word.lower() == "true"
    return bool(number(word, "bool parameter"))


def _cells(word: str) -> int | range:
    """An index, or those from the first to the last of `first-last`."""
    first, dash, last = word.partition("-")
    if dash and first:
        return range(number(first, "index"), number(last, "index") + 1)
    return number(word, "index")


def _ports(words: list[str]) -> list[int]:
    if "|" in words:
        if words.index("|") < len(words) - 1:
            raise P4Error("this switch has no LAGs; give ports alone")
        words = words[: words.index("|")]
    ports = []
    for word in words:
        try:
            ports.append(int(word, 0))
        except ValueError:
            raise P4Error(f"'{word[:80]}' is not a valid port number") from None
    return ports


def _rates(words: list[str]) -> list[MeterRate]:
    rates = []
    for word in words:
        rate, colon, burst = word.partition(":")
        try:
            if not colon:
                raise ValueError
            rates.append(MeterRate(float(rate), int(burst, 0)))
        except ValueError:
            raise P4Error(f"Error while parsing rates: '{word[:80]}'; expected RATE:BURST like 0.001:10") from None
    return rates


def _parameters(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["=>"] else words


READERS: dict[str, Callable[[str], object]] = {
    "register.INDEX": _cells,
    "REFLECT_DATA": _truth,
    "REFLECT_REMAINDER": _truth,
}
"""Words of a usage that are neither names nor numbers -> what reads them."""

RESTS: dict[str, Callable[[list[str]], object]] = {
    "PORTS…": _ports,
    "PARAMETERS…": _parameters,
    "RATE:BURST": _rates,
    "pvs.VALUE": list,
}
"""Last words of a usage -> what reads all that is left of a line."""


def _keyed(state: TableState, words: list[str], after: str) -> list[object]:
    """Words of the key, those after => and the priority; what stands `after` it: PARAMETERS…, a handle, or nothing."""
    rest = list(words)
    priority = None
    if state.prioritized:
        try:
            priority = int(rest.pop(), 0)
        except (ValueError, IndexError):
            raise P4Error(
                f"Table {state.name} is {state.kind}, but could not extract a valid priority from args; end the line "
                "with a number (smaller wins)"
            ) from None
    if "=>" not in rest and len(rest) != len(state.keys):
        what = {"": "nothing", "PARAMETERS…": "the action's parameters"}.get(after, "a handle")
        raise P4Error(f"Table {state.name} needs {len(state.keys)} key fields, then => and {what}; found no =>")
    arrow = rest.index("=>") if "=>" in rest else len(rest)
    keys, data = rest[:arrow], rest[arrow + 1 :]
    if after in ("", "PARAMETERS…"):
        return [keys, data, priority] if after else [keys, priority]
    if len(data) != 1:
        raise P4Error(f"Invalid arguments, could not find handle: expected one after =>, got {len(data)}")
    return [keys, number(data[0], "handle"), priority]


@dataclass(frozen=True, slots=True)
class Form:
    """words: those after a command's name, of alternatives the first. readers: of words that stand alone; after these
    `rest` reads what is left, or (keyed) there are a key, =>, the word `after` it and a priority. least, most: how many
    words it takes."""

    words: list[str]
    readers: list[Callable[[str], object] | None]
    rest: Callable[[list[str]], object] | None
    keyed: bool
    after: str
    least: int
    most: int | None


def form_of(usage: str, least: int) -> Form:
    """`PORTS…` stands for any number of words; what begins with `[` may be left out."""
    name, *usage_words = re.sub(r" ?\| ?[^\s\]]+", "", usage).split()
    needed = next((at for at, word in enumerate(usage_words) if word.startswith("[")), len(usage_words))
    words = [word.strip("[]") for word in usage_words]
    count = sum(not word.endswith("…") and word not in ("=>", "RATE:BURST") for word in words[:needed])
    kinds = [_kind(name, word) for word in words]
    alone = next((at for at, kind in enumerate(kinds) if kind in RESTS or kind == "KEYS…"), len(words))
    readers = [_reader(kind) for kind in kinds[:alone]]
    rest = RESTS.get(kinds[alone]) if alone < len(kinds) else None
    after = words[words.index("=>") + 1] if "=>" in words else ""
    most = None if alone < len(words) else len(words)
    return Form([word.rstrip("…") for word in words], readers, rest, "KEYS…" in words, after, least or count, most)


def _kind(command: str, word: str) -> str:
    """The name under which this command's word stands in the tables above."""
    begins = command.partition("_")[0]
    return next((k for k in (f"{command}.{word}", f"{begins}.{word}") if k in NUMBERS | READERS | RESTS), word)


def _reader(kind: str) -> Callable[[str], object] | None:
    """The reader of a word; None: the word itself is the value."""
    return partial(number, what=NUMBERS[kind]) if kind in NUMBERS else READERS.get(kind)


@dataclass(frozen=True, slots=True)
class Command:
    """A row of a table of commands: how it is written, what help says, what it calls and what it prints.

    calls: given the switch and the values that usage names; None: the switch's method of the command's name. prints:
    the answer, in which {result} and words of the usage stand for what they are, or a function of switch, result and
    values; none: the result, where it is text. least: of words, where usage doesn't say.
    """

    usage: str
    says: str
    calls: Callable[..., Any] | None = None
    prints: str | Callable[..., str] = ""
    least: int = 0
    name: str = field(init=False)
    form: Form = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.usage.partition(" ")[0])
        object.__setattr__(self, "form", form_of(self.usage, self.least))

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of names that the words take ("table", "table action", "register", …), for completion."""
        words = self.form.words
        if not words or words[0] not in NAMED:
            return ()
        named = NAMED[words[0]]
        return (named, f"{named} action") if words[1:2] == ["ACTION"] else (named,)

    def read(self, switch: ControlledSwitch, words: list[str]) -> list[object]:
        """The values that a line's words stand for. Raises P4Error."""
        form, count = self.form, len(words)
        if count < form.least or (form.most is not None and count > form.most):
            raise self._miscounted(count)
        values: list[object] = [
            word if read is None else read(word) for read, word in zip(form.readers, words, strict=False)
        ]
        if form.keyed:
            values += _keyed(switch.tables[words[0]], words[len(values) :], form.after)
        elif form.rest is not None:
            values.append(form.rest(words[len(values) :]))
        return values

    def _miscounted(self, count: int) -> P4Error:
        least, most = self.form.least, self.form.most
        if count < least != most:
            return P4Error(f"Insufficient number of args, expected {least} but got {count}; {self.usage}")
        return P4Error(f"Wrong number of args, expected {most} but got {count}; {self.usage}")

    def call(self, switch: ControlledSwitch, *values: object) -> Any:
        """Carry it out; what the switch answers. Raises P4Error."""
        return getattr(switch, self.name)(*values) if self.calls is None else self.calls(switch, *values)

    def run(self, switch: ControlledSwitch, words: list[str]) -> str:
        """Carry out a line; what it prints. Raises P4Error."""
        values, prints = self.read(switch, words), self.prints
        result = self.call(switch, *values)
        if not prints:
            return result if isinstance(result, str) else ""
        if isinstance(prints, str):
            return prints.format(result=result, **dict(zip(self.form.words, values, strict=False)))
        return prints(switch, result, *values)


def table(commands: Iterable[Command]) -> dict[str, Command]:
    return {command.name: command for command in commands}


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
        f"{BMV2_MATCHES[key.match].upper()}-{show_key(pair, key.expression.type, key.match, ':')}"
        for key, pair in zip(keys, pairs, strict=True)
    )
