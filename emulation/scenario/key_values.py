"""The values that a scenario's keys allow: a value is checked against its field's metadata, and refused in one line."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any

from emulation.scenario.errors import ScenarioError
from emulation.scenario.scenario_tables import (
    ComputeDistribution,
    ComputeJitter,
    LinkTail,
    LostSwitch,
    Straggler,
    TopologyOptions,
    keys_of,
)
from switchagg.option_syntax import choices, close_match
from transport.group.method_name import METHODS, MethodName
from transport.group.method_name import parse as parse_method

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 80
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it becomes the name of a folder


def _check_line(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: {WORDS['text']}")
    return value


def build_fields(values: Mapping[str, Any], kind: Any, where: str) -> Any:
    """A dataclass of `emulation.scenario.scenario_tables` from a table. where: the text before a key in messages."""
    fields = {entry.name: entry for entry in keys_of(kind)}
    for key in values:
        if key not in fields:
            raise ScenarioError(f"{where}unknown key '{key}'{suggestion(key, fields)}")
    for key, entry in fields.items():
        if entry.default is MISSING and key not in values:
            raise ScenarioError(f"{where}{key}: missing")
    return kind(**{key: _check(value, fields[key].metadata, where + key) for key, value in values.items()})


def _check(value: Any, rule: Mapping[str, Any], where: str) -> Any:
    if rule["kind"] in (*LISTED, *_NESTED) or ("table" in rule and isinstance(value, (list, dict))):
        return _check_nested(value, rule, where)
    if rule["kind"] is tuple:
        return _check_methods(value, rule["backend"], where)
    if rule["kind"] in _CHECKS:
        return _CHECKS[rule["kind"]](value, where)
    if rule["kind"] is str:
        if value not in _choices(rule):
            raise ScenarioError(f"{where}: {shortened(value)} is unknown{choices(str(value), _choices(rule))}")
        return value
    number: int | float
    if not _is_number(value):
        raise ScenarioError(f"{where}: {shortened(value)} is not a number; allowed: {limits(rule)}")
    number = value
    if isinstance(number, float) and rule["kind"] is int:
        if not number.is_integer():
            raise ScenarioError(f"{where}: {shortened(value)} is not a whole number; allowed: {limits(rule)}")
        number = int(number)
    if not rule["low"] <= number <= rule["high"]:  # also refuses nan
        raise ScenarioError(f"{where}: {shortened(value)} is out of range; allowed: {limits(rule)}")
    return float(number) if rule["kind"] is float else number


def check_tables(value: Any, kind: Any, where: str) -> tuple[Any, ...]:
    """A dataclass of `emulation.scenario.scenario_tables` from each table of a list."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(table, dict) for table in value):
        raise ScenarioError(f"{where.rstrip(': ')}: {shortened(value)} is not allowed; allowed: a list of tables")
    return tuple(build_fields(table, kind, where) for table in value)


LISTED = (Straggler, LostSwitch)
"""Tables of which a key holds a list."""
_NESTED = {LinkTail: "{ratio = 3, p50_ns = 1_000_000}", ComputeJitter: "{deviation = 0.05}"}
"""Tables in a table, each with an example."""


def _check_nested(value: Any, rule: Mapping[str, Any], where: str) -> Any:
    """Stragglers, lost switches, a tail, jitter, or a compute time that isn't one number."""
    if like := _NESTED.get(rule["kind"]):
        if not isinstance(value, dict):
            raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: a table, like {like}")
        return build_fields(value, rule["kind"], f"{where}: ")
    if rule["kind"] in LISTED:
        return check_tables(value, rule["kind"], f"{where}: ")
    if isinstance(value, dict):
        return build_fields(value, ComputeDistribution, f"{where}: ")
    number = {key: rule[key] for key in ("kind", "low", "high", "unit")}
    return tuple(_check(element, number, where) for element in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_training(value: Any, where: str) -> str:
    """A training method with all its options, as `transport.torch.training` writes it."""
    if value == "":
        return ""
    from transport.torch.training.training_methods import parse_method as parse_training  # imports torch

    try:
        method = parse_training(value if isinstance(value, str) else shortened(value))
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None
    if not method.allreduces:
        raise ScenarioError(f"{where}: {method.name} sends from host to host, whatever the method; allowed: the others")
    return str(method)


def _check_racks(value: Any, where: str) -> int | tuple[int, ...]:
    """How many racks, or the workers of each."""
    numbers = value if isinstance(value, list) and value else [value]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: {WORDS['racks']}")
    return tuple(value) if isinstance(value, list) else numbers[0]


def _check_rates(value: Any, where: str) -> tuple[tuple[str, int], ...]:
    """Rates from a table, or from the pairs that results have."""
    pairs: Any = value.items() if isinstance(value, dict) else value
    listed = isinstance(value, (dict, list, tuple))
    if not listed or any(not isinstance(pair, (list, tuple)) or len(pair) != 2 for pair in pairs):
        raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: {WORDS['rates']}")
    (rule,) = (entry.metadata for entry in dataclasses.fields(TopologyOptions) if entry.name == "rate_bps")
    return tuple((str(name), _check(rate, rule, f"{where}: {name}")) for name, rate in pairs)


def _check_ranks(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or any(type(rank) is not int or rank < 0 for rank in value):
        raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: {WORDS['ranks']}")
    if len(set(value)) != len(value):
        raise ScenarioError(f"{where}: {shortened(value)} names a rank twice; allowed: each once")
    return tuple(value)


def _check_name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ScenarioError(f"{where}: {shortened(value)} is not allowed; allowed: {WORDS['name']}")
    return value


WORDS = {
    "training": "a training method with its options",
    "racks": "how many, or a list like [4, 2]",
    "rates": 'a table, like {"h3" = 10e9}',
    "ranks": "a list of ranks, like [0, 1]",
    "name": "up to 100 letters, digits and . _ -",
    "text": "one line of text",
}
"""The values of keys of each kind, except numbers and choices."""
_CHECKS = {
    "training": _check_training,
    "racks": _check_racks,
    "rates": _check_rates,
    "ranks": _check_ranks,
    "name": _check_name,
    "text": _check_line,
}


def allowed(rule: Mapping[str, Any]) -> str:
    """The values that a field's metadata allows, in words."""
    kind = rule["kind"]
    if kind is tuple:
        return f"a list of {', '.join(METHODS)}"
    if kind is str:
        return ", ".join(_choices(rule))
    if kind in WORDS:
        return WORDS[kind]
    if kind in LISTED:
        return "a list of tables"
    return "a table" if kind in _NESTED else limits(rule)


def _choices(rule: Mapping[str, Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = rule["allowed"]() if callable(rule["allowed"]) else rule["allowed"]
    return names


def _check_methods(value: Any, backend: str, where: str) -> tuple[MethodName, ...]:
    if not isinstance(value, list):
        raise ScenarioError(f"{where}: {shortened(value)} is not a list of methods; allowed: {', '.join(METHODS)}")
    methods = tuple(_check_method(method, backend, where) for method in value)
    if len(set(methods)) != len(methods):
        raise ScenarioError(f"{where}: {shortened(value)} names a method twice; allowed: each once")
    return methods


def _check_method(text: Any, backend: str, where: str) -> MethodName:
    """The method as `transport.group.method_name` writes it."""
    try:
        name = parse_method(text if isinstance(text, str) else shortened(text), virtual=backend == "sim")
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None
    if backend == "sim" and "@" in str(name):
        raise ScenarioError(f"{where}: {shortened(text)}: virtual time has a link of its own; leave out @{name.link}")
    return name


def shortened(value: Any) -> str:
    """A value as Python writes it, shortened: a file may hold a number of thousands of digits."""
    return _SHORT.repr(value)


def limits(rule: Mapping[str, Any]) -> str:
    low, high = rule["low"], rule["high"]
    return f"{low:g} … {high:g} ({rule['unit']})" if rule["kind"] is float else f"{low} … {high} ({rule['unit']})"


def suggestion(key: str, known: Iterable[str]) -> str:
    """The rest of an error about an unknown key: the key that may have been meant, or all keys."""
    names = list(known)
    return close_match(key, names) or f"; allowed: {', '.join(names)}"
