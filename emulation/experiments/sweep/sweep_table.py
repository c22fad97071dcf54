"""The table of a sweep: a row for each cell, as CSV, and as Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from emulation.results.whole_file import whole_file

Row = dict[str, Any]

CSV, PARQUET = "results.csv", "results.parquet"
COMPARED = ("iteration_speedup", "communication_speedup", "communication_speedup_bound", "beyond_bound")
"""Keys of a comparison with the baseline."""
QUOTED = ("speedup", "limit", "at_equal_compute")
"""Keys of an iteration's speed-up as it may be quoted: in a table `headline_speedup` and so on."""


def row(entry: Mapping[str, Any]) -> Row:
    """A method's row in a table, from its entry in a document: its summary, spreads as NAME (the median), NAME_p10 and
    NAME_p90, tables as NAME_KEY; and the speed-ups over the baseline of the same scenario."""
    columns: Row = {"method": str(entry["method"])}
    columns["verdict"] = entry["verdict"]
    for name, value in entry["summary"].items():
        if name == "blocks":  # of which a table has no columns
            continue
        if not isinstance(value, Mapping):
            columns[name] = value
            continue
        for key, part in value.items():
            columns[name if key == "median" else f"{name}_{key}"] = part
    columns["retransmissions"] = entry["retransmissions"]
    compared = entry["comparison"] or {}
    quoted = compared.get("headline", {})
    return {
        **columns,
        **{name: compared.get(name) for name in COMPARED},
        **{f"headline_{name}": quoted.get(name) for name in QUOTED},
    }


def write(rows: Sequence[Row], folder: Path) -> tuple[list[Path], str]:
    """The files, and what is missing for the other one; "" if nothing. Columns: those of all rows. Raises OSError."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    paths = [folder / CSV]
    with whole_file(paths[0]) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        (folder / PARQUET).unlink(missing_ok=True)  # of an earlier run
        return paths, f"no {PARQUET}: it needs pip install 'switchagg[parquet]'"
    columns = {name: _alike([row.get(name) for row in rows]) for name in names}
    with whole_file(folder / PARQUET) as partial:
        parquet.write_table(arrow.table(columns), partial)
    return [*paths, folder / PARQUET], ""


def _alike(values: list[Any]) -> list[Any]:
    """A column has one type: words if any is one, floats if any is one."""
    kinds = {type(value) for value in values if value is not None}
    kind = str if str in kinds else float if float in kinds else None
    return values if kind is None else [None if value is None else kind(value) for value in values]
