"""The axes of a sweep: keys of a scenario and the values they take, alone or together."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from switchagg.option_syntax import close_match

Value = int | float | str
Point = dict[str, Value]
"""A value for each swept key."""

SEED, ZIP = "seed", "zip"
VALUES_MOST, POINTS_MOST = 1_000, 100_000


@dataclass(frozen=True)
class SweepAxes:
    """axes: key (TABLE.KEY, or `seed`) and its values, in order. zipped: keys that go together, first value with first.

    Every combination is run; without axes there is one, of nothing.
    """

    axes: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    zipped: tuple[tuple[str, ...], ...] = ()

    @property
    def groups(self) -> list[list[Point]]:
        """For each axis, or axes that go together, its points."""
        values = dict(self.axes)
        partners = {key: group for group in self.zipped for key in group}
        groups = dict.fromkeys(partners.get(key, (key,)) for key in values)
        return [
            [
                dict(zip(group, values_of_point, strict=True))
                for values_of_point in zip(*(values[key] for key in group), strict=True)
            ]
            for group in groups
        ]

    @property
    def points(self) -> list[Point]:
        """All combinations; the last axis changes fastest."""
        return [
            {key: value for part in parts for key, value in part.items()} for parts in itertools.product(*self.groups)
        ]

    @property
    def plain(self) -> dict[str, Any]:
        """As a file has it."""
        table: dict[str, Any] = {key: list(values) for key, values in self.axes}
        return {**table, ZIP: [list(keys) for keys in self.zipped]} if self.zipped else table


def parse(table: Mapping[str, Any], allowed: Collection[str], ended: Collection[str] = ()) -> SweepAxes:
    """The sweep that a table `[sweep]` describes. allowed: keys that may be swept; ended: those that aren't any more.

    Raises ValueError, in one line.
    """
    axis_values: dict[str, Any] = {}
    for name, value in table.items():
        axis_values |= (
            {f"{name}.{key}": values for key, values in value.items()} if isinstance(value, dict) else {name: value}
        )
    zipped = _zipped(axis_values.pop(ZIP, []), axis_values)
    for key in axis_values:
        if key not in allowed:
            hint = close_match(key, allowed) or "; like topology.rate_bps = [1e8, 1e9]"
            raise ValueError(
                f"{reprlib.repr(key)} is no key that can be swept: {SEED}, or TABLE.KEY of a scenario{hint}"
            )
    axes = {key: _values(key, values) for key, values in axis_values.items()}
    for group in zipped:
        if len({len(axes[key]) for key in group}) > 1:
            lengths = ", ".join(f"{key} has {len(axes[key])}" for key in group)
            raise ValueError(f"{ZIP}: keys that go together need equally many values: {lengths}")
    left = {key: values for key, values in axes.items() if key not in ended}
    groups = (tuple(key for key in group if key in left) for group in zipped)
    sweep = SweepAxes(tuple(left.items()), tuple(group for group in groups if len(group) > 1))
    if (count := prod(map(len, sweep.groups))) > POINTS_MOST:
        raise ValueError(f"{count} combinations; allowed: at most {POINTS_MOST}")
    return sweep


def _values(key: str, values: Any) -> tuple[Value, ...]:
    values = [values] if _is_value(values) else values
    if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= VALUES_MOST or not all(map(_is_value, values)):
        allowed = f"allowed: a list of 1 to {VALUES_MOST} numbers or words"
        raise ValueError(f"{key}: {reprlib.repr(values)} is not allowed; {allowed}")
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{key}: {reprlib.repr(value)} stands there twice; allowed: each value once")
    return tuple(values)


def _is_value(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _zipped(groups: Any, axis_values: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    lists = isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups)
    if not lists or not all(isinstance(key, str) for group in groups for key in group):
        example = '[["topology.rate_bps", "topology.delay_ns"]]'
        raise ValueError(f"{ZIP}: {reprlib.repr(groups)} is not allowed; allowed: lists of keys, like {example}")
    keys = [key for group in groups for key in group]
    for key in keys:
        if key not in axis_values:
            raise ValueError(f"{ZIP}: {reprlib.repr(key)} has no values in this table")
        if keys.count(key) > 1:
            raise ValueError(f"{ZIP}: {reprlib.repr(key)} stands there twice; allowed: each key once")
    return tuple(map(tuple, groups))
