"""The text of a syntax error: what was found, what could be there instead, and what to do where that is plain."""

from lark.exceptions import UnexpectedToken

from p4vm.front.lexer import KEYWORDS, Token, words
from p4vm.front.lexer_scopes import Classifier
from p4vm.source import P4Error

ALTERNATIVES_MAX = 6

_EXPRESSION = words("NUMBER STRING TRUE FALSE PREFIX INVALID")
"""Where all of these can stand, an expression can; its other beginnings are then not named one by one."""
_EXPRESSION_STARTS = _EXPRESSION | words("NAME TYPE_NAME THIS SIGN PAREN BRACE DOT DOTS ERROR LPAR LBRACE")
_TYPE = words("BIT INT VARBIT TUPLE TYPE_NAME BOOL")
_TYPE_STARTS = _TYPE | words("ERROR STRING_TYPE MATCH_KIND LIST DOT")
_STATEMENT = words("IF RETURN EXIT SWITCH SEMICOLON")
_STATEMENT_STARTS = _STATEMENT | words("FOR BREAK CONTINUE CONST BRACE NAME THIS PAREN DOT") | _TYPE_STARTS
_DECLARATION = words("CONTROL PARSER TYPEDEF EXTERN PACKAGE")
_DECLARATION_STARTS = (
    _DECLARATION
    | words("CONST STRUCT HEADER HEADER_UNION ENUM ERROR MATCH_KIND TYPE ACTION VOID SEMICOLON")
    | _TYPE_STARTS
)
_CONTINUED = words("OPERATOR SIGN QMARK BRACKET LSQB DOT PAREN LPAR _OPEN __AND3 __RANGE __SIZED ASSIGN_OPERATOR")
"""Tokens that can continue a complete expression."""
_GROUPS = (
    (_DECLARATION, _DECLARATION_STARTS, "a declaration"),
    (_STATEMENT, _STATEMENT_STARTS, "a statement"),
    (_EXPRESSION, _EXPRESSION_STARTS, "an expression"),
    (_TYPE, _TYPE_STARTS, "a type"),
)
_WORDS = {
    "NAME": "a name",
    "TYPE_NAME": "the name of a type",
    "NUMBER": "a number",
    "STRING": "a string",
    "OPERATOR": "an operator",
    "SIGN": "an operator",
    "PREFIX": "'!' or '~'",
    "ASSIGN_OPERATOR": "an assignment",
    "_OPEN": "'<'",
    "_SHUT": "'>'",
    "CASE_OPEN": "'{'",
    "$END": "the end of the program",
}
_LIBRARIES = {
    "core.p4": words("packet_in packet_out"),
    "v1model.p4": words(
        "standard_metadata_t register counter direct_counter meter direct_meter action_profile action_selector"
        " CounterType MeterType HashAlgorithm CloneType Checksum16 V1Switch"
    ),
}
_FOREIGN = {"while": "use for (…; …; …)", "goto": "use if and else", "do": "use for (…; …; …)"}
_ORDER = ("';'", "a declaration", "a statement", "a name", "a type", "an expression")


def quoted(token: Token) -> str:
    if token.type == "$END" or (token.value == "" and token.type != "STRING"):
        return "the end of the program"
    if token.type == "ANNOTATION":
        return "an annotation"
    text = " ".join(str(token.value).split())
    return f"'{text if len(text) <= 40 else text[:37] + '...'}'"


def explain(error: UnexpectedToken, scopes: Classifier) -> P4Error:
    """The error of a parser that could not go on, in words."""
    token: Token = error.token
    if token.type == "$END":
        token = Token("$END", "", len(scopes.source.text))
    tokens = scopes.out
    index = next((at for at, other in enumerate(tokens) if other is token), len(tokens))
    before = tokens[index - 1] if index else None
    expected = set(error.accepts or error.expected)
    ended = token.type == "$END"
    where = scopes.source.position(token.at if not ended else before.at if before else 0)
    if ended and scopes.open:
        return P4Error(f"found the end of the program, but {scopes.still_open()}", where)
    if special := _special(token, before, expected, scopes, tokens[index + 1] if index + 1 < len(tokens) else None):
        return special
    if foreign := _foreign(token, before, scopes):
        return foreign
    names = _named(expected, scopes.marks)
    seen_text = scopes.end if ended else quoted(token)
    if token.type == "UNKNOWN":
        seen_text += ", which is no part of P4"
    if "';'" in names and before is not None and not ended:
        last = scopes.source.position(before.at + len(str(before.value)) - 1)
        if last.line and (last.file, last.line) != (where.file, where.line):
            last = scopes.source.position(before.at)
            message = f"found {seen_text} on a later line; expected ';' after {quoted(before)}"
            return P4Error(message, last)
    return P4Error(f"found {seen_text}; expected {_listed(names)}", where)


def _special(
    token: Token, before: Token | None, expected: set[str], scopes: Classifier, after: Token | None
) -> P4Error | None:
    """Errors whose reason is known better than by what the grammar would take."""
    if token.type == "NAME" and "TYPE_NAME" in expected and "NAME" not in expected:
        return _no_type(token, scopes)
    if token.type == "NAME" and before is not None and before.type == "NAME" and "EQUAL" in expected:
        return _no_type(before, scopes)
    generic = token.value == "<" and before is not None and before.type == "NAME"
    if generic and before is not None and "EQUAL" in expected and "LPAR" in expected:
        return _no_type(before, scopes)
    if token.value in KEYWORDS and "NAME" in expected and "NUMBER" not in expected:
        where = scopes.source.position(token.at)
        return P4Error(f"found '{token.value}', which is a keyword; expected a name", where)
    if token.type == "TYPE_NAME" and "NAME" in expected and (after is None or after.type != "DOT"):
        where = scopes.source.position(token.at)
        return P4Error(
            f"found '{token.value}', which names a type; expected {_listed(_named(expected, scopes.marks))}", where
        )
    return None


def _statement(token: Token, scopes: Classifier) -> list[Token]:
    """The tokens before this one that are of the same statement."""
    tokens: list[Token] = []
    for earlier in reversed(scopes.out):
        if earlier.at < token.at:
            if earlier.value in (";", "{", "}"):
                break
            tokens.append(earlier)
    return tokens


def _foreign(token: Token, before: Token | None, scopes: Classifier) -> P4Error | None:
    """Habits from other languages."""
    where = scopes.source.position(token.at)
    for earlier in _statement(token, scopes):
        if remedy := _FOREIGN.get(str(earlier.value)):
            return P4Error(f"P4 has no '{earlier.value}'; {remedy}", scopes.source.position(earlier.at))
    if token.value == "++" or (token.value == "-" and before is not None and before.value == "-"):
        return P4Error(f"P4 has no '{'++' if token.value == '++' else '--'}' for counting; use += 1 or -= 1", where)
    return None


def _no_type(name: Token, scopes: Classifier) -> P4Error:
    """A name that stands where a type must; it may be declared further down."""
    where = scopes.source.position(name.at)
    text = str(name.value)
    for index, token in enumerate(scopes.out):
        if token.value == text and token.at > name.at and index and scopes.out[index - 1].value in _DECLARING:
            place = scopes.source.position(token.at)
            return P4Error(f"type {text} is declared only later, at {place}; expected it before its first use", where)
    library = next((library for library, types in _LIBRARIES.items() if text in types), None)
    remedy = f"include <{library}> first" if library else "expected a type"
    return P4Error(f"'{text}' is no type that is declared before this; {remedy}", where)


_DECLARING = words("struct header header_union enum control parser extern package")


def _named(expected: set[str], marks: dict[str, str]) -> list[str]:
    """The alternatives in words, most telling first."""
    left = {name for name in expected if name != "ANNOTATION"}
    words: list[str] = []
    for typical, starts, word in _GROUPS:
        if typical <= left:
            words.append(word)
            left -= starts
    texts = {kind: text for text, kind in marks.items()}
    continued = {kind for kind in left if kind in _CONTINUED or texts.get(kind) in ("&&&", "..", "+:")}
    if "OPERATOR" in left:
        left -= continued
        words.append("an operator")
    for kind in sorted(left):
        text = _WORDS.get(kind) or f"'{texts.get(kind, kind.lower())}'"
        if text not in words:
            words.append(text)
    rank = {word: number for number, word in enumerate(_ORDER)}
    return sorted(words, key=lambda word: (word == "an operator", rank.get(word, len(rank)), word))


def _listed(words: list[str]) -> str:
    alternatives = words[:ALTERNATIVES_MAX]
    if len(words) > len(alternatives):
        return ", ".join(alternatives) + " …"
    return (
        alternatives[0]
        if len(alternatives) == 1
        else ", ".join(alternatives[:-1]) + " or " + alternatives[-1]
        if alternatives
        else "nothing more"
    )
