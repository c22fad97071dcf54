"""What a schedule is: its name, its options and how they are written, its plans, and what reports say of it. Pure.

A policy is written as in a method's name, `p3` or `bytescheduler:partition=1MB,credit=4MB`; `table.parse_policy` reads
it. Sizes take B, kB, MB, GB (powers of 1000), KiB, MiB, GiB or nothing (bytes); times take ns, us, ms, s.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

from transport.schedule.plan import Transfer
from transport.schedule.profile import LinearCost, Profile

T = TypeVar("T")

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([A-Za-zµ]*)")
_SIZES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WORD_MAX = 60
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True)
class Point:
    """What tuning tries: both in bytes."""

    partition_bytes: int
    credit_bytes: int


class Tunable(NamedTuple):
    """steps: how many points may be tried while training runs. first: where that begins. at: the policy of a point."""

    steps: int
    first: Point
    at: Callable[[Point], "Policy"]


@dataclass(frozen=True)
class Policy(ABC):
    """A schedule. A subclass is a frozen dataclass: its fields are its options, each made by `option`.

    name: as in a method's name. label, summary: how reports name it, and what they say it does, as a clause. urgent:
    whether its transfers differ in priority. reads_graph: whether its plan needs the inputs of the profile's layers.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    urgent: ClassVar[bool] = False
    reads_graph: ClassVar[bool] = False

    @abstractmethod
    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        """The transfers of one iteration, in order of their keys; every element of every tensor is in one of them.

        cost: of a transfer, if it is known. Raises ValueError where there is no plan without one.
        """

    @property
    def needs_cost(self) -> bool:
        """Whether its plan depends on a transfer's cost that its options leave open."""
        return False

    def with_cost(self, fit: Callable[[], LinearCost]) -> "Policy":
        """With options of a transfer's cost that were left open, as `fit` finds them; called only if there are any."""
        return self

    @property
    def credit_bytes(self) -> int | None:
        """How many bytes may lie below its queue; None: it bounds nothing."""
        return None

    @property
    def cycle_ns(self) -> int:
        """What is ready starts only at the end of a cycle of this length; 0: at once."""
        return 0

    @property
    def tuning(self) -> Tunable | None:
        """What is tuned while training runs, if anything."""
        return None


def option(word: str, read: Callable[[str], Any], default: Any) -> Any:
    """A field of a policy. word: how it is written. read: makes its value of a text, or raises ValueError with what
    must be there instead."""
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


def per_byte(text: str) -> float:
    """Nanoseconds per byte."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a time per byte in ns, such as 8")
    return value


def count(low: int) -> Callable[[str], int]:
    """A whole number from `low`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise ValueError(f"a whole number from {low}")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return read


def parse(kind: str, text: str, table: Mapping[str, type[T]]) -> T:
    """What `text` names in a table of frozen dataclasses, with its options: "p3:slice=40000". kind: for errors.

    Raises ValueError, one line that lists what is allowed.
    """
    name, colon, rest = text.partition(":")
    if name not in table:
        raise ValueError(f"{kind} '{_shown(name)}' is unknown; allowed: {', '.join(table)}")
    options = {one.metadata["word"]: one for one in _options(table[name])}
    values: dict[str, Any] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if key not in options or not equals:
            allowed = f"allowed: {', '.join(f'{option}=…' for option in options)}" if options else "it has none"
            raise ValueError(f"{kind} {name}: option '{_shown(word)}' is unknown; {allowed}")
        option = options[key]
        if option.name in values:
            raise ValueError(f"{kind} {name}: {key} is given twice")
        try:
            values[option.name] = option.metadata["read"](value)
        except ValueError as error:
            raise ValueError(f"{kind} {name}: {key}={_shown(value)}: must be {error}") from None
    return table[name](**values)


def _options(of: Any) -> list[Field[Any]]:
    """A dataclass's fields that can be written."""
    return [one for one in fields(of) if "word" in one.metadata]


def _shown(text: str) -> str:
    return text if len(text) <= _WORD_MAX else text[:_WORD_MAX] + "…"


def describe(written: Any) -> str:
    """A policy, or another such record, in full, as `parse` reads it: "bytescheduler:partition=4000000,tune=0"."""
    words = []
    for one in _options(written):
        value = getattr(written, one.name)
        if value is not None:
            text = f"{value:.9g}" if isinstance(value, float) else str(value)
            words.append(f"{one.metadata['word']}={text}{'ns' if one.metadata['read'] is time_ns else ''}")
    return f"{written.name}:{','.join(words)}" if words else str(written.name)
