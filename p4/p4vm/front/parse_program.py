"""P4-16 source to its syntax tree, or the place and reason why not. The grammar is p4.lark, the parser Lark's."""

import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lark
from lark.exceptions import UnexpectedToken, VisitError
from lark.lexer import Lexer

from p4vm.cache import default_cache
from p4vm.front import lexer, parse_errors
from p4vm.front.lexer import Token
from p4vm.front.lexer_scopes import Classifier
from p4vm.front.parse_tree import TreeBuilder
from p4vm.front.preprocess import Preprocessed, preprocess_text
from p4vm.node import Node, children
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree

DEPTH_MAX = 450
"""Levels of the tree, for chains of operators and of else if: those who walk it may recurse that deep."""

ANNOTATIONS_MAX = 16
"""How deep annotations may stand in the bodies of annotations."""

_GRAMMAR = Path(__file__).with_name("p4.lark")
_STARTS = ["program", "annotation_body"]


class _Tokens(Lexer):
    """Hands the parser tokens that are there already, then what ended them early."""

    def __init__(self, configuration: Any) -> None:
        pass

    def lex(self, data: tuple[list[Token], P4Error | None]) -> Iterator[Token]:  # type: ignore[override]
        tokens, fault = data
        yield from tokens
        if fault:
            raise fault


def _grammar_file() -> str:
    """The file that caches the parser's tables; "": none, as others could have written it."""
    name = f"grammar-{lark.__version__}.pickle"
    try:
        cache = default_cache()
    except P4Error:
        return ""
    return str(cache.path(name)) if cache.trusted(name) or not os.path.lexists(cache.path(name)) else ""


class _Parser:
    """The parser for all programs, which reads one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.builder = TreeBuilder(Preprocessed("", ""))
        self.lark = lark.Lark(
            _GRAMMAR.read_text(encoding="utf-8"),
            parser="lalr",
            lexer=_Tokens,
            start=_STARTS,
            maybe_placeholders=True,
            transformer=self.builder,
            cache=_grammar_file() or False,  # Lark checks its content, but not whose it is
        )
        self.marks = {str(terminal.pattern.value): terminal.name for terminal in self.lark.terminals}

    def parse(self, tokens: list[Token], fault: P4Error | None, start: str = "program") -> Any:
        return self.lark.parse((tokens, fault), start=start)

    # ---- annotations

    def annotate(self, scopes: Classifier, index: int) -> tuple[Token, int]:
        """The annotation whose @ is at index, as one token; and the index after it."""
        token, tokens = scopes.tokens[index], scopes.tokens
        name = tokens[index + 1]
        if name.type != "word":
            raise self.error(f"found {parse_errors.quoted(name)}; expected the name of an annotation", scopes, name)
        start, end = index + 2, index + 2
        if name.value == "pragma" and tokens[start].type == "word":
            name, start = tokens[start], start + 1
            line_end = scopes.source.text.find("\n", name.at)
            end = next((at for at in range(start, len(tokens)) if tokens[at].at > line_end >= 0), len(tokens) - 3)
            after, pragma = end, True
        elif tokens[start].value in ("(", "[") and tokens[start].type == "mark":
            end, pragma = self._closing(scopes, start), False
            start, after = start + 1, end + 1
        else:
            after, pragma = end, True
        annotation = tree.Annotation(name.value, position=scopes.source.position(name.at))
        if start < end:
            body = tokens[start:end]
            annotation.tokens = scopes.source.text[body[0].at : body[-1].at + len(body[-1].value)]
            if not pragma:
                self._body(scopes, annotation, body, tokens[start - 1].value == "[")
        return Token("ANNOTATION", annotation, token.at), after

    def _closing(self, scopes: Classifier, start: int) -> int:
        """Index of the bracket that closes the one at start."""
        opens = scopes.tokens[start].value
        closes = ")" if opens == "(" else "]"
        depth = 0
        for index in range(start, len(scopes.tokens)):
            token = scopes.tokens[index]
            if token.type == "mark":
                depth += (token.value == opens) - (token.value == closes)
                if not depth:
                    return index
        raise self.error(f"the annotation has no end; expected '{closes}'", scopes, scopes.tokens[start])

    def _body(self, scopes: Classifier, annotation: tree.Annotation, body: list[Token], structured: bool) -> None:
        """Read an annotation's body as expressions or name = expression pairs; in (…) it may also be anything else."""
        if len(body) == 1 and body[0].type == "string":
            annotation.args = [tree.String(lexer.string(body[0]), position=scopes.source.position(body[0].at))]
            return
        within = Classifier(scopes.source, self.marks, self.annotate)
        within.level, within.end = scopes.level + 1, "']'" if structured else "')'"
        if within.level > ANNOTATIONS_MAX:
            raise self.error(f"annotations nest deeper than {ANNOTATIONS_MAX}", scopes, body[0])
        within.braces = scopes.braces[:1]
        classified = within.run(body)
        try:
            tree_of_body = self.parse(classified, within.fault, "annotation_body")
        except (P4Error, UnexpectedToken) as error:
            if structured:
                fault = error if isinstance(error, P4Error) else parse_errors.explain(error, within)
                raise fault from None
            return
        if isinstance(tree_of_body, dict):
            annotation.pairs = tree_of_body
        else:
            annotation.args = tree_of_body

    @staticmethod
    def error(message: str, scopes: Classifier, token: Token) -> P4Error:
        return P4Error(message, scopes.source.position(token.at))


@functools.cache
def _parser() -> _Parser:
    return _Parser()


def _check_depth(program: tree.SyntaxTree) -> None:
    """Raises P4Error where the tree is deeper than DEPTH_MAX."""
    level: list[Node] = [program]
    for _ in range(DEPTH_MAX):
        below = [child for node in level for child in children(node)]
        if not below:
            return
        level = below
    deepest = next((node.position for node in level if node.position.line), Position(program.position.file, 1, 1))
    raise P4Error(f"nested deeper than {DEPTH_MAX} levels; write it in several statements", deepest)


def parse(source: Preprocessed) -> tree.SyntaxTree:
    """The tree of a preprocessed program. Raises P4Error: where, what was found, what was expected."""
    parser = _parser()
    tokens = lexer.tokenize(source)
    with parser.lock:
        outer, parser.builder.source = parser.builder.source, source
        scopes = Classifier(source, parser.marks, parser.annotate)
        try:
            program: tree.SyntaxTree = parser.parse(scopes.run(tokens), scopes.fault)
        except UnexpectedToken as error:
            raise parse_errors.explain(error, scopes) from None
        except VisitError as error:
            raise (error.orig_exc if isinstance(error.orig_exc, P4Error) else error) from None
        finally:
            parser.builder.source = outer
    program.position = Position(source.file, 1, 1)
    _check_depth(program)
    return program


def parse_text(
    text: str, file: str = "<text>", includes: Sequence[str | Path] = (), defines: Mapping[str, str | int] | None = None
) -> tree.SyntaxTree:
    """As `parse`, of source text that is preprocessed first. Raises P4Error."""
    return parse(preprocess_text(text, file, includes, defines or {}))
