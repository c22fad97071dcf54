"""C preprocessing of P4 sources: includes, macros, conditions, with every place kept as its author sees it.

The work is pcpp's. Added are places of what macros made, bounds on what a program can ask for, one kind of error, and
silence: nothing is ever printed.
"""

import io
import itertools
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pcpp  # type: ignore[import-untyped]
import pcpp.preprocessor  # type: ignore[import-untyped]

from p4vm.source import P4Error, Position

INCLUDE_DEPTH_MAX = 40
FILE_BYTES_MAX = 8 << 20
EXPANSION_TOKENS_MAX = 8_000_000
"""Tokens looked at while macros are expanded: some 25 times what our switch program needs, 2 or 3 seconds of work."""

OWN_INCLUDES = Path(__file__).parent.parent / "include"

pcpp.preprocessor.clock = float  # it times every include, which nobody reads and which can take longer than the work

_MACRO_NAME = re.compile(r"[A-Za-z_]\w*(\([^()]*\))?")
_NEEDS = {
    "include": '<file> or "file"',
    **dict.fromkeys(("define", "undef", "ifdef", "ifndef"), "the name of a macro"),
    **dict.fromkeys(("if", "elif"), "a condition"),
}
_WORD = re.compile(r"\w")


@dataclass(slots=True)
class Preprocessed:
    """text: what is left to parse. starts: offsets where a new place begins; places: file, line, column there, and
    whether what follows was written there too (not so in what macros make). files: all that were read, the program
    first. warnings: texts of #warning, with their places."""

    text: str
    file: str
    starts: list[int] = field(default_factory=list)
    places: list[tuple[str, int, int, bool]] = field(default_factory=list)
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def position(self, offset: int) -> Position:
        """Where the character at offset of `text` was written."""
        at = bisect_right(self.starts, offset) - 1
        if at < 0:
            return Position(self.file, 1, 1)
        file, line, column, in_source = self.places[at]
        return Position(file, line, column + (offset - self.starts[at] if in_source else 0))


class _Reader(pcpp.Preprocessor):  # type: ignore[misc]
    """pcpp with our folders, bounds and errors."""

    def __init__(self, folders: Sequence[str]) -> None:
        super().__init__()
        self.line_directive = None
        self.rewrite_paths: list[tuple[str, str]] = []
        self.path = list(folders)
        self.searched = [folder or "." for folder in folders]
        self.files: list[str] = []
        self.lines: dict[str, list[str]] = {}
        self.line_starts: dict[str, list[int]] = {}
        self.renumbered: dict[str, list[tuple[int, int, str]]] = {}
        self.warnings: list[str] = []
        self.work = 0

    # ---- places

    def enter(self, path: str, display_path: str, text: str) -> str:
        """Note a file that is about to be read; what pcpp is to read."""
        absolute = os.path.abspath(path)
        self.rewrite_paths.insert(0, (re.escape(absolute) + r"\Z", display_path.replace("\\", r"\\")))
        self.files.append(path)
        text = text.removeprefix("\ufeff")
        lines = [line.rstrip() for line in text.splitlines()]
        self.lines[display_path] = lines
        self.line_starts[display_path] = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
        return text

    def place(self, token: Any) -> tuple[str, int, int, bool]:
        """File, line and column of a token; of what a macro made (then False), those of the macro's use."""
        file, line = token.source, token.lineno
        in_source = getattr(token, "from_source", False) and file in self.line_starts
        if in_source:
            starts = self.line_starts[file]
            line = bisect_right(starts, token.lexpos)
            column = token.lexpos - starts[line - 1] + 1
        else:
            column = self._use(token, self.lines.get(file, []), line)
        changes = self.renumbered.get(file)
        if changes and (at := bisect_right(changes, (line,)) - 1) >= 0:
            after, number, name = changes[at]
            file, line = name, number + line - after - 1
        return file, line, column, in_source

    @staticmethod
    def _use(token: Any, lines: Sequence[str], line: int) -> int:
        """Column where the macro stands that made this token; 1 if it isn't in that line."""
        names = getattr(token, "expanded_from", ())
        if not names or not 0 < line <= len(lines):
            return 1
        match = re.search(rf"\b{re.escape(names[-1])}\b", lines[line - 1])
        return match.start() + 1 if match else 1

    def directive_position(self) -> Position:
        token = self.lastdirective
        if token is None:
            return Position(self.files[0] if self.files else "", 1, 1)
        token.from_source = True
        return Position(*self.place(token)[:3])

    # ---- what pcpp asks and tells

    def group_lines(self, text: str, source: str) -> Iterator[list[Any]]:
        for line in super().group_lines(text, source):
            for token in line:
                token.from_source = True
            yield line

    def define(self, tokens: Any) -> None:
        super().define(tokens)
        if not isinstance(tokens, str):
            for token in self.macros[tokens[0].value].value:
                token.from_source = False

    def expand_macros(self, tokens: list[Any], expanding_from: Sequence[str] = ()) -> list[Any]:
        self.work += len(tokens)
        if self.work > EXPANSION_TOKENS_MAX:
            place = next((token for token in tokens if token.source), None)
            where = Position(place.source, place.lineno, 1) if place else self.directive_position()
            raise P4Error(f"macros expand to more than {EXPANSION_TOKENS_MAX:,} tokens", where)
        expanded: list[Any] = super().expand_macros(tokens, list(expanding_from))
        if expanding_from:
            self.work += len(expanded) * len(expanding_from)  # each level looks at all of it again
        return expanded

    def on_error(self, file: str, line: int, message: str) -> None:
        last = self.directive_position()
        where = Position(file, line, 1) if file in self.lines and line != last.line else last
        message = " ".join(message.split())
        if match := re.match(r"Could not evaluate .*\(passed to evaluator: '(.*)'\)", message):
            message = f"the condition can't be evaluated: {match[1]}"
        raise P4Error(message[:1].lower() + message[1:], where)

    def on_file_open(self, is_system_include: bool, path: str) -> io.StringIO:
        if self.include_depth > INCLUDE_DEPTH_MAX:
            raise P4Error(f"includes nest deeper than {INCLUDE_DEPTH_MAX}", self.directive_position())
        text = _read(path)
        return io.StringIO(self.enter(path, os.path.relpath(path) if _below(path) else path, text))

    def on_include_not_found(self, malformed: bool, system: bool, folder: str, name: str) -> str:
        where = self.directive_position()
        if malformed:
            raise P4Error(f'#include {name}: expected <file> or "file"', where)
        including_folder = [] if system or not folder else [folder]
        folders = list(dict.fromkeys([*map(_display_path, including_folder), *map(_display_path, self.searched)]))
        raise P4Error(f"#include: no file {name!r} in {', '.join(folders)}; name its folder with -I", where)

    def on_directive_handle(self, directive: Any, tokens: list[Any], passing: bool, before: list[Any]) -> bool:
        self.lastdirective = directive
        if not tokens and (needed := _NEEDS.get(directive.value)):
            raise P4Error(f"#{directive.value}: expected {needed} after it", self.directive_position())
        return True

    def on_directive_unknown(self, directive: Any, tokens: list[Any], passing: bool, before: list[Any]) -> bool:
        name, text = directive.value, "".join(token.value for token in tokens).strip()
        self.lastdirective = directive
        if name == "error":
            raise P4Error(f"#error {text}", self.directive_position())
        if name == "warning":
            self.warnings.append(f"{self.directive_position()}: #warning {text}")
        elif name == "line" or name.isdigit():
            self._renumber(directive, text if name == "line" else f"{name} {text}")
        elif name != "pragma":
            known = "define, undef, include, if, ifdef, ifndef, elif, else, endif, error, warning, line or pragma"
            raise P4Error(f"unknown directive #{name}; expected {known}", self.directive_position())
        return True

    def _renumber(self, directive: Any, text: str) -> None:
        match = re.match(r'(\d{1,9})(?:\s+"([^"]*)")?', text)
        if not match:
            raise P4Error("#line: expected a line number, and perhaps a file name", self.directive_position())
        changes = self.renumbered.setdefault(directive.source, [])
        name = match[2] or (changes[-1][2] if changes else directive.source)
        changes.append((directive.lineno, int(match[1]), name))
        changes.sort()


def _below(path: str) -> bool:
    return os.path.abspath(path).startswith(os.getcwd() + os.sep)


def _display_path(folder: str) -> str:
    return os.path.relpath(folder) if _below(folder) else folder


def _read(path: str) -> str:
    """Raises OSError, also for what is no plain file or too large."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no file")
    if status.st_size > FILE_BYTES_MAX:
        raise OSError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _needs_space(before: str, after: str) -> bool:
    """Whether two tokens from different places would become one when written side by side."""
    if before.isspace() or after.isspace():
        return False
    word = bool(_WORD.match(after))
    return bool(_WORD.match(before)) is word and (word or after not in "()[]{};,")


def _join(reader: _Reader, tokens: Iterator[Any], result: Preprocessed) -> None:
    """Write the tokens side by side into result's text, and note where a new place begins."""
    pieces: list[str] = []
    length, last_source, last_line, last_end, last_start = 0, "", 0, -1, -1
    end = "\n"
    for token in tokens:
        value = token.value
        if not value or value == "\n":
            value = "\n" if value else " "
            if end != "\n":
                pieces.append(value)
                length += 1
                end = value
            last_end = last_start = -1
            continue
        start = token.lexpos
        if start not in (last_end, last_start) or token.lineno != last_line or token.source != last_source:
            if _needs_space(end, value[0]):
                pieces.append(" ")
                length += 1
            result.starts.append(length)
            result.places.append(reader.place(token))
        last_source, last_line, last_start, last_end = token.source, token.lineno, start, start + len(value)
        pieces.append(value)
        length += len(value)
        end = value[-1]
    result.text = "".join(pieces)


def _run(reader: _Reader, text: str, path: str, defines: Mapping[str, str | int]) -> Preprocessed:
    result = Preprocessed("", path)
    try:
        for name, value in defines.items():
            if not _MACRO_NAME.fullmatch(name):
                raise P4Error(f"-D {name}: expected the name of a macro")
            reader.define(f"{name} {value}")
        text = reader.enter(path, path, text)
        reader.temp_path.insert(0, os.path.dirname(os.path.abspath(path)))
        _join(reader, reader.parsegen(text, path, os.path.abspath(path)), result)
    except P4Error:
        raise
    except RecursionError:
        raise P4Error("macros or includes nest too deeply", reader.directive_position()) from None
    except Exception:  # pcpp meets malformed directives with whatever it stumbles over
        last = reader.lastdirective
        what = f"malformed #{last.value}" if last else "malformed directive"
        raise P4Error(what, reader.directive_position()) from None
    result.files = tuple(dict.fromkeys(reader.files))
    result.warnings = tuple(reader.warnings)
    return result


def _folders(folder: str, includes: Sequence[str | Path]) -> list[str]:
    return [folder, *map(str, includes), str(OWN_INCLUDES)]


def preprocess(
    path: str | Path, includes: Sequence[str | Path] = (), defines: Mapping[str, str | int] = {}
) -> Preprocessed:
    """The program at path, ready to be parsed. Included files: from its own folder, `includes`, the engine's own.

    Raises P4Error: a file that can't be read, a malformed directive, #error, runaway macros.
    """
    path = str(path)
    try:
        text = _read(path)
    except OSError as error:
        raise P4Error(f"{path}: can't read it: {error.strerror or error}") from None
    return _run(_Reader(_folders(os.path.dirname(path), includes)), text, path, defines)


def preprocess_text(
    text: str, file: str = "<text>", includes: Sequence[str | Path] = (), defines: Mapping[str, str | int] = {}
) -> Preprocessed:
    """As `preprocess`, of a program that isn't in a file. Raises P4Error."""
    reader = _Reader(_folders(os.path.dirname(file), includes))
    result = _run(reader, text, file, defines)
    result.files = result.files[1:]
    return result
