"""STF, the simple test framework of P4: text of one statement per line to statements. See `stf` for what they mean."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p4vm.bit_arithmetic import COMPARISONS
from p4vm.commands.line import COMMANDS
from p4vm.control.control_values import SEPARATORS
from p4vm.source import P4Error, Position

PORT_MAX = 65_535
LINES_MAX = 2_000_000
UNITS = ("packets", "bytes")

NUMBER = r"0[xX][0-9a-fA-F*]+|0[bB][01*]+|0[oO][0-7*]+|[0-9]+"
IDENTIFIER = r"[A-Za-z_$][A-Za-z_$0-9]*"
_TOKEN = re.compile(rf'\s*(?:(?P<number>{NUMBER})|(?P<name>{IDENTIFIER})|"(?P<quoted>[^"]*)"|'
                    r"(?P<mark>==|!=|<=|>=|&&&|->|[.,:()\[\]/=<>*-]))")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Add:
    """keys: words as on the command line, and values with * for digits; None: it is the default action. priority: the
    greater wins."""

    position: Position
    table: str
    priority: int | None
    keys: dict[str, str] | None
    action: str
    arguments: dict[str, str]
    label: str = ""


@dataclass(frozen=True, slots=True)
class StfPacket:
    position: Position
    port: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Expect:
    """nibbles: lower-case hex and *; None: any packet. exact: nothing may follow them."""

    position: Position
    port: int
    nibbles: str | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class CheckCounter:
    """index: a number, or the label of an entry. relation empty: it need only be there."""

    position: Position
    counter: str
    index: str
    unit: str = "packets"
    relation: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """label: of one entry; empty: all entries of all tables."""

    position: Position
    label: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    position: Position


@dataclass(frozen=True, slots=True)
class NoPacket:
    position: Position


@dataclass(frozen=True, slots=True)
class Direct:
    """A command of the switch's command line: mc_mgrp_create 1."""

    position: Position
    line: str


Statement = Add | StfPacket | Expect | CheckCounter | Remove | Wait | NoPacket | Direct


def parse(text: str, file: str = "<text>") -> list[Statement]:
    """All statements in order. Raises P4Error with file, line and column."""
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise P4Error(f"{file}: {len(lines)} lines; expected at most {LINES_MAX}")
    return [statement for number, line in enumerate(lines, 1) for statement in _parse_line(line, file, number)]


def _parse_line(line: str, file: str, number: int) -> Iterator[Statement]:
    content = line.partition("#")[0].rstrip()
    words = content.split(None, 1)
    if not words:
        return
    position = Position(file, number, content.index(words[0]) + 1)
    keyword, rest = words[0].lower(), words[1] if len(words) > 1 else ""
    if keyword == "packet":
        yield _packet(position, rest)
    elif keyword == "expect":
        yield _expect(position, rest)
    elif keyword in ("wait", "no_packet"):
        if rest:
            raise P4Error(f"{keyword} takes no words, found '{rest[:40]}'", position)
        yield Wait(position) if keyword == "wait" else NoPacket(position)
    elif keyword in _PARSED:
        yield _PARSED[keyword](
            _Words(content, file, number, len(content) - len(rest) if rest else len(content)), position
        )
    else:
        yield _direct(position, keyword, rest)


def _direct(position: Position, keyword: str, rest: str) -> Direct:
    if keyword not in COMMANDS:
        raise P4Error(
            f"'{keyword[:40]}' is no statement; expected add, setdefault, packet, expect, check_counter, remove, wait, "
            "no_packet, or a command of the switch like mc_mgrp_create",
            position,
        )
    return Direct(position, f"{keyword} {rest}".rstrip())


# ---- packets


def _port_and_data(position: Position, rest: str, keyword: str) -> tuple[int, str]:
    words = rest.split()
    if not words or not words[0].isdecimal() or len(words[0]) > 6 or int(words[0]) > PORT_MAX:
        raise P4Error(f"{keyword} needs a port number, then bytes in hex; found '{rest[:40]}'", position)
    return int(words[0]), "".join(words[1:]).lower()


def _packet(position: Position, rest: str) -> StfPacket:
    port, digits = _port_and_data(position, rest, "packet")
    wrong = re.search(r"[^0-9a-f]", digits)
    if wrong:
        raise P4Error(f"packet: '{wrong.group()}' is no hex digit (nibble {wrong.start() + 1})", position)
    if not digits or len(digits) % 2:
        raise P4Error(f"packet: {len(digits)} hex digits; expected two for each byte, at least one byte", position)
    return StfPacket(position, port, bytes.fromhex(digits))


def _expect(position: Position, rest: str) -> Expect:
    port, pattern = _port_and_data(position, rest, "expect")
    exact = pattern.endswith("$")
    nibbles = pattern[:-1] if exact else pattern
    wrong = re.search(r"[^0-9a-f*]", nibbles)
    if wrong:
        raise P4Error(
            f"expect: '{wrong.group()}' is no hex digit and no * (nibble {wrong.start() + 1}); a $ ends the line",
            position,
        )
    return Expect(position, port, nibbles if pattern else None, exact)


# ---- statements made of tokens


class _Words:
    """The tokens of one line, one after the other."""

    def __init__(self, line: str, file: str, number: int, start: int) -> None:
        self._line, self._file, self._number, self._at = line, file, number, start
        self.kind, self.text, self._column = "", "", start + 1
        self.step()

    @property
    def position(self) -> Position:
        return Position(self._file, self._number, self._column)

    def step(self) -> None:
        """Go on to the next token; at the end its kind and text are empty."""
        match = _TOKEN.match(self._line, self._at)
        if match is None:
            rest = self._line[self._at :].strip()
            self._column = len(self._line) - len(self._line[self._at :].lstrip()) + 1
            if rest:
                raise P4Error(f"'{rest[:20]}': expected a name, a number or one of . , : ( ) / =", self.position)
            self.kind, self.text = "", ""
            return
        kind = str(match.lastgroup)
        self._column = match.start(kind) + 1
        self.kind, self.text = "name" if kind == "quoted" else kind, match.group(kind)
        self._at = match.end()

    def wrong(self, expected: str) -> P4Error:
        token = f"'{self.text}'" if self.kind else "the end of the line"
        return P4Error(f"found {token}; expected {expected}", self.position)

    def take(self, kind: str, expected: str) -> str:
        if self.kind != kind:
            raise self.wrong(expected)
        text = self.text
        self.step()
        return text

    def skip(self, mark: str) -> bool:
        """Whether this mark stood here; it is passed."""
        if self.kind == "mark" and self.text == mark:
            self.step()
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.skip(mark):
            raise self.wrong(f"'{mark}'")

    def end(self) -> None:
        if self.kind:
            raise self.wrong("the end of the line")

    def name(self, what: str) -> str:
        """a.b[3].c"""
        parts = [self.take("name", what)]
        while True:
            if self.skip("."):
                parts.append("." + self.take("name", f"a name after the dot of {what}"))
            elif self.skip("["):
                parts.append(f"[{self.take('number', 'an index')}]")
                self.need("]")
            elif self.kind == "mark" and self.text == "(" and parts[-1] == ".isValid":
                self.step()
                self.need(")")
                parts.append("()")
            else:
                return "".join(parts)


def _add(words: _Words, position: Position) -> Add:
    table = words.name("a table")
    priority = _integer(words, "a priority") if words.kind == "number" else None
    keys: dict[str, str] = {}
    while True:
        name = words.name("a key like hdr.ipv4.dst:0x0a000001, or an action like drop()")
        if words.kind == "mark" and words.text == "(":
            break
        words.need(":")
        keys[name] = _match(words)
    arguments = _arguments(words)
    label = words.take("name", "a label for the entry") if words.skip("=") else ""
    words.end()
    return Add(position, table, priority, keys, name, arguments, label)


def _match(words: _Words) -> str:
    if words.skip("*"):
        return "*"
    value = _number(words)
    for separator in dict.fromkeys(SEPARATORS.values()):
        if words.skip(separator):
            return f"{value}{separator}{_number(words)}"
    return value


def _number(words: _Words) -> str:
    minus = "-" if words.skip("-") else ""
    return minus + words.take("number", "a number: decimal, 0x… or 0b…")


def _integer(words: _Words, what: str) -> int:
    position, text = words.position, words.take("number", what)
    try:
        return int(text, 0)
    except ValueError:
        excerpt = text if len(text) <= 20 else f"{text[:20]}…"
        remedy = "write it without zeros in front, or as 0x…"
        raise P4Error(f"'{excerpt}' is no whole number; {remedy}", position) from None


def _arguments(words: _Words) -> dict[str, str]:
    words.need("(")
    arguments: dict[str, str] = {}
    if words.skip(")"):
        return arguments
    while True:
        name = words.take("name", "a parameter like port:2")
        words.need(":")
        arguments[name] = _number(words)
        if words.skip(")"):
            return arguments
        if not words.skip(","):
            raise words.wrong("',' or ')'")


def _set_default(words: _Words, position: Position) -> Add:
    table = words.name("a table")
    action = words.name("an action like drop()")
    arguments = _arguments(words)
    words.end()
    return Add(position, table, None, None, action, arguments)


def _check_counter(words: _Words, position: Position) -> CheckCounter:
    counter = words.name("a counter")
    words.need("(")
    what = "an index, or the label of an entry"
    index = str(_integer(words, what)) if words.kind == "number" else words.take("name", what).lstrip("$")
    words.need(")")
    if not words.kind:
        return CheckCounter(position, counter, index)
    unit = words.take("name", "packets or bytes").lower() if words.kind == "name" else "packets"
    if unit not in UNITS:
        raise P4Error(f"check_counter counts packets or bytes, not {unit}", position)
    relation = words.text if words.kind == "mark" else ""
    if relation not in COMPARISONS:
        raise words.wrong(f"one of {' '.join(COMPARISONS)}")
    words.step()
    sign = -1 if words.skip("-") else 1
    number = sign * _integer(words, "a number of packets or bytes")
    words.end()
    return CheckCounter(position, counter, index, unit, relation, number)


def _remove(words: _Words, position: Position) -> Remove:
    label = words.take("name", "all, or the label of an entry")
    words.end()
    return Remove(position, "" if label.lower() == "all" else label.lstrip("$"))


_PARSED: dict[str, Callable[[_Words, Position], Statement]] = {
    "add": _add,
    "setdefault": _set_default,
    "check_counter": _check_counter,
    "remove": _remove,
}
