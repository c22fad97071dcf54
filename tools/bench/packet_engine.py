"""The packet engine of virtual time: packet-hops (a packet on one link) per second of CPU.

An allreduce of int32 by method `switch` or `ring`, launched on all ranks at once on idle 100 Gb/s links: a fast network
has the most packets in flight. With values all of every sum is compared; without, only times and bytes are computed.
Then the time and memory of one array on 4 to 1,024 workers against events, and racks on two threads.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulation.experiments.bench.bandwidths import MEGABYTE
from emulation.experiments.progress_text import Log
from emulation.report import table_kit
from emulation.scenario.topologies.topology import Fabric
from emulation.sim.engine.packet_clock import THREADS_VARIABLE
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.size_only import SizeOnlyArray
from switchagg.job import MAX_CHILDREN
from switchagg.native import library

LINK = LinkConfig(100_000_000_000, 1_000)
ROUNDS = 3
"""The best of so many counts: other load on the machine only takes away."""


class EngineCase(NamedTuple):
    """racks: 0: one switch. quick: whether a quick run has it. threads: of the simulation."""

    workers: int
    size_bytes: int
    values: bool
    racks: int = 0
    quick: bool = True
    method: str = "switch"
    threads: int = 1


CASES = (
    EngineCase(8, 40 * MEGABYTE, values=False),
    EngineCase(8, 20 * MEGABYTE, values=True),
    EngineCase(64, 20 * MEGABYTE, values=False),
    EngineCase(64, 4 * MEGABYTE, values=True),
    EngineCase(8, 40 * MEGABYTE, values=False, method="ring"),
    EngineCase(8, 20 * MEGABYTE, values=True, method="ring"),
    EngineCase(64, 20 * MEGABYTE, values=False, method="ring"),
    EngineCase(64, 4 * MEGABYTE, values=True, method="ring"),
)


SCALE = tuple(
    EngineCase(workers, 10 * MEGABYTE, False, workers // 32 if workers > 32 else 0, workers <= 64, method)
    for method in ("switch", "ring")
    for workers in (4, 16, 64, 256, 1024)
)
"""The same array on more and more workers: time and memory against events."""

LARGE = (
    EngineCase(1024, 100 * MEGABYTE, False, 32, quick=False),
    EngineCase(1024, 100 * MEGABYTE, False, 32, quick=False, method="ring"),
    EngineCase(4096, 10 * MEGABYTE, False, 128, quick=False),
    EngineCase(4096, 10 * MEGABYTE, False, 128, quick=False, threads=2),
    EngineCase(4096, MEGABYTE, False, 128, quick=False, method="ring"),
    EngineCase(4096, MEGABYTE, False, 128, quick=False, method="ring", threads=2),
)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The part `engine` of the document. A case runs alone in a process, whose memory is what the case takes."""
    if reason := library.missing():
        log(f"engine: left out: {reason}")
        return {"rows": [], "scale": [], "large": [], "failures": {"engine": reason}}
    part: dict[str, Any] = {"failures": {}}
    for name, cases in (("rows", CASES), ("scale", SCALE), ("large", LARGE)):
        part[name] = [_apart(_best, case, log) for case in cases if case.quick or not quick]
    return part


def _apart(measured: Callable[[EngineCase], dict[str, Any]], case: EngineCase, log: Log) -> dict[str, Any]:
    log("engine: " + ", ".join(f"{name} = {value}" for name, value in case._asdict().items() if name != "quick"))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, case).result()


def _best(case: EngineCase) -> dict[str, Any]:
    rounds = 1 if case in LARGE else ROUNDS
    return min((_row(case) for _ in range(rounds)), key=lambda row: float(row["cpu_ns"]))


def _row(case: EngineCase) -> dict[str, Any]:
    begun_ns, begun_cpu = time.monotonic_ns(), time.process_time_ns()
    kind = "leaf_spine" if case.racks <= MAX_CHILDREN else "fat_tree"
    fabric = Fabric(kind, racks=case.racks) if case.racks else Fabric()
    config = SimulationConfig(case.workers, LINK, fabric=fabric, dataplane="native")
    os.environ[THREADS_VARIABLE] = str(case.threads)
    simulation = SIMULATIONS[case.method](config)
    count = case.size_bytes // 4
    values = [np.full(count, rank, np.int32) for rank in range(case.workers if case.values else 0)]
    ready_cpu = time.process_time_ns()
    _run(simulation, values or [SizeOnlyArray(count, np.int32)] * case.workers)
    cpu_ns = time.process_time_ns() - ready_cpu
    hops = sum(link.delivered_frames for link in simulation.shared.links.values())
    wrong = sum(int(np.count_nonzero(array != sum(range(case.workers)))) for array in values)
    return {
        **case._asdict(),
        "hops": hops,
        "events": simulation.network.events,
        "cpu_ns": cpu_ns,
        "whole_ns": time.monotonic_ns() - begun_ns,
        "whole_cpu_ns": time.process_time_ns() - begun_cpu,
        "memory_bytes": _memory_bytes(),
        "hops_per_s": hops * 1e9 / cpu_ns,
        "virtual_ns": simulation.network.now_ns,
        "wrong_elements": wrong if case.values else None,
    }


def _memory_bytes() -> int:
    """The most that this process has had; that of `getrusage` begins with its parent's."""
    return int(Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) * 1024


def _run(simulation: Simulation, arrays: Sequence[NDArray[Any] | SizeOnlyArray]) -> None:
    """An allreduce, launched on all ranks at once."""
    left = len(arrays)

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            simulation.network.stop()

    def launch(_frame: None, rank: int, _to: int) -> None:
        simulation.launch(rank, arrays[rank], "sum", done)

    for rank in range(len(arrays)):
        simulation.network.schedule(simulation.network.now_ns, launch, None, rank)
    simulation.run("an allreduce")


def exponent(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """The power of events to which `name` grows: the slope of a straight line through their logarithms."""
    if len(rows) < 2:
        return None
    events, values = (np.log([float(row[column]) for row in rows]) for column in ("events", name))
    return float(np.polyfit(events, values, 1)[0])


def lines(part: dict[str, Any]) -> list[str]:
    """The table for people."""
    cells = [
        (
            f"{row['method']}, n = {row['workers']}" + (f", {row['racks']} racks" if row["racks"] else ""),
            "with" if row["values"] else "without",
            f"{row['hops'] / 1e6:.2f}",
            f"{row['cpu_ns'] / 1e9:.2f}",
            f"{row['hops_per_s'] / 1e6:.3f}",
            "" if row["wrong_elements"] is None else str(row["wrong_elements"]),
        )
        for row in part["rows"]
    ]
    head = ("packet engine, one core", "values", "hops (M)", "CPU (s)", "hops/s (M)", "#wrong")
    text = table_kit.columns(head, cells)
    columns = ("one array, world and all", "threads", "events (M)", "virtual ms", "wall (s)", "CPU (s)", "GB")
    sizes = [
        (
            f"{row['method']}, n = {row['workers']}, {row['size_bytes'] / 1e6:g} MB",
            str(row["threads"]),
            f"{row['events'] / 1e6:.2f}",
            f"{row['virtual_ns'] / 1e6:.6f}",
            f"{row['whole_ns'] / 1e9:.2f}",
            f"{row['whole_cpu_ns'] / 1e9:.2f}",
            f"{row['memory_bytes'] / 1e9:.2f}",
        )
        for row in (*part.get("scale", []), *part.get("large", []))
    ]
    return [
        *text,
        "",
        *table_kit.columns(columns, sizes),
    ]
