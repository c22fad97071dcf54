"""Cells of a study or a sweep, worked on by processes of this machine or by Ray on several, each yielded as it ends.

The work is a function of a module, so that other processes find it. It gives a result or raises RunFailed.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from emulation.scenario.errors import RunFailed

Cell = TypeVar("Cell")
Result = TypeVar("Result")

END_S = 5.0
"""How long a process that was told to end may take to end what it has started."""

FIRST_BYTES = 1_000_000_000
"""The memory that a process is assumed to take until one has taken more."""


def worked(
    work: Callable[[Cell], Result], cells: Sequence[Cell], jobs: int, ray: bool = False
) -> Iterator[tuple[Cell, Result]]:
    """Cells with their results, as they end. jobs: processes at most, fewer while memory is short; ray: as many as a
    Ray cluster has cores. Started processes end with the iterator. Raises RunFailed."""
    return by_ray(work, cells) if ray else by_processes(work, cells, jobs)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def time_left(start_s: float, done: int, total: int) -> str:
    """ "12 min left", from how long the first ones took. begun: of time.monotonic."""
    left_s = (time.monotonic() - start_s) / done * (total - done)
    return f"{left_s / 60:.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"


def by_processes(work: Callable[[Cell], Result], cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Result]]:
    """All cells run in this process."""
    if jobs == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, work(cell)
        return
    pool = ProcessPoolExecutor(min(jobs, len(cells)), multiprocessing.get_context("spawn"), _end_when_told)
    try:
        running: dict[Any, Cell] = {}
        for cell in cells:
            while len(running) >= jobs or (running and not _memory_for_another()):
                yield from _ended(running)
            running[pool.submit(functools.partial(_unless_told, work), cell)] = cell
        while running:
            yield from _ended(running)
        pool.shutdown()  # those that nobody tells to end do so by themselves
    except BrokenProcessPool as error:
        why = "as the kernel ends those that take too much memory"
        raise RunFailed(f"a process ended without a word, {why}; with fewer --jobs each has more of it") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:
            child.join(END_S)
            child.kill()


def _ended(running: dict[Any, Cell]) -> Iterator[tuple[Cell, Any]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def _memory_for_another() -> bool:
    """Whether there is room for a process as large as the largest of ours has been."""
    processes = [child.pid for child in multiprocessing.active_children()]
    largest = max([FIRST_BYTES, *(_kilobytes(Path(f"/proc/{pid}/status"), "VmHWM") * 1024 for pid in processes)])
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024 >= largest


def _kilobytes(path: Path, name: str) -> int:
    """0 of a process that has ended."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _end_when_told() -> None:
    """Ctrl-C is the parent's business, who ends its children by SIGTERM; they end theirs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pool tells again once one has ended: that cut clean-ups short
    sys.exit(1)


def _unless_told(work: Callable[[Cell], Result], cell: Cell) -> Result:
    try:
        return work(cell)
    except SystemExit:
        os._exit(1)  # the pool would take it for a result, and begin the next run


def by_ray(work: Callable[[Cell], Result], cells: Sequence[Cell]) -> Iterator[tuple[Cell, Result]]:
    """On the cluster that RAY_ADDRESS names, or on this machine."""
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise RunFailed("--ray: the Python package 'ray' is missing; run: pip install 'switchagg[ray]'") from error
    if not cells:
        return
    ray.init(log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1)(_worked_or_why_not)
        running = {remote.remote(work, cell): cell for cell in cells}
        while running:
            (first, *_), _ = ray.wait(list(running))
            result = ray.get(first)
            if isinstance(result, RunFailed):
                raise result
            yield running.pop(first), result
    finally:
        ray.shutdown()


def _worked_or_why_not(work: Callable[[Cell], Result], cell: Cell) -> Result | RunFailed:
    """An exception in a task of Ray comes back as a traceback in the message."""
    try:
        return work(cell)
    except RunFailed as error:
        return error
