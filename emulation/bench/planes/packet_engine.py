"""The packet engines of virtual time on one core: packet-hops (a packet on one link) per second of CPU, C by Python.

An allreduce of int32 by method `switch` or `ring`, launched on all ranks at once on idle 100 Gb/s links: a fast network
has the most packets in flight. With values all of every sum is compared; without, only times and bytes are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from emulation.bench import table
from emulation.bench.arithmetic import MEGABYTE
from emulation.sim.engine.choice import COMPILED, PYTHON
from emulation.sim.hollow import Hollow
from emulation.sim.network.link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.topologies.topology import Fabric
from switchagg.native import library

Log = Callable[[str], None]

LINK = LinkConfig(100_000_000_000, 1_000)
ROUNDS = 3
"""The best of so many counts: other load on the machine only takes away."""


class Case(NamedTuple):
    """racks: 0: one switch. quick: whether a quick run has it."""

    engine: str
    workers: int
    size_bytes: int
    values: bool
    racks: int = 0
    quick: bool = True
    method: str = "switch"


CASES = (
    Case(PYTHON, 8, MEGABYTE // 2, values=True),
    Case(COMPILED, 8, 40 * MEGABYTE, values=False),
    Case(COMPILED, 8, 20 * MEGABYTE, values=True),
    Case(PYTHON, 64, MEGABYTE // 10, values=True),
    Case(COMPILED, 64, 20 * MEGABYTE, values=False),
    Case(COMPILED, 64, 4 * MEGABYTE, values=True),
    Case(COMPILED, 1024, 4 * MEGABYTE, values=False, racks=32, quick=False),
    Case(PYTHON, 8, MEGABYTE, values=True, method="ring"),
    Case(COMPILED, 8, 40 * MEGABYTE, values=False, method="ring"),
    Case(COMPILED, 8, 20 * MEGABYTE, values=True, method="ring"),
    Case(PYTHON, 64, MEGABYTE // 5, values=True, method="ring"),
    Case(COMPILED, 64, 20 * MEGABYTE, values=False, method="ring"),
    Case(COMPILED, 64, 4 * MEGABYTE, values=True, method="ring"),
    Case(COMPILED, 1024, 10 * MEGABYTE, values=False, racks=32, quick=False, method="ring"),
)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The part `engine` of the document."""
    if reason := library.missing():
        log(f"engine: left out: {reason}")
        return {"rows": [], "failures": {"engine": reason}}
    rows = []
    for case in CASES:
        if case.quick or not quick:
            values = "with" if case.values else "without"
            log(f"engine: {case.engine}, {case.method}, n = {case.workers}, {values} values")
            rows.append(min((_row(case) for _ in range(ROUNDS)), key=lambda row: float(row["cpu_ns"])))
    for row in rows:
        like = {"engine": PYTHON, "workers": row["workers"], "method": row["method"]}
        base = next((one for one in rows if one.items() >= like.items()), None)
        row["speedup"] = row["hops_per_s"] / base["hops_per_s"] if base else None
    return {"rows": rows, "failures": {}}


def _row(case: Case) -> dict[str, Any]:
    fabric = Fabric("leaf_spine", racks=case.racks) if case.racks else Fabric()
    config = SimulationConfig(case.workers, LINK, fabric=fabric, dataplane="native", engine=case.engine)
    simulation = SIMULATIONS[case.method](config)
    count, left = case.size_bytes // 4, case.workers
    arrays = [Hollow(count, np.int32)] * case.workers
    values = [np.full(count, rank, np.int32) for rank in range(case.workers if case.values else 0)]

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            simulation.network.stop()

    def launch(_frame: None, rank: int, _to: int) -> None:
        simulation.launch(rank, (values or arrays)[rank], "sum", done)

    for rank in range(case.workers):
        simulation.network.schedule(0, launch, None, rank)
    begun = time.process_time_ns()
    simulation.run("an allreduce")
    cpu_ns = time.process_time_ns() - begun
    hops = sum(link.delivered_frames for link in simulation.shared.links.values())
    wrong = sum(int(np.count_nonzero(array != sum(range(case.workers)))) for array in values)
    return {
        **case._asdict(),
        "hops": hops,
        "cpu_ns": cpu_ns,
        "hops_per_s": hops * 1e9 / cpu_ns,
        "virtual_ns": simulation.network.now_ns,
        "wrong_elements": wrong if case.values else None,
    }


def lines(part: dict[str, Any]) -> list[str]:
    """The table for people."""
    cells = [
        (
            f"{row['engine']}, {row['method']}, n = {row['workers']}"
            + (f", {row['racks']} racks" if row["racks"] else ""),
            "with" if row["values"] else "without",
            f"{row['hops'] / 1e6:.2f}",
            f"{row['cpu_ns'] / 1e9:.2f}",
            f"{row['hops_per_s'] / 1e6:.3f}",
            f"{row['speedup']:.0f}x" if row["speedup"] else "",
            "" if row["wrong_elements"] is None else str(row["wrong_elements"]),
        )
        for row in part["rows"]
    ]
    head = ("packet engine, one core", "values", "hops (M)", "CPU (s)", "hops/s (M)", "python's", "#wrong")
    return table.columns(head, cells)
