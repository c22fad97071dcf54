"""Finished runs in a file, a line of JSON each: what is there isn't trained again, and a study goes on from there."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from emulation.errors import RunFailed
from emulation.study.plan import Cell

Log = Callable[[str], None]
Finished = dict[str, dict[str, Any]]
"""Records by the key of their cell."""

END_S = 5.0
"""How long a process that was told to end may take to end what it has started."""


def read(path: Path) -> Finished:
    """What has finished. A line that was cut off doesn't count. Raises RunFailed for a file of something else."""
    found: Finished = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else ():
        try:
            record = json.loads(line)
            found[Cell(**record["cell"]).key] = record
        except (ValueError, TypeError, KeyError) as error:
            if not line.startswith('{"cell"'):
                raise RunFailed(f"{path}: not the runs of a study; choose another folder with --out") from error
    return found


def run(cells: Iterable[Cell], finished: Finished, path: Path, log: Log, jobs: int = 1, ray: bool = False) -> None:
    """Train those that haven't finished, and add them to `finished` and the file.

    jobs: processes. ray: as many as a Ray cluster has cores for. Raises RunFailed.
    """
    missing = [cell for cell in dict.fromkeys(cells) if cell.key not in finished]
    begun = time.monotonic()
    done = _by_ray(missing) if ray else _by_processes(missing, jobs)
    for number, (cell, record) in enumerate(done, 1):
        whole = {"cell": asdict(cell), **record}
        finished[cell.key] = whole
        _append(path, whole)
        left_s = (time.monotonic() - begun) / number * (len(missing) - number)
        ended = "diverged" if record["diverged"] else f"{100 * record['accuracy']:.1f} %"
        log(f"[{number}/{len(missing)}] {cell.title}: {ended}, {record['seconds']:.0f} s; {left_s / 60:.0f} min left")


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


def trained(cell: Cell) -> dict[str, Any]:
    """A cell's record, or RunFailed with its name."""
    from emulation.errors import WorkloadError
    from emulation.study.training import train  # imports PyTorch

    try:
        return train(cell)
    except (WorkloadError, ValueError) as error:
        raise RunFailed(f"{cell.title}: {error}") from error


def _by_processes(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if jobs == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, trained(cell)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(cells)), context, _end_when_told)
    try:
        waiting, running = iter(cells), {}
        for cell in waiting:
            running[pool.submit(_unless_told, trained, cell)] = cell
            if len(running) < 2 * jobs:
                continue
            yield from _ended(running)
        while running:
            yield from _ended(running)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:
            child.join(END_S)
            child.kill()


def _ended(running: dict[Any, Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def _end_when_told() -> None:
    """Ctrl-C is the parent's business, who ends its children by SIGTERM; they end theirs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pool tells again once one has ended: that cut clean-ups short
    sys.exit(1)


def _unless_told(train: Callable[[Cell], dict[str, Any]], cell: Cell) -> dict[str, Any]:
    try:
        return train(cell)
    except SystemExit:
        os._exit(1)  # the pool would take it for a result, and begin the next run


def _by_ray(cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """On the cluster that RAY_ADDRESS names, or on this machine."""
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise RunFailed("--ray: the Python package 'ray' is missing; run: pip install 'switchagg[ray]'") from error
    if not cells:
        return
    ray.init(log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1)(_trained_or_why_not)
        running = {remote.remote(cell): cell for cell in cells}
        while running:
            (first, *_), _ = ray.wait(list(running))
            found = ray.get(first)
            if isinstance(found, RunFailed):
                raise found
            yield running.pop(first), found
    finally:
        ray.shutdown()


def _trained_or_why_not(cell: Cell) -> dict[str, Any] | RunFailed:
    """What a task of Ray raises comes back as a traceback in the message."""
    try:
        return trained(cell)
    except RunFailed as error:
        return error
