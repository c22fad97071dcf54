"""A cell: one method of one scenario on one backend. The cell's result is stored in a file named after all inputs that
decide it.

These inputs are the scenario with every default filled in, seed included, the backend, and the code: the bytes of our
packages, without those that only show results, and the versions of Python, NumPy and PyTorch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from emulation.experiments.compare import RUNNER_MODULES, choose_plane
from emulation.results.results import entries, plain, write_json
from emulation.results.timeline import Span
from emulation.scenario.errors import RunFailed
from emulation.scenario.profiles.workload_keys import tenant_graph
from emulation.scenario.scenario import Scenario, ScenarioError, canonical
from emulation.scenario.scenario_tables import Methods
from switchagg.errors import SwitchaggError
from transport.group.method_name import MethodName
from transport.group.method_name import parse as parse_method

SCHEMA = "switchagg-cell-1"
PACKAGES = ("switchagg", "transport", "p4vm", "emulation")
ONLY_SHOWN = (
    "cli/",
    "report/",
    *(f"experiments/{name}/" for name in ("bench", "study", "sweep", "reproduce", "whatif")),
)
EXCLUDED = {"sim": (*ONLY_SHOWN, "testbed/"), "mininet": ONLY_SHOWN}
"""Folders of `emulation` whose code changes no result of a backend."""
SOURCES = (".py", ".c", ".h")


@dataclass(frozen=True)
class SweepCell:
    """title: for people. version: of the code, as `version` gave it where the sweep was started. kept: folder for what
    the backend keeps beside the result."""

    scenario: Scenario
    backend: str
    method: MethodName
    title: str
    version: str
    folder: Path

    @property
    def decides(self) -> dict[str, Any]:
        """All that decides what comes out, as plain values."""
        chosen = Methods(**{name: (self.method,) if name == self.backend else () for name in ("mininet", "sim")})
        values = canonical(dataclasses.replace(self.scenario, methods=chosen))
        del values["name"], values["title"]
        inputs = {"scenario": plain(values), "backend": self.backend, "version": self.version}
        folder, beside = Path(self.scenario.folder), [job for job in self.scenario.jobs if job.profile]
        replayed: list[Any] = [tenant_graph(job, folder) for job in beside]
        if self.scenario.workload.profile:
            replayed.append(self.scenario.replayed)
        if replayed:  # what is in the files, beside how they are called
            inputs["replayed"] = hashlib.sha256(repr(replayed).encode()).hexdigest()
        return inputs

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.decides, sort_keys=True).encode()).hexdigest()[:32]


@cache
def version(backend: str) -> str:
    """The hash of the code that decides a backend's results."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in _sources(package, EXCLUDED[backend]):
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    for name in ("numpy", "torch"):
        digest.update(f"{name} {metadata.version(name)}\0".encode())
    digest.update(".".join(platform.python_version_tuple()[:2]).encode())
    return digest.hexdigest()[:16]


def _sources(package: str, excluded: tuple[str, ...]) -> Iterator[Path]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:  # p4vm without the extra p4
        return
    (root,) = spec.submodule_search_locations
    for path in sorted(Path(root).rglob("*")):
        inside = path.relative_to(root).as_posix()
        if path.suffix in SOURCES and not (package == "emulation" and inside.startswith(excluded)):
            yield path


def work(cell: SweepCell) -> dict[str, Any]:
    """A cell's result: `entry`, as in a results.json of it alone, `timeline` and `seconds`; or `error`, the reason why
    it failed. Raises RunFailed if this machine has other code than that where the sweep was started."""
    if version(cell.backend) != cell.version:
        raise RunFailed(
            f"{platform.node()} has another version of switchagg, NumPy or PyTorch than the machine where the sweep "
            "was started; install the same on all"
        )
    start_s = time.monotonic()
    scenario = cell.scenario
    try:
        # in virtual time all data planes give equal results
        plane = choose_plane(scenario, cell.backend) if cell.backend == "mininet" else None
        if plane is not None:
            scenario = dataclasses.replace(scenario, switch=dataclasses.replace(scenario.switch, dataplane=plane.name))
        run_method = importlib.import_module(RUNNER_MODULES[cell.backend]).run_method
        result = run_method(scenario, cell.method, cell.folder, lambda *_: None)
        (entry,) = entries(cell.scenario, cell.backend, [result])
    except (RunFailed, ScenarioError, SwitchaggError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "there isn't enough memory for it"}
    return {
        "entry": plain(entry),
        "timeline": [asdict(span) for span in result.timeline],
        "seconds": round(time.monotonic() - start_s, 3),
    }


class Store:
    """The folder of finished cells, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, cell: SweepCell) -> bool:
        return self._read(cell) is not None

    def keep(self, cell: SweepCell, record: dict[str, Any]) -> None:
        write_json(self._path(cell), {"schema": SCHEMA, "key": cell.key, **cell.decides, **record})

    def forget(self, cell: SweepCell) -> None:
        self._path(cell).unlink(missing_ok=True)

    def entry(self, cell: SweepCell) -> tuple[dict[str, Any], list[Span], float]:
        """A stored cell: its entry of a document, not yet compared, its timeline, and the seconds that it took."""
        record = self._read(cell)
        assert record is not None, f"{cell.title} hasn't been run"
        method = parse_method(record["entry"]["method"], virtual=cell.backend == "sim")
        return {**record["entry"], "method": method}, [Span(**span) for span in record["timeline"]], record["seconds"]

    def _path(self, cell: SweepCell) -> Path:
        return self.folder / f"{cell.key}.json"

    def _read(self, cell: SweepCell) -> dict[str, Any] | None:
        """The record is None if the file is missing or cut off."""
        try:
            record = json.loads(self._path(cell).read_text(encoding="utf-8"))
            return dict(record) if (record["schema"], record["key"]) == (SCHEMA, cell.key) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
