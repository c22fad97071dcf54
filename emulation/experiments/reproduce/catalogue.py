"""The results there are: a TOML file each in the folders of `results/`, and the runs that make our numbers for them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulation.experiments.cells import Cell, CellStore, Record, failures, run_cells, version
from emulation.experiments.progress_text import Log
from emulation.experiments.reproduce import byte_counts, network_times, schedule_times, survey_times
from emulation.experiments.reproduce.published import (
    Judgement,
    Numbers,
    Published,
    PublishedCell,
    ReproduceError,
    judge,
)
from emulation.scenario.errors import RunFailed
from switchagg.option_syntax import choices

RUNS: dict[str, Callable[[Published], Numbers]] = {
    run.__name__: run
    for run in (
        byte_counts.codec_bytes,
        byte_counts.lanes_of_bytes,
        byte_counts.sums_of_chosen_values,
        byte_counts.union_of_blocks,
        network_times.goodput_of_servers,
        network_times.halving_over_ring,
        network_times.servers_beside_switch,
        network_times.switch_over_ring,
        schedule_times.best_gain_of_an_order,
        schedule_times.best_gain_of_slices,
        schedule_times.merged_gradients,
        schedule_times.one_transfer_per_machine,
        schedule_times.push_pull_training,
        schedule_times.scaling_with_fewer_bytes,
        schedule_times.three_layers,
        survey_times.seven_methods,
    )
}
"""By the name under `run` in a result's file. A result that is open has none."""


def _paths() -> dict[str, Path]:
    """Name of a result -> its file."""
    return {path.stem: path for path in (Path(__file__).parent / "results").rglob("*.toml")}


def names() -> list[str]:
    """Of all results, sorted."""
    return sorted(_paths())


def find(name: str) -> Published:
    """The result of that name. ReproduceError that lists those there are."""
    paths = _paths()
    if name not in paths:
        raise ReproduceError(f"'{name[:60]}' is unknown{choices(name, sorted(paths), 'published results')}")
    table = tomllib.loads(paths[name].read_text(encoding="utf-8"))
    run, cells = table.pop("run", ""), tuple(PublishedCell(**cell) for cell in table.pop("cells"))
    return Published(name=name, cells=cells, run=RUNS[run] if run else lambda _: {}, **table)


@dataclass(frozen=True)
class ResultCell(Cell):
    """A published result that is run again. title: its name."""

    title: str
    version: str
    code = "reproduce"

    @property
    def decides(self) -> dict[str, Any]:
        return {"result": self.title}


def run_result(cell: ResultCell) -> Record:
    """Our numbers. Raises RunFailed."""
    published = find(cell.title)
    try:
        return {"numbers": published.run(published)}
    except ReproduceError as error:
        raise RunFailed(str(error)) from error


def run_results(wanted: Sequence[Published], jobs: int, log: Log) -> list[tuple[Published, Judgement]]:
    """The results with their judgements. jobs: as of `run_cells`. Nothing is kept: all of them take half a minute.

    Raises RunFailed, ReproduceError.
    """
    store, cells = CellStore(), [ResultCell(published.name, version("reproduce")) for published in wanted]
    if failed := run_cells(cells, run_result, store, log, jobs=jobs):
        raise RunFailed("; ".join(failures(failed, len(cells))))
    return [
        (published, judge(published, store.read(cell)["numbers"]))
        for published, cell in zip(wanted, cells, strict=True)
    ]
