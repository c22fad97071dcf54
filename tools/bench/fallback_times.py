"""What a fallback costs calls whose switch works: allreduce in real processes on loopback, with and without one.

Each rank has three places on one switch: a job without a fallback, another, whose distance from the first is noise, and
a job with one. They take turns, a block of calls each, in an order that moves on by one; the calls of a block follow
each other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from emulation.experiments.bench import bandwidths
from emulation.report import table_kit
from emulation.testbed import children
from emulation.testbed.children import ChildReport, give_up, send_report
from transport.group.group_opening import open_group
from transport.meshes.mesh_opening import bind_place
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

WORKERS, QUICK_WORKERS = (2, 4), (2,)
SIZES = {1_000: 200, 4_096: 200, 65_536: 60, 4_000_000: 4}
"""Calls of a block, by bytes of an array."""
BLOCKS, PROCESSES, QUICK_BLOCKS = 12, 3, 6
"""Blocks of each job and size; how often all processes start anew."""
WITHOUT, AGAIN, WITH = "without", "without, again", "with"
JOBS = (WITHOUT, AGAIN, WITH)
LEASE_S = 60.0
"""No rank is taken for dead because others use the processors."""
LIMIT_S, PROCESSES_S = 60.0, 600.0
"""Of a call; of all of a job's."""


class FallbackTask(msgspec.Struct, frozen=True):
    """A rank's task. addresses: of the host method."""

    rank: int
    addresses: tuple[tuple[str, int], ...]
    switch: str
    blocks: int


class FallbackTimes(ChildReport):
    """For each size and job, of each block: the median time of its calls, and the rank's CPU time by call."""

    times_ns: dict[int, dict[str, list[float]]]
    cpu_ns: dict[int, dict[str, list[float]]]


def measure(quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of workers, size and job. Raises RunFailed."""
    rows = []
    for workers in QUICK_WORKERS if quick else WORKERS:
        reports = []
        for number in range(1 if quick else PROCESSES):
            log(f"fallback: n = {workers}, processes {number + 1}")
            reports += _of_processes(workers, QUICK_BLOCKS if quick else BLOCKS)
        for size in SIZES:
            times = {job: [block for report in reports for block in report.times_ns[size][job]] for job in JOBS}
            cpu = {job: [block for report in reports for block in report.cpu_ns[size][job]] for job in JOBS}
            rows += [_row(workers, size, job, times, cpu) for job in JOBS]
    return rows


def _of_processes(workers: int, blocks: int) -> list[FallbackTimes]:
    options = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), "native", lease_s=LEASE_S)
    started: list[children.Child[Any]] = []
    with ExitStack() as stack:
        daemon = SwitchDaemon(options)
        daemon.start()
        stack.callback(daemon.stop)
        stack.callback(children.close, started)
        places = [bind_place("tcp", "127.0.0.1") for _ in range(workers)]
        addresses = tuple(place.address for place in places)
        for place in places:
            place.close()
        for rank in range(workers):
            task = FallbackTask(rank, addresses, daemon.control_endpoint, blocks)
            module = "tools.bench.fallback_times"
            started.append(children.start(subprocess.Popen, f"rank {rank}", module, task, FallbackTimes))
        times: list[FallbackTimes] = children.gather(started, PROCESSES_S)
        return times


def _row(
    workers: int, size: int, job: str, times: dict[str, list[float]], cpu: dict[str, list[float]]
) -> dict[str, Any]:
    ratios = [own / other for own, other in zip(times[job], times[WITHOUT], strict=True)]
    return {
        "workers": workers,
        "size_bytes": size,
        "job": job,
        "time_ns": vars(bandwidths.spread(times[job])),
        "cpu_ns": vars(bandwidths.spread(cpu[job])),
        "ratio": vars(bandwidths.spread(ratios)),
    }


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table for people."""
    cells = [
        (
            f"n = {row['workers']}, {row['size_bytes']} B, {row['job']}",
            f"{row['time_ns']['median'] / 1e3:.1f}",
            f"{row['cpu_ns']['median'] / 1e3:.1f}",
            f"{row['ratio']['median']:.3f}",
            f"{row['ratio']['p25']:.3f} … {row['ratio']['p75']:.3f}",
        )
        for row in rows
    ]
    heads = ("float32, loopback, switch native", "time (us)", "CPU (us/rank)", "of `without`", "25 % … 75 %")
    return table_kit.columns(heads, cells)


def _run(task: FallbackTask) -> FallbackTimes:
    times: dict[int, dict[str, list[float]]] = {size: {job: [] for job in JOBS} for size in SIZES}
    cpu: dict[int, dict[str, list[float]]] = {size: {job: [] for job in JOBS} for size in SIZES}
    with ExitStack() as stack:
        groups = {}
        for job in JOBS:
            options: dict[str, Any] = {"switch": task.switch, "bind": "127.0.0.1"}
            options |= {"fallback": "ring"} if job == WITH else {}
            name = f"bench {job}".replace(" ", "-").replace(",", "")
            group = open_group("switch", "udp", task.rank, task.addresses, job=name, options=options)
            groups[job] = stack.enter_context(group)
        for size, calls in SIZES.items():
            array = np.random.default_rng(task.rank).standard_normal(size // 4).astype(np.float32)
            for block in range(-1, task.blocks):
                for turn in range(len(JOBS)):
                    job = JOBS[(block + turn) % len(JOBS)]
                    median_ns, cpu_ns = _block(groups[job], array, calls)
                    if block >= 0:  # the first one warms up
                        times[size][job].append(median_ns)
                        cpu[size][job].append(cpu_ns)
    return FallbackTimes(times, cpu)


def _block(group: Any, array: Any, calls: int) -> tuple[float, float]:
    group.barrier().result(LIMIT_S)
    durations, cpu_ns = [], time.process_time_ns()
    for _ in range(calls):
        given = array.copy()
        start_ns = time.perf_counter_ns()
        group.allreduce(given).result(LIMIT_S)
        durations.append(time.perf_counter_ns() - start_ns)
    return statistics.median(durations), (time.process_time_ns() - cpu_ns) / calls


if __name__ == "__main__":
    try:
        send_report(_run(msgspec.json.decode(sys.argv[1], type=FallbackTask)))
    except Exception as error:
        give_up(error)
    os._exit(0)
