"""Finished runs in a file, a line of JSON each: what is there isn't trained again, and a study goes on from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulation.experiments import pool
from emulation.experiments.study.study_plan import StudyCell
from emulation.scenario.errors import RunFailed

Log = Callable[[str], None]
RunRecords = dict[str, dict[str, Any]]
"""Records by the key of their cell."""


def read(path: Path) -> RunRecords:
    """The finished runs. A line that was cut off doesn't count. It raises RunFailed for another kind of file."""
    records: RunRecords = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else ():
        try:
            record = json.loads(line)
            records[StudyCell(**record["cell"]).key] = record
        except (ValueError, TypeError, KeyError) as error:
            if not line.startswith('{"cell"'):
                raise RunFailed(f"{path}: not the runs of a study; choose another folder with --out") from error
    return records


def run(
    cells: Iterable[StudyCell], finished: RunRecords, path: Path, log: Log, jobs: int = 1, ray: bool = False
) -> None:
    """Train those that haven't finished, and add them to `finished` and the file.

    jobs: processes. ray: as many as a Ray cluster has cores for. Raises RunFailed.
    """
    missing = [cell for cell in dict.fromkeys(cells) if cell.key not in finished]
    start_s = time.monotonic()
    for number, (cell, record) in enumerate(pool.worked(trained, missing, jobs, ray), 1):
        entry = {"cell": asdict(cell), **record}
        finished[cell.key] = entry
        _append(path, entry)
        left = pool.time_left(start_s, number, len(missing))
        ended = "diverged" if record["diverged"] else f"{100 * record['accuracy']:.1f} %"
        log(f"[{number}/{len(missing)}] {cell.title}: {ended}, {record['seconds']:.0f} s; {left}")


def _append(path: Path, record: dict[str, Any]) -> None:
    """A whole line, or after a crash none that is read again."""
    line = (json.dumps(record) + "\n").encode()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.fstat(file).st_size
        if end and os.pread(file, 1, end - 1) != b"\n":
            line = b"\n" + line  # what was cut off stays alone
        os.write(file, line)
        os.fsync(file)
    finally:
        os.close(file)


def trained(cell: StudyCell) -> dict[str, Any]:
    """A cell's record, or RunFailed with its name."""
    from emulation.experiments.study.codec_training import train  # imports PyTorch
    from emulation.scenario.errors import WorkloadError

    try:
        return train(cell)
    except (WorkloadError, ValueError) as error:
        raise RunFailed(f"{cell.title}: {error}") from error
