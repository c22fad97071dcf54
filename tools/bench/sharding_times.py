"""Reduce-scatter and all-gather alone and at once, in real processes on emulated links: what FSDP2 sends.

An array that is reduce-scattered goes up a link and one that is all-gathered comes down, so both at once should take as
long as one; in a ring each fills both directions.
"""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.allreduce.allreduce_rank import MeetingPoint
from emulation.experiments.bench.allreduce.bench_methods import ELEMENTS
from emulation.experiments.progress_text import Log, Passing
from emulation.report import table_kit
from emulation.scenario.bounds import NetworkParameters, bound_together
from emulation.scenario.scenario import ALLREDUCE, Scenario
from emulation.scenario.scenario_tables import Faults, Methods, SwitchSettings, TopologyOptions, WorkloadOptions
from emulation.testbed import children
from emulation.testbed.certificate.fidelity import rate_text
from emulation.testbed.mininet.launch import RunningScenario
from switchagg.description import Kind
from tools.bench.sharding_rank import ALL_GATHER, BOTH, REDUCE_SCATTER, ShardingTask, ShardingTimes
from transport.group.method_name import MethodName
from transport.group.method_name import parse as parse_method

METHODS = tuple(map(parse_method, ("gloo", "ring", "switch")))
WORKERS, RATE_BPS = 4, 200_000_000
SIZE_BYTES, QUICK_BYTES = 25 * bandwidths.MEGABYTE, bandwidths.MEGABYTE
OPERATIONS, QUICK_OPERATIONS = 5, 1
WINDOW_SLOTS = 256
LIMIT_S = 120.0  # of an operation
KINDS: dict[str, tuple[Kind, ...]] = {
    REDUCE_SCATTER: ("reduce_scatter",),
    ALL_GATHER: ("all_gather",),
    BOTH: ("reduce_scatter", "all_gather"),
}


def measure(quick: bool, log: Log) -> list[dict[str, Any]]:
    """A row for each method and kind. Raises UnfitError, RunFailed."""
    size, operations = (QUICK_BYTES, QUICK_OPERATIONS) if quick else (SIZE_BYTES, OPERATIONS)
    rows = []
    for method in METHODS:
        log(Passing(f"collectives: reduce-scatter and all-gather of {size} bytes by {method}, {rate_text(RATE_BPS)}"))
        rows += _of_method(method, size, operations)
    return rows


def _of_method(method: MethodName, size: int, operations: int) -> list[dict[str, Any]]:
    scenario = Scenario(
        name=ALLREDUCE,
        title=f"reduce-scatter and all-gather, n = {WORKERS}",
        seed=1,
        methods=Methods(mininet=(method,), sim=()),
        topology=TopologyOptions(workers=WORKERS, rate_bps=RATE_BPS),
        faults=Faults(),
        workload=WorkloadOptions(ALLREDUCE, bucket_bytes=size, compute_ns=0),
        switch=SwitchSettings(elements=ELEMENTS, window_slots=WINDOW_SLOTS),
    )
    started: list[children.Child[Any]] = []
    with tempfile.NamedTemporaryFile(prefix="switchagg-bench-") as shared, RunningScenario(scenario) as network:
        shared.write(bytes(MeetingPoint.size_bytes(WORKERS)))
        shared.flush()
        switch = network.start_switch(scenario, method, str(method)) if method.is_switch else None
        addresses = tuple(worker.address for worker in network.star.workers)
        try:
            for worker in network.star.workers:
                place = ShardingTask(
                    worker.rank,
                    addresses,
                    worker.interface,
                    str(method),
                    "" if switch is None else switch.control,
                    size,
                    operations,
                    shared.name,
                    LIMIT_S,
                )
                spawn = partial(network.start_rank, worker.rank)
                module = "tools.bench.sharding_rank"
                started.append(children.start(spawn, f"rank {worker.rank}", module, place, ShardingTimes))
            limit_s = len(KINDS) * (operations + 1) * LIMIT_S
            answers: list[ShardingTimes] = children.gather(
                started, limit_s, network.check_services, network.pids_of_services
            )
        finally:
            children.close(started)
    return [_row(method, kind, size, scenario.network, answers) for kind in KINDS]


def _row(
    method: MethodName, kind: str, size: int, network: NetworkParameters, answers: list[ShardingTimes]
) -> dict[str, Any]:
    times = bandwidths.spread([*map(max, zip(*(rank.durations_ns[kind] for rank in answers), strict=True))])
    least = bound_together(method, dict.fromkeys(KINDS[kind], size), size, network)
    return {
        "method": str(method),
        "kind": kind,
        "workers": network.workers,
        "rate_bps": network.rate_bps,
        "size_bytes": size,
        "time_ns": vars(times),
        "bound_ns": least.communication_ns,
        "share_of_bound": least.communication_ns / times.median,
        "wire_tx_bytes_per_rank": max(rank.sent_bytes[kind] for rank in answers),
        "wire_rx_bytes_per_rank": max(rank.received_bytes[kind] for rank in answers),
        "wrong_elements": sum(rank.wrong[kind] for rank in answers),
    }


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table for people."""
    cells = [
        (
            f"{row['method']}, {row['kind']}",
            f"{row['time_ns']['median'] / 1e6:.1f}",
            f"{row['bound_ns'] / 1e6:.1f}",
            f"{100 * row['share_of_bound']:.1f} %",
            f"{row['wire_tx_bytes_per_rank'] / row['size_bytes']:.3f}",
            f"{row['wire_rx_bytes_per_rank'] / row['size_bytes']:.3f}",
            str(row["wrong_elements"]),
        )
        for row in rows
    ]
    what = f"{rows[0]['size_bytes']} B, n = {WORKERS}, {rate_text(RATE_BPS)}, real processes"
    heads = (what, "time (ms)", "bound (ms)", "of bound", "sent/size", "received/size", "#wrong")
    return table_kit.columns(heads, cells)
