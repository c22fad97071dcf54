"""Cells of an experiment: the inputs that decide each, the folder that keeps their results, and how they are run.

Sweeps, studies, forecasts, published results and benchmarks are grids of cells. A cell's result is stored in a file
named after all inputs that decide it, the code among them: the bytes of our packages, without those that only show
results, and the versions of Python, NumPy and PyTorch. So a command that was interrupted goes on from the cells that
are there, and cells of other inputs or of other code are never taken for them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from emulation.experiments import pool
from emulation.experiments.progress_text import Log, Passing
from emulation.report import wording
from emulation.results.results import write_json
from emulation.scenario.errors import RunFailed, ScenarioError, WorkloadError
from emulation.scenario.sweep_axes import Value
from switchagg.errors import SwitchaggError

SCHEMA = "switchagg-cell-1"
CELLS = "cells"
"""Name of the folder of cells within that of an experiment's results."""
PACKAGES = ("switchagg", "transport", "p4vm", "emulation")
EXPERIMENTS = ("bench", "reproduce", "study", "sweep", "whatif")
SHOWING = ("_page", "_figures")
"""Ends of the names of files that only show results."""
SOURCES = (".py", ".c", ".h")

Record = dict[str, Any]


class Cell:
    """A cell of a grid. title: for people, also in messages. code: whose results it has, "mininet", "sim" or the name
    of an experiment; version: of that code where the experiment was started. Subclasses are frozen dataclasses."""

    title: str
    code: str
    version: str

    @property
    def decides(self) -> Record:
        """All inputs that decide the result, but for the version, as plain values."""
        raise NotImplementedError

    @cached_property
    def key(self) -> str:
        inputs = json.dumps({**self.decides, "version": self.version}, sort_keys=True)
        return hashlib.sha256(inputs.encode()).hexdigest()[:32]


CellType = TypeVar("CellType", bound=Cell)


@cache
def version(code: str) -> str:
    """The hash of the code that decides results. code: as of a `Cell`."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in _sources(package, code):
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    for name in ("numpy", "torch"):
        digest.update(f"{name} {metadata.version(name)}\0".encode())
    digest.update(".".join(platform.python_version_tuple()[:2]).encode())
    return digest.hexdigest()[:16]


def _sources(package: str, code: str) -> Iterator[Path]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:  # p4vm without the extra p4
        return
    other_experiments = (f"experiments/{name}/" for name in EXPERIMENTS if name != code)
    real_time = () if code in ("mininet", "bench", "study") else ("testbed/",)
    excluded = ("cli/", "report/", *other_experiments, *real_time)
    (root,) = spec.submodule_search_locations
    for path in sorted(Path(root).rglob("*")):
        inside = path.relative_to(root).as_posix()
        shows = package == "emulation" and (inside.startswith(excluded) or path.stem.endswith(SHOWING))
        if path.suffix in SOURCES and not shows:
            yield path


class CellStore:
    """Finished cells: a folder with a file for each, which is there as a whole or not at all; without a folder they
    are kept in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, Record] = {}

    def keep(self, cell: Cell, record: Record) -> None:
        """Raises OSError."""
        if self.folder is None:
            self._memory[cell.key] = record
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        head = {"schema": SCHEMA, "key": cell.key, **cell.decides, "version": cell.version}
        write_json(self._path(cell), {**head, **record})

    def forget(self, cell: Cell) -> None:
        self._memory.pop(cell.key, None)
        if self.folder is not None:
            self._path(cell).unlink(missing_ok=True)

    def clear(self, code_version: str) -> None:
        """Forget the cells of this version of the code."""
        self._memory.clear()
        for path in self.folder.glob("*.json") if self.folder is not None else ():
            if (record := _read(path)) and record.get("version") == code_version:
                path.unlink(missing_ok=True)

    def find(self, cell: Cell) -> Record | None:
        """The cell's record; None if its file is missing, cut off, or of something else."""
        record = self._memory.get(cell.key) if self.folder is None else _read(self._path(cell))
        return record if self.folder is None or (record and record["key"] == cell.key) else None

    def read(self, cell: Cell) -> Record:
        """The record of a cell that has been run."""
        record = self.find(cell)
        assert record is not None, f"{cell.title} hasn't been run"
        return record

    def all_of(self, code_version: str) -> list[Record]:
        """The records in the folder that this version of the code has made, the last one last."""
        assert self.folder is not None
        paths = sorted(self.folder.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [record for record in map(_read, paths) if record and record.get("version") == code_version]

    def _path(self, cell: Cell) -> Path:
        assert self.folder is not None
        return self.folder / f"{cell.key}.json"


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return dict(record) if record["schema"] == SCHEMA and record["key"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_cells(
    cells: Iterable[CellType],
    measure: Callable[[CellType], Record],
    store: CellStore,
    log: Log,
    *,
    jobs: int = 1,
    ray: bool = False,
    outcome: Callable[[Record], str] = lambda _: "",
) -> dict[str, str]:
    """Runs the cells that the store doesn't have, keeps each as it ends, and says why others failed, by their titles.

    Equal cells of different titles are run once. measure: a function of a module, which returns a record or raises
    RunFailed and its like. jobs, ray: as `pool.worked` has them; jobs 0: one on each core. outcome: a record in a few
    words. Raises RunFailed where the experiment can't go on, OSError.
    """
    distinct = list({cell.key: cell for cell in cells}.values())
    missing = [cell for cell in distinct if store.find(cell) is None]
    jobs = max(1, min(jobs or pool.cores(), len(missing)))
    where = "by Ray" if ray else f"{jobs} at a time"
    log(
        f"{len(distinct)} runs, of which {len(distinct) - len(missing)} are there and {len(missing)} are to do, {where}"
    )
    failed: dict[str, str] = {}
    start_s = time.monotonic()
    for number, (cell, record) in enumerate(pool.worked(functools.partial(_record, measure), missing, jobs, ray), 1):
        if "error" in record:
            failed[cell.title] = record["error"]
            ended = f"failed: {record['error']}"
        else:
            store.keep(cell, record)
            ended = ", ".join(filter(None, (outcome(record), f"{record['seconds']:.1f} s")))
        line = f"[{number}/{len(missing)}] {cell.title}: {ended}; {pool.time_left(start_s, number, len(missing))}"
        log(line if "error" in record else Passing(line))
    return failed


def _record(measure: Callable[[CellType], Record], cell: CellType) -> Record:
    """A cell's record with the "seconds" it took; or "error", the reason why it failed. Raises RunFailed if this
    machine has other code than that where the experiment was started."""
    if version(cell.code) != cell.version:
        raise RunFailed(
            f"{platform.node()} has another version of switchagg, NumPy or PyTorch than the machine where this was "
            "started; install the same on all"
        )
    start_s = time.monotonic()
    try:
        record = measure(cell)
    except (RunFailed, ScenarioError, SwitchaggError, WorkloadError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "there isn't enough memory for it"}
    return {**record, "seconds": round(time.monotonic() - start_s, 3)}


def failures(failed: Mapping[str, str], total: int) -> list[str]:
    """A line for each reason. failed: as `run_cells` returned it; total: the number of cells."""
    titles_by_reason: dict[str, list[str]] = {}
    for title, why in failed.items():
        titles_by_reason.setdefault(why, []).append(title)
    return [
        f"{len(titles)} of {total} runs failed ({titles[0]}{', …' if titles[1:] else ''}): {why}"
        for why, titles in titles_by_reason.items()
    ]


def chosen(cells: Sequence[CellType], text: str) -> list[CellType]:
    """The cells with this text in their titles, as --only has it. Raises ScenarioError if there are none."""
    matches = [cell for cell in cells if text in cell.title]
    if not matches:
        example = f", as in '{cells[0].title}'" if cells else ""
        raise ScenarioError(f"--only '{text}': no run has this in its title{example}")
    return matches


def value_text(key: str, value: Value) -> str:
    """A value with its unit, by the end of its key's name."""
    if isinstance(value, str):
        return value
    if key.endswith("_bps"):
        return wording.rate_text(value)
    if key.endswith("_ns"):
        return wording.time_text(value)
    return wording.bytes_text(value) if key.endswith("_bytes") else f"{value:g}"


def point_text(point: Mapping[str, Value]) -> str:
    return ", ".join(f"{key} = {value_text(key, value)}" for key, value in point.items())


def values_text(point: Mapping[str, Value]) -> str:
    """Without the keys."""
    return ", ".join(value_text(key, value) for key, value in point.items())
