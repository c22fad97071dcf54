"""How records with options are written: a name, then `:option=value`, with commas between: `p3:slice=40000`.

A record is a frozen dataclass with a `name`; its fields that can be written are made by `option`. Sizes take B, kB, MB,
GB (powers of 1000), KiB, MiB, GiB or nothing (bytes); times take ns, us, ms, s.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, TypeVar

T = TypeVar("T")

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([A-Za-zµ]*)")
_SIZES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WORD_MAX = 60
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}


def option(word: str, read: Callable[[str], Any], default: Any) -> Any:
    """A field that can be written. word: how. read: makes its value of a text, or raises ValueError with what must be
    there instead."""
    return field(default=default, metadata={"word": word, "read": read})


def size(text: str) -> int:
    """Bytes."""
    return _scaled(text, _SIZES, "a size of 1 byte or more such as 4MB")


def time_ns(text: str) -> int:
    """Nanoseconds."""
    return _scaled(text, _TIMES, "a time of 1 ns or more such as 1ms")


def _scaled(text: str, units: dict[str, int], what: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match and match[2] in units and (value := round(float(match[1]) * units[match[2]])) >= 1:
        return value
    raise ValueError(what)


def _number(text: str) -> float:
    """NaN, which is in no range, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def per_byte(text: str) -> float:
    """Nanoseconds per byte."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise ValueError("a time per byte in ns, such as 8")
    return value


def count(low: int) -> Callable[[str], int]:
    """A whole number from `low`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise ValueError(f"a whole number from {low}")
        return int(text)

    return read


def decimal(high: float = math.inf) -> Callable[[str], float]:
    """A number from 0 to below `high`."""

    def read(text: str) -> float:
        if not 0 <= (value := _number(text)) < high:
            raise ValueError("a number from 0" + (f" to below {high:g}" if high < math.inf else ""))
        return value

    return read


def positive(high: float = math.inf) -> Callable[[str], float]:
    """A number above 0, up to `high`."""

    def read(text: str) -> float:
        if not 0 < (value := _number(text)) <= high or value == math.inf:
            raise ValueError("a number above 0" + (f", up to {high:g}" if high < math.inf else ""))
        return value

    return read


share = positive(1)
"""A number above 0, up to 1."""


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return read


def parse(kind: str, text: str, table: Mapping[str, type[T]]) -> T:
    """The record that `text` names in a table of frozen dataclasses, with options: "p3:slice=40000". kind: for errors.

    Raises ValueError, one line that lists what is allowed.
    """
    name, colon, rest = text.partition(":")
    if name not in table:
        raise ValueError(f"{kind} '{_shortened(name)}' is unknown{choices(name, table)}")
    options = {entry.metadata["word"]: entry for entry in _options(table[name])}
    values: dict[str, Any] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if key not in options or not equals:
            raise ValueError(f"{kind} {name}: option '{_shortened(word)}' is unknown{option_choices(key, options)}")
        option = options[key]
        if option.name in values:
            raise ValueError(f"{kind} {name}: {key} is given twice")
        try:
            values[option.name] = option.metadata["read"](value)
        except ValueError as error:
            raise ValueError(f"{kind} {name}: {key}={_shortened(value)}: must be {error}") from None
    return table[name](**values)


def close_match(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is like an unknown one, else nothing."""
    close = difflib.get_close_matches(name[:_WORD_MAX], list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def choices(name: str, known: Iterable[str], what: str = "allowed") -> str:
    """The end of an error about an unknown name: all known ones, and the one that is most like it. what: they are."""
    names = list(known)
    return f"; {what}: {', '.join(names)}{close_match(name, names)}"


def option_choices(name: str, known: Iterable[str]) -> str:
    """The same about an unknown option, which is written OPTION=VALUE."""
    names = list(known)
    allowed = f"; allowed: {', '.join(f'{option}=…' for option in names)}" if names else "; it has none"
    return f"{allowed}{close_match(name, names)}"


def _options(of: Any) -> list[Field[Any]]:
    """A dataclass's fields that can be written."""
    return [entry for entry in fields(of) if "word" in entry.metadata]


def _shortened(text: str) -> str:
    return text if len(text) <= _WORD_MAX else text[:_WORD_MAX] + "…"


def describe(record: Any, default: bool = True) -> str:
    """A record as `parse` reads it: "bytescheduler:partition=4000000,tune=0". default: options that are as by default,
    too."""
    words = []
    for entry in _options(record):
        value = getattr(record, entry.name)
        if value is not None and (default or value != entry.default):
            text = f"{value:.9g}" if isinstance(value, float) else str(value)
            words.append(f"{entry.metadata['word']}={text}{'ns' if entry.metadata['read'] is time_ns else ''}")
    return f"{record.name}:{','.join(words)}" if words else str(record.name)
