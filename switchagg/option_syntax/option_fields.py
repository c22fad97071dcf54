"""Fields of frozen records that are options: each has its limits, unit and a line for users in its metadata.

What reads options (a scenario file, the environment, a join) takes them from there, and so does the reference of keys.
"""

from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any

from switchagg.option_syntax import choices

TEXT_MAX = 200


def integer(default: Any, low: int, high: int, unit: str, about: str) -> Any:
    """A field that holds a whole number from low to high."""
    return field(default=default, metadata={"kind": int, "low": low, "high": high, "unit": unit, "about": about})


def choice(default: Any, allowed: tuple[str, ...] | Callable[[], tuple[str, ...]], about: str) -> Any:
    """A field that holds one of these words."""
    return field(default=default, metadata={"kind": str, "allowed": allowed, "about": about})


def derived(default: Any) -> Any:
    """A field that no user sets: it follows from other options."""
    return field(default=default, metadata={"derived": True})


def changed_fields(record: Any, kind: Any) -> dict[str, Any]:
    """The fields of the dataclass `kind`, by name, where `record`, which has them too, doesn't hold their defaults."""
    values = ((entry, getattr(record, entry.name)) for entry in fields(kind))
    return {entry.name: value for entry, value in values if value != entry.default}


def fault_of(record: Any) -> str:
    """The field that holds what its metadata doesn't allow, and what it allows; "" for a sound record.

    Each number of a field that holds several must be allowed.
    """
    for entry in fields(record):
        value, rule = getattr(record, entry.name), entry.metadata
        if "low" in rule:
            for number in value if isinstance(value, tuple) else (value,):
                if not rule["low"] <= number <= rule["high"]:
                    return f"{entry.name} {number}: {rule['low']} to {rule['high']}"
        elif "allowed" in rule and not callable(rule["allowed"]) and value not in rule["allowed"]:
            return f"{entry.name} {value[:TEXT_MAX]!r} is unknown{choices(value, rule['allowed'])}"
    return ""


def numbers_of(entry: Field[Any], several: bool = False) -> str:
    """The numbers that a field of this dataclass may hold, in words, and what it is about where it says so.

    several: with commas between.
    """
    rule = entry.metadata
    words = "numbers with commas between" if several else f"a number ({type(entry.default).__name__})"
    limits = f", {rule['low']} to {rule['high']}" if "low" in rule else ""
    about = f" {rule['unit']}: {rule['about']}" if "low" in rule else ""
    return f"{words}{limits}{about}"


def shared_fields(record: Any, kind: Any) -> dict[str, Any]:
    """The fields of the dataclass `kind`, by name, as `record`, which has them too, holds them."""
    return {entry.name: getattr(record, entry.name) for entry in fields(kind)}
