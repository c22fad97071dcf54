"""The meaning of tokens in context: types or values, type brackets or comparisons, keywords or names.

P4's grammar needs that known: `(a) - b` is a cast if `a` is a type, `f<T>(x)` a call if T is one. So one pass over the
tokens follows declarations and scopes, and gives every token the terminal that the grammar (p4.lark) knows it by.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from p4vm.front.lexer import ASSIGNMENTS, CONTEXTUAL, KEYWORDS, OPERATORS, Token, words
from p4vm.front.preprocess import Preprocessed
from p4vm.source import P4Error

BRACKETS_MAX = 150
"""How deep brackets and braces may nest."""

_BODIES = words("control parser table struct header header_union extern switch")
_MEMBERS = words("struct header header_union extern")
"""Braces in which a name declares a member, which hides nothing."""
_NAMES = words("enum error match_kind")
_NAMED = words("action table state package control parser struct header header_union extern enum")
"""Keywords before a declaration's name."""
_TYPES = words("package control parser struct header header_union extern enum")
_TYPE_WORDS = words("bit int varbit bool error string match_kind void tuple list")
_ANGLED = words("bit int varbit tuple list value_set")
_TYPE_ENDS = words("BIT INT BOOL ERROR STRING_TYPE MATCH_KIND VOID TYPE_NAME _SHUT")
_CLOSERS = {")": "(", "]": "[", "}": "{"}
_PROPERTIES = {"key": "KEY", "actions": "ACTIONS", "entries": "ENTRIES"}


@dataclass(slots=True)
class _Brace:
    """An open brace. kind: what it is the body of. names: what is declared in it, True for types. generic: its
    declaration has type parameters, in the scope below."""

    kind: str
    names: dict[str, bool] = field(default_factory=dict)
    parens: int = 0


class Classifier:
    """A pass over a program's tokens."""

    def __init__(
        self, source: Preprocessed, marks: dict[str, str], annotate: "Callable[[Classifier, int], tuple[Token, int]]"
    ) -> None:
        """marks: text -> terminal. annotate: makes one token of the annotation at an index; gives the next index."""
        self.source = source
        self.marks = marks
        self.annotate = annotate
        self.tokens: list[Token] = []
        self.out: list[Token] = []
        self.braces = [_Brace("program")]
        self.open: list[Token] = []
        self.angles: list[int] = []
        self.generic: list[tuple[int, dict[str, bool]]] = []
        self.pending: dict[str, bool] = {}
        self.opener = ""
        self.declares = ""
        self.listed: set[int] = set()
        self.level = 0
        self.end = "the end of the program"
        self.fault: P4Error | None = None

    def run(self, tokens: list[Token]) -> list[Token]:
        """The same tokens with the grammar's terminals. fault: what ended the pass early, if anything did."""
        self.tokens = tokens
        try:
            self._run(tokens)
        except P4Error as error:
            self.fault = error
        return self.out

    def _run(self, tokens: list[Token]) -> None:
        end = Token("mark", "", len(self.source.text))
        tokens += (end, end, end)
        index, count = 0, len(tokens) - 3
        while index < count:
            token = tokens[index]
            kind = token.type
            if kind == "word":
                self.word(token, index)
            elif kind == "mark":
                if token.value == "@":
                    token, index = self.annotate(self, index)
                    self.out.append(token)
                    continue
                self.mark(token, index)
            else:
                token.type = {"number": "NUMBER", "string": "STRING"}.get(kind, "UNKNOWN")
                self.out.append(token)
            index += 1

    # ---- scopes

    def is_type(self, name: str) -> bool:
        for brace_index in range(len(self.braces) - 1, -1, -1):
            for depth, names in reversed(self.generic):
                if depth == brace_index and name in names:
                    return names[name]
            names = self.braces[brace_index].names
            if name in names:
                return names[name]
        return False

    def declare_type(self, name: str) -> None:
        self.braces[0].names[name] = True

    def declare_value(self, name: str) -> None:
        """Hides a type of this name; where there is none, nothing needs noting."""
        brace = self.braces[-1]
        if brace.kind in _MEMBERS or (len(self.braces) == 1 and not brace.parens) or not self.is_type(name):
            return
        (self.pending if brace.parens else brace.names)[name] = False

    # ---- words

    def word(self, token: Token, index: int) -> None:
        word, before = token.value, self.out[-1] if self.out else None
        if word in KEYWORDS:
            token.type = self.marks.get(word, "UNKNOWN")
            self.keyword(word, index)
        elif word in CONTEXTUAL and (kind := self.contextual(word, index)):
            token.type = kind
        else:
            self.name(token, index, before)
        self.out.append(token)

    def keyword(self, word: str, index: int) -> None:
        if word in _BODIES or (word in _NAMES and (word == "enum" or self.tokens[index + 1].value == "{")):
            self.opener = word
        if word in _NAMED or word in ("typedef",):
            self.declares = word

    def contextual(self, word: str, index: int) -> str | None:
        """The terminal of such a word where it is a keyword; else None."""
        brace, after = self.braces[-1], self.tokens[index + 1]
        if brace.parens or (self.out and self.out[-1].type == "DOT"):
            return self.marks["list"] if word == "list" and self._list(index) else None
        top = brace.kind
        if word == "apply":
            return "APPLY" if top == "control" and after.value in ("{", "@") else None
        if word in _PROPERTIES:
            if top != "table" or after.value != "=":
                return None
            self.opener = word
            return _PROPERTIES[word]
        if word == "priority":
            return "PRIORITY" if top == "entries" and after.value == "=" else None
        if word == "state":
            if top != "parser" or after.type != "word":
                return None
            self.declares = self.opener = word
            return "STATE"
        if word == "type":
            if top != "program" or not (after.type == "word" or after.value == "."):
                return None
            self.declares = "typedef"
            return "TYPE"
        return "LIST" if self._list(index) else None

    def _list(self, index: int) -> bool:
        return self.tokens[index + 1].value == "<" and self._starts_type(index + 2)

    def name(self, token: Token, index: int, before: Token | None) -> None:
        """Whether a name is one of a type, and what it declares, if it does."""
        name, after = token.value, self.tokens[index + 1].value
        token.type = "NAME"
        if before is None:
            if self.is_type(name) or self._returned(name, index):
                token.type = "TYPE_NAME"
            return
        kind = before.type
        if token.at in self.listed:
            return
        if self.declares:
            self.declaration(token, index, before, after)
        elif kind in _TYPE_ENDS or kind == "RSQB":
            self.declare_value(name)
            if after == "<":
                self.parameters_of_types(index + 1)
        elif kind == "RPAR" and after in (";", "="):
            self.declare_value(name)
        elif kind == "RBRACE" and after == ";" and len(self.braces) == 1:
            self.declare_type(name)  # typedef struct … { … } name;
        elif (
            (self.braces[-1].kind in _NAMES and kind in ("BRACE", "COMMA"))
            or after in (";", "=", ":")
            or (kind == "DOT" and self._member())
        ):
            return
        elif self.is_type(name) or self._returned(name, index):
            token.type = "TYPE_NAME"

    def declaration(self, token: Token, index: int, before: Token, after: str) -> None:
        """A name after a keyword that declares one: it, or a type before it."""
        name, keyword = token.value, self.declares
        if keyword == "typedef":
            if after in (";", "[") and (before.type in _TYPE_ENDS or before.type in ("RSQB", "RBRACE")):
                self.declares = ""
                self.declare_type(name)
            elif self.is_type(name):
                token.type = "TYPE_NAME"
            return
        if (keyword == "enum" and after != "{" and before.type == "ENUM") or (
            keyword == "enum" and before.type == "DOT"
        ):
            token.type = "TYPE_NAME" if self.is_type(name) else "NAME"
            return
        self.declares = ""
        if keyword == "extern" and (before.type != "EXTERN" or self._function(index, after)):
            self.opener = ""
            self.name(token, index, before)
            return
        if keyword in _TYPES:
            self.declare_type(name)
            if after == "<":
                self.parameters_of_types(index + 1)
        else:
            self.declare_value(name)

    def _function(self, index: int, after: str) -> bool:
        """Whether `extern Name` begins a function's prototype, and not the body of an extern type."""
        if after != "<":
            return after not in ("{", ";")
        depth = 0
        for at in range(index + 1, min(index + 200, len(self.tokens) - 1)):
            depth += {"<": 1, ">": -1, ">>": -2}.get(self.tokens[at].value, 0)
            if depth <= 0:
                return str(self.tokens[at + 1].value) != "{"
        return False

    def _returned(self, name: str, index: int) -> bool:
        """Whether `name f<…, name, …>` declares a function that returns its own type parameter."""
        function, bracket = self.tokens[index + 1], self.tokens[index + 2]
        if function.type != "word" or function.value in KEYWORDS or bracket.value != "<":
            return False
        for at in range(index + 3, min(index + 103, len(self.tokens))):
            token = self.tokens[at]
            if token.type != "word" and token.value != ",":
                return False
            if token.value == name:
                return True
        return False

    def parameters_of_types(self, index: int) -> None:
        """Declare the type parameters in the brackets that open at index, until the declaration's end."""
        names: dict[str, bool] = {}
        for token in self.tokens[index + 1 : index + 101]:
            if token.type == "word":
                names[token.value] = True
                self.listed.add(token.at)
            elif token.value != ",":
                break
        self.generic.append((len(self.braces) - 1, names))

    def _member(self) -> bool:
        """Whether the dot just written follows something that has members; else it opens a global name."""
        if len(self.out) < 2:
            return False
        before = self.out[-2].type
        return before in ("NAME", "TYPE_NAME", "RPAR", "RSQB", "THIS", "ERROR", "_SHUT", "RBRACE", "STRING", "NUMBER")

    # ---- marks

    def mark(self, token: Token, index: int) -> None:
        mark = token.value
        token.type = self.marks.get(mark, "UNKNOWN")
        if mark in "({[":
            self.opened(token, mark)
        elif mark in ")}]":
            self.closed(token, mark)
        elif mark == ";":
            if not self.braces[-1].parens:
                self.ended()
        elif mark == "<":
            if self._opens_types(index):
                token.type = "_OPEN"
                self.angles.append(len(self.open))
            else:
                token.type = "OPERATOR"
        elif mark[0] == ">":
            self.greater(token)
            return
        elif mark in "+-":
            token.type = "SIGN"
        elif mark in "!~":
            token.type = "PREFIX"
        elif mark in OPERATORS:
            token.type = "OPERATOR"
        elif mark in ASSIGNMENTS:
            token.type = "ASSIGN_OPERATOR"
        self.out.append(token)

    def greater(self, token: Token) -> None:
        """> and what begins with it: closes type brackets that were opened at this depth, else an operator."""
        mark, at = token.value, token.at
        while mark.startswith(">") and self.angles and self.angles[-1] == len(self.open):
            self.angles.pop()
            self.out.append(Token("_SHUT", ">", at))
            mark, at = mark[1:], at + 1
        if mark:
            kind = "ASSIGN_OPERATOR" if mark in ASSIGNMENTS else "OPERATOR" if mark != "=" else self.marks["="]
            self.out.append(Token(kind, mark, at))

    def _opens_types(self, index: int) -> bool:
        """Whether the < at index opens type arguments or parameters."""
        before = self.out[-1] if self.out else None
        if before is None:
            return False
        if before.value in _ANGLED or before.type == "TYPE_NAME":
            return True
        if before.type != "NAME":
            return False
        if len(self.out) > 1 and (self.out[-2].type in _TYPE_ENDS or self.out[-2].value in _TYPES):
            return True
        return self._starts_type(index + 1)

    def _starts_type(self, index: int) -> bool:
        token, after = self.tokens[index], str(self.tokens[index + 1].value)
        if token.type != "word":
            return False
        if token.value in _TYPE_WORDS:
            return after != "."
        return token.value == "_" or (after != "." and after != "(" and self.is_type(token.value))

    def opened(self, token: Token, mark: str) -> None:
        if len(self.open) >= BRACKETS_MAX:
            where = self.source.position(token.at)
            raise P4Error(f"brackets nest deeper than {BRACKETS_MAX}; write it in several statements", where)
        self.open.append(token)
        brace = self.braces[-1]
        if mark != "{":
            brace.parens += 1
            return
        kind = "block"
        if not brace.parens:
            if brace.kind == "switch" and self.out[-1].type == "COLON":
                token.type = "CASE_OPEN"
            elif self.opener:
                kind, self.opener = self.opener, ""
        self.braces.append(_Brace(kind, self.pending if not brace.parens else {}))
        if not brace.parens:
            self.pending = {}

    def closed(self, token: Token, mark: str) -> None:
        if not self.open or self.open[-1].value != _CLOSERS[mark]:
            self.unbalanced(token, mark)
        self.open.pop()
        while self.angles and self.angles[-1] > len(self.open):
            self.angles.pop()
        if mark != "}":
            self.braces[-1].parens -= 1
            return
        self.braces.pop()
        if not self.braces[-1].parens:
            self.ended(False)

    def unbalanced(self, token: Token, mark: str) -> None:
        where = self.source.position(token.at)
        if not self.open:
            raise P4Error(f"'{mark}' closes nothing; remove it, or open it before", where)
        raise P4Error(f"found '{mark}', but {self.still_open()}", where)

    def still_open(self) -> str:
        """The message that names the innermost open bracket and its closing bracket."""
        last = self.open[-1]
        closer = next(close for close, opens in _CLOSERS.items() if opens == last.value)
        return f"the '{last.value}' of {self.source.position(last.at)} isn't closed yet; expected '{closer}'"

    def ended(self, semicolon: bool = True) -> None:
        """A declaration or statement is over: its type parameters are, too."""
        if semicolon:
            self.opener = self.declares = ""
            self.pending = {}
        depth = len(self.braces) - 1
        while self.generic and self.generic[-1][0] >= depth:
            self.generic.pop()
