"""What packets cost this machine's hosts: measured for each link and path, for `[hosts]` of virtual time.

A method stands for what carries it. It sums the same array on emulated links of two rates: on slow ones each packet
wakes its program, on fast ones programs never rest. Its processes' CPU time on the fast ones, over the packets that
virtual time has of the same sum, is a packet's; what the slow ones take more, over the pauses that virtual time has
there, is a wake-up's. So both are in virtual time's own units, and neither is from the rates at which predictions are
judged.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulation.experiments.bench import bench_run
from emulation.experiments.bench.allreduce.allreduce_cells import OperationPace, measure
from emulation.experiments.bench.bench_run import BenchMatrix
from emulation.experiments.progress_text import Log, Passing
from emulation.scenario.errors import RunFailed, ScenarioError
from emulation.scenario.key_values import build_fields
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import PACKET_KEYS, HostOptions
from emulation.sim.host_costs import PacketCosts
from emulation.sim.network.simulation import Simulation
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.simulated_run import simulation_config
from emulation.testbed.certificate.processes import OTHERS_SHARE, busy_since, usage
from transport.group.method_name import METHODS, MethodName, parse

PROBES = {
    **{link: "ring" + ("" if link == "tcp" else f"@{link}") for link in ("tcp", "zeromq", "udp", "rdma")},
    **{name: name for name in ("switch", "switch@zeromq", "switch@rdma", "mlt", "dgt", "ltp", "optireduce")},
}
"""The method that stands for each link and path."""
SLOW_BPS, FAST_BPS = 50_000_000, 1_000_000_000
WORKERS, SIZE_BYTES = 4, 1_000_000
OPERATIONS = {SLOW_BPS: 8, FAST_BPS: 32}


@dataclass(frozen=True)
class CpuTime:
    """Of all workers' processes, and of the switch's, for a sum: the median; the least and most of nine in ten."""

    workers_ns: int
    switch_ns: int
    spread: float  # p90 over p10 of the workers', less 1


@dataclass(frozen=True)
class PathCosts:
    """The costs of a link or path, and how far the measurements lay apart at either rate."""

    costs: PacketCosts
    spreads: tuple[float, float]


def path_of(method: MethodName) -> str:
    """The name in PROBES of what carries a method."""
    name = str(replace(method, codec="", schedule=""))
    if name in PROBES:
        return name
    return method.method if method.method in PROBES else method.link or "tcp"


def calibrate(log: Log) -> dict[str, PathCosts]:
    """Measures every path. Raises UnfitError, RunFailed."""
    bench_run.require()
    before = usage(os.getpid())
    times = {rate_bps: _measured(rate_bps, log) for rate_bps in (FAST_BPS, SLOW_BPS)}
    share, _ = busy_since(before, os.getpid())
    if share > OTHERS_SHARE:
        log(
            f"other programs had {100 * share:.0f} % of the CPUs' time, so costs are wrong: end those, and run it again"
        )
    return {
        path: costs_of(parse(probe), times[FAST_BPS][probe], times[SLOW_BPS][probe]) for path, probe in PROBES.items()
    }


def _matrix(rate_bps: int, probes: Sequence[str]) -> BenchMatrix:
    return BenchMatrix(
        [WORKERS],
        [rate_bps],
        [SIZE_BYTES],
        ",".join(probes),
        congestion_control=["cubic"],
        iterations=OPERATIONS[rate_bps],
        pace=OperationPace(),
    )


def _measured(rate_bps: int, log: Log) -> dict[str, CpuTime]:
    (request,) = _matrix(rate_bps, list(PROBES.values())).requests()
    entry = measure(request, log, lambda row: log(Passing(f"{request.scenario.title}: {row['name']} done")))
    if entry["failures"]:
        raise RunFailed("; ".join(f"{name}: {why}" for name, why in entry["failures"].items()))
    return {
        row["name"].partition(":")[0]: CpuTime(
            row["worker_cpu_ns"] * WORKERS,
            round(row["switch_cpu_ns"] or 0),
            row["worker_cpu_p90_ns"] / max(1, row["worker_cpu_p10_ns"]) - 1,
        )
        for row in entry["rows"]
    }


def costs_of(method: MethodName, fast: CpuTime, slow: CpuTime) -> PathCosts:
    """A method's costs, by the packets and pauses of virtual time."""
    hosts, switch, _ = counted(method, FAST_BPS)
    *_, wakes = counted(method, SLOW_BPS)
    more_ns = slow.workers_ns + slow.switch_ns - fast.workers_ns - fast.switch_ns
    costs = PacketCosts(
        packet_ns=round(fast.workers_ns / hosts),
        switch_packet_ns=round(fast.switch_ns / switch) if switch else 0,
        wake_ns=max(0, round(more_ns / wakes)),
        cpus=len(os.sched_getaffinity(0)),
    )
    return PathCosts(costs, (fast.spread, slow.spread))


def counted(method: MethodName, rate_bps: int) -> tuple[int, int, int]:
    """What a sum has in virtual time: packets that hosts send or get, those of the switch's program, and pauses."""
    (request,) = _matrix(rate_bps, [str(method)]).requests()
    simulation = _simulation(request.methods[0].cell(request.scenario, SIZE_BYTES), method)
    waiting = simulation.config.workers

    def done() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            simulation.network.stop()

    def begin(*_: object) -> None:
        for rank in range(simulation.config.workers):
            simulation.launch(rank, np.ones(SIZE_BYTES // 4, np.float32), "sum", done)

    simulation.network.schedule(0, begin)
    simulation.run(f"a sum by {method}")
    packets = sum(link.sent_frames for link in simulation.uplinks)
    packets += sum(link.delivered_frames for link in simulation.downlinks)
    return packets, packets if method.is_switch else 0, simulation.shared.wakes


def _simulation(scenario: Scenario, method: MethodName) -> Simulation:
    config = replace(simulation_config(scenario, method), packet_costs=PacketCosts(packet_ns=1))
    if METHODS[method.method].loses:
        config = replace(config, bounded=scenario.bounded.options(method.method))
    return SIMULATIONS[method.method](config)


# ---- the file


def text_of(measured: Mapping[str, PathCosts]) -> str:
    """A table of `[hosts]` for each path, as TOML."""
    tables = [
        f'[hosts."{path}"]\n' + "".join(f"{key} = {value:_}\n" for key, value in vars(path_costs.costs).items())
        for path, path_costs in measured.items()
    ]
    return "# CPU time of packets on one machine, by `switchagg calibrate` (docs/results/fidelity.md).\n\n" + "\n".join(
        tables
    )


def load(path: Path) -> dict[str, HostOptions]:
    """The tables of such a file, by path. Raises ScenarioError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{path}: {reason}; `switchagg calibrate` writes such a file") from error
    tables: Any = document.get("hosts")
    if not isinstance(tables, dict) or document.keys() != {"hosts"} or tables.keys() != PROBES.keys():
        names = ", ".join(PROBES)
        raise ScenarioError(f"{path}: it needs a table [hosts.NAME] for each of {names}; run switchagg calibrate again")
    built = {}
    for name, values in tables.items():
        if not isinstance(values, dict) or values.keys() != set(PACKET_KEYS):
            raise ScenarioError(f"{path}: [hosts.{name}] has {', '.join(PACKET_KEYS)}; run switchagg calibrate again")
        built[name] = build_fields(values, HostOptions, f"{path}: [hosts.{name}] ")
    return built


def lines(measured: Mapping[str, PathCosts]) -> list[list[str]]:
    """Rows of a table: path, costs in us, spreads."""
    rows = []
    for path, path_costs in measured.items():
        costs = path_costs.costs.packet_ns, path_costs.costs.switch_packet_ns, path_costs.costs.wake_ns
        spreads = (f"{100 * spread:.0f} %" for spread in path_costs.spreads)
        rows.append([path, *(f"{value / 1000:.1f}" for value in costs), *spreads])
    return rows
