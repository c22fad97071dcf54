"""The reference of scenario files, from their dataclasses: for `switchagg scenarios` and docs/reference/scenario.md."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from emulation.scenario.errors import ScenarioError
from emulation.scenario.key_values import LISTED, WORDS, allowed, shortened
from emulation.scenario.scenario_tables import (
    LISTS,
    SEED_MOST,
    TABLES,
    ComputeDistribution,
    ComputeJitter,
    LinkTail,
    LostSwitch,
    Straggler,
    keys_of,
)
from switchagg.option_syntax import close_match

NESTED = {
    "faults.stragglers": Straggler,
    "faults.tail": LinkTail,
    "faults.lost_switches": LostSwitch,
    "workload.compute_ns": ComputeDistribution,
    "workload.compute_jitter": ComputeJitter,
}
"""Keys that hold a table, or a list of them, and its dataclass."""
TOP = "scenario"
REQUIRED, UNSET = "required", "not set"
LISTED_MOST = 8
"""Names that a cell of the page lists."""
EXAMPLE = """\
name = "mine"
title = "Digits on 8 workers at 1 Gb/s"

[topology]
workers = 8
rate_bps = 1e9

[workload]
iterations = 20
"""


@dataclass(frozen=True)
class KeyDescription:
    """default: as TOML writes it, UNSET or REQUIRED; allowed: in words, with the unit; about: one line."""

    name: str
    default: str
    allowed: str
    about: str


@dataclass(frozen=True)
class TableDescription:
    """title: as a file has it, like `[topology]` or `[[flows]]`."""

    name: str
    title: str
    about: str
    keys: tuple[KeyDescription, ...]


def tables() -> dict[str, TableDescription]:
    """Every table of a scenario file by its name, in the reference's order."""
    above = (
        KeyDescription("name", REQUIRED, WORDS["name"], "The name of the folder with the results"),
        KeyDescription("title", REQUIRED, WORDS["text"], "The heading of reports"),
        KeyDescription("seed", "1", f"0 … {SEED_MOST}", "The seed of all random numbers: data, weights, faults"),
    )
    described = [TableDescription(TOP, "Above all tables", "The keys that are in no table.", above)]
    for name, kind in TABLES.items():
        described.append(_table(name, f"[{name}]", kind))
        for nested, inner in NESTED.items():
            if nested.startswith(f"{name}."):
                described.append(_table(nested, f"[[{nested}]]" if inner in LISTED else f"[{nested}]", inner))
    described += [_table(name, f"[[{name}]]", kind) for name, kind in LISTS.items()]
    swept = "Keys of other tables, each with a list of values, like topology.rate_bps = [1e9, 10e9]: docs/emulate.md."
    return {table.name: table for table in (*described, TableDescription("sweep", "[sweep]", swept, ()))}


def names() -> list[str]:
    """Tables, and keys as TABLE.KEY."""
    return [
        name for table in tables().values() for name in (table.name, *(f"{table.name}.{k.name}" for k in table.keys))
    ]


def contents(scenarios: Iterable[Path]) -> Iterator[str]:
    """Lines about all: scenarios, by name and title, and the tables of a scenario file."""
    yield "Shipped scenarios; to run one: switchagg compare NAME; to print its file: switchagg scenarios NAME"
    for path in scenarios:
        yield f"  {path.stem:<23}  {tomllib.loads(path.read_text(encoding='utf-8'))['title']}"
    yield "Tables of a scenario file, which needs a name and a title only; keys of one: switchagg scenarios TABLE"
    for entry in tables().values():
        yield f"  {entry.name:<23}  {entry.about.partition('. ')[0].rstrip('.')}"


def text(what: str, scenarios: Iterable[str] = ()) -> Iterator[str]:
    """Lines about `what`: a table (`topology`) or a key (`topology.rate_bps`).

    Raises ScenarioError for what there is not, with the most similar name, which may be one of `scenarios`.
    """
    every = tables()
    table, _, name = what.rpartition(".")
    key = next((key for key in every[table or TOP].keys if key.name == name), None) if (table or TOP) in every else None
    if key:
        yield from _lines(what, key)
    elif what not in every:
        known = [*scenarios, *names()]
        hint = close_match(what, known) or "; `switchagg scenarios` lists them"
        raise ScenarioError(f"{shortened(what)} is no shipped scenario, no table and no key{hint}")
    if what in every:
        yield f"{every[what].title}: {every[what].about}"
        for key in every[what].keys:
            yield ""
            yield from (f"  {line}" for line in _lines(key.name, key))


def markdown() -> str:
    """The page docs/reference/scenario.md."""
    lines = [
        "# Keys of scenario files",
        "",
        "Here you can look up every key of a scenario file: its default, what it may hold, and what it is. `switchagg",
        "scenarios --markdown` writes this page, and `switchagg scenarios TABLE` prints a part of it. Only `name` and",
        "`title` are required; *sim* marks keys of virtual time. The default stands in brackets. [Emulate a",
        "network](../emulate.md) shows their use.",
        "",
        "```toml",
        *EXAMPLE.splitlines(),
        "```",
    ]
    for table in tables().values():
        lines += ["", f"## {table.title}", "", table.about]
        lines += [""] if table.keys else []
        for key in table.keys:
            default = key.default if key.default in (REQUIRED, UNSET) else f"`{key.default}`"
            lines.append(f"- **`{key.name}`** ({default}): {key.about}. *{_abridged(key.allowed)}*")
    return "\n".join(lines) + "\n"


def _abridged(allowed: str) -> str:
    """Values in words, of a long list the first ones: `switchagg scenarios TABLE.KEY` prints all."""
    names = [name or '""' for name in allowed.replace(" … ", "…").split(", ")]
    return ", ".join(names) if len(names) <= LISTED_MOST else ", ".join([*names[:3], "…"])


def _table(name: str, title: str, kind: Any) -> TableDescription:
    keys = tuple(
        KeyDescription(entry.name, _toml(entry.default), allowed(entry.metadata), entry.metadata["about"])
        for entry in keys_of(kind)
    )
    return TableDescription(name, title, " ".join((inspect.getdoc(kind) or "").split()), keys)


def _toml(value: Any) -> str:
    if value is MISSING or value in (None, ()):
        return REQUIRED if value is MISSING else UNSET
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f"{value:_}" if isinstance(value, (int, float)) else f'"{value}"'


def _lines(name: str, key: KeyDescription) -> Iterator[str]:
    yield f"{name}  ({key.default})" if key.default in (REQUIRED, UNSET) else f"{name} = {key.default}"
    yield f"    {key.about}"
    yield f"    allowed: {key.allowed}"
