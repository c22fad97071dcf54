"""Text of a preprocessed P4 program to plain tokens; their meaning in context is found by lexer_scopes.py."""

import re
from typing import Any, ClassVar

from p4vm.front.preprocess import Preprocessed
from p4vm.source import P4Error

DIGITS_MAX = 4000
"""Digits of one number: beyond them Python would refuse to read or print it."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = words(
    "abstract action bit bool break const continue control default else enum error exit extern false for header"
    " header_union if in inout int match_kind out package parser return select string struct switch table this"
    " transition true tuple typedef value_set varbit void _"
)
CONTEXTUAL = words("actions apply entries key list priority state type")
"""Keywords in some places, names everywhere else."""

OPERATORS = words("* / % << >> < > <= >= == != & | ^ && || ++ |+| |-|")
ASSIGNMENTS = words("*= /= %= += -= |+|= |-|= <<= >>= &= |= ^=")

_TOKENS = re.compile(
    r"""\s+ | (?://[^\n]*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\d\w*)
    | (?P<string>"(?:[^"\\]|\\[^\0])*")
    | (?P<mark>\{\#\}|\.\.\.|&&&|\|\+\|=|\|-\|=|<<=|>>=|\|\+\||\|-\||\+:|\.\.|<<|>>|<=|>=|==|!=|&&|\|\||\+\+
        |[-+*/%&|^]=|[-+*/%&|^<>=!~?:;,.(){}\[\]@])
    | (?P<other>.)""",
    re.VERBOSE | re.ASCII,
)
_NUMBER = re.compile(
    r"(?:(?P<width>\d+)(?P<sign>[ws]))?"
    r"(?:0[xX](?P<hex>[0-9a-fA-F_]+)|0[dD](?P<dec>[0-9_]+)|0[oO](?P<oct>[0-7_]+)|0[bB](?P<bin>[01_]+)"
    r"|(?P<plain>\d[\d_]*))",
    re.ASCII,
)
_BASES = {"hex": 16, "dec": 10, "oct": 8, "bin": 2, "plain": 10}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


class Token:
    """type: a terminal of the grammar; before classification word, number, string, mark or other. value: its text, of
    an annotation its tree. at: offset in the text."""

    __slots__ = ("at", "type", "value")

    # Lark asks for these where it reports errors; places are known by offset here.
    start_pos: ClassVar[None] = None
    end_pos: ClassVar[None] = None
    line: ClassVar[None] = None
    column: ClassVar[None] = None
    end_line: ClassVar[None] = None
    end_column: ClassVar[None] = None

    def __init__(self, kind: str, value: Any, at: int) -> None:
        self.type = kind
        self.value = value
        self.at = at


def tokenize(source: Preprocessed) -> list[Token]:
    """All tokens, in order. Raises P4Error where a string, a comment or a number has no end or form."""
    tokens: list[Token] = []
    for match in _TOKENS.finditer(source.text):
        kind = match.lastgroup
        if kind is None:
            continue
        token = Token(kind, match[0], match.start())
        if kind == "other":
            _refuse(source, token)
        elif kind == "mark" and token.value == "/" and source.text.startswith("/*", token.at):
            raise P4Error("the comment that starts here has no end; expected */", source.position(token.at))
        tokens.append(token)
    return tokens


def _refuse(source: Preprocessed, token: Token) -> None:
    """Annotations may hold any character, so only a string without end is wrong already."""
    if token.value == '"':
        raise P4Error('the string that starts here has no end; expected "', source.position(token.at))


def number(source: Preprocessed, token: Token) -> tuple[int, int | None, bool]:
    """Value, width (None: any), whether signed. Raises P4Error: malformed, or absurdly long."""
    match = _NUMBER.fullmatch(token.value)
    where = source.position(token.at)
    if match is None:
        forms = "a number such as 10, 0xFF, 8w255, 4s7 or 0b1010"
        raise P4Error(f"malformed number {token.value[:40]}; expected {forms}", where)
    if len(token.value) > DIGITS_MAX:
        raise P4Error(f"a number of {len(token.value)} digits; at most {DIGITS_MAX} are read", where)
    base = next(name for name in _BASES if match[name] is not None)
    digits = match[base].replace("_", "")
    if not digits:
        raise P4Error(f"malformed number {token.value}; expected digits after the base", where)
    width = int(match["width"]) if match["width"] else None
    return int(digits, _BASES[base]), width, match["sign"] == "s"


def string(token: Token) -> str:
    """The characters that a string literal stands for."""
    body: str = token.value[1:-1]
    if "\\" not in body:
        return body
    return re.sub(r"\\([^\0])", lambda match: _ESCAPES.get(match[1], match[0]), body)
