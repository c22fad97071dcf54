"""Host collectives in virtual time, beside the cost model; what one decision of the scheduler costs; and reduce-scatter
and all-gather in real processes, alone and at once, where networks can be emulated.

Virtual time is exact and the same on every machine: what is compared here is the algorithms alone. The model's α and β
are read off the links, not fitted.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.progress_text import Log, Passing
from emulation.report import table_kit
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from emulation.testbed.mininet import mininet_run
from tools.bench import sharding_times
from transport.collectives.collective import LinkCost
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.cost import predict
from transport.group.method_name import host_methods
from transport.schedule.schedule_plan import TensorRange, Transfer
from transport.schedule.scheduler import Scheduler

ALGORITHMS = tuple(host_methods())
SIZES = (4096, 65_536, 1_048_576)
WORKERS = 8
RATE_BPS, DELAY_NS = 1_000_000_000, 1_000_000  # of every link; two lie between any two hosts
SEGMENT_BYTES, HEADER_BYTES, ACKNOWLEDGEMENT_BYTES = 1448, 66, 66  # as TCP frames them; one for every two
TENSORS, PARTS = 160, 4  # ResNet-50 has 160 tensors; a tensor goes in 4 transfers
TURNS, QUICK_TURNS = 200, 20


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The part `collectives` of the document."""
    log(Passing(f"collectives: {len(ALGORITHMS)} algorithms in virtual time, n = {WORKERS}"))
    rows = [_row(name, size) for size in SIZES[: 2 if quick else None] for name in ALGORITHMS]
    log(Passing("collectives: decisions of the scheduler"))
    decision = scheduler_decision(QUICK_TURNS if quick else TURNS)
    sharded: list[dict[str, Any]] = []
    if reason := mininet_run.missing():
        log(f"collectives: reduce-scatter and all-gather in real processes: left out: {reason}")
    else:
        sharded = sharding_times.measure(quick, log)
    return {"rows": rows, "scheduler": decision, "sharded": sharded, "failures": {}}


def _row(algorithm: str, size: int) -> dict[str, Any]:
    config = SimulationConfig(WORKERS, LinkConfig(RATE_BPS, DELAY_NS))
    timing = time_allreduce(config, algorithm, size, "float32")
    model_ns = predict(algorithm, WORKERS, size, link_cost(config)) * 1e9
    return {
        "algorithm": algorithm,
        "workers": WORKERS,
        "size_bytes": size,
        "rate_bps": RATE_BPS,
        "delay_ns": DELAY_NS,
        "time_ns": timing.duration_ns,
        "model_ns": model_ns,
        "wrong_elements": timing.wrong_elements,
    }


def link_cost(config: SimulationConfig) -> LinkCost:
    """α: two delays, and the last frame once more on the second link. β: bytes on the wire per byte of payload."""
    frame_s = (SEGMENT_BYTES + HEADER_BYTES) * 8 / config.link.rate_bps
    wire = SEGMENT_BYTES + HEADER_BYTES + ACKNOWLEDGEMENT_BYTES / 2
    framing = wire / (SEGMENT_BYTES * (1 - HEAD_BYTES / config.message_bytes))
    return LinkCost(2 * config.link.delay_ns / 1e9 + frame_s, 8 / config.link.rate_bps * framing)


def scheduler_decision(turns: int) -> dict[str, Any]:
    """ns per transfer: a gradient is ready, what may start is asked for, and what has started completes."""
    parts = range(TENSORS * PARTS)
    plan = [Transfer(key, key // PARTS, (TensorRange(key // PARTS, 0, 1000),), 4000) for key in parts]
    durations = []
    for _ in range(turns):
        scheduler = Scheduler(plan)
        begun_ns = time.perf_counter_ns()
        for tensor in reversed(range(TENSORS)):
            scheduler.ready(tensor, tensor)
            for transfer in scheduler.launches(tensor):
                scheduler.completed(transfer, tensor)
        durations.append((time.perf_counter_ns() - begun_ns) / len(plan))
        assert scheduler.idle
    return {"transfers": len(plan), "decision_ns": dataclasses.asdict(bandwidths.spread(durations))}


def lines(part: dict[str, Any]) -> list[str]:
    """The tables for people."""
    cells = [
        (
            row["algorithm"],
            str(row["size_bytes"]),
            f"{row['time_ns'] / 1e6:.3f}",
            f"{row['model_ns'] / 1e6:.3f}",
            f"{100 * row['time_ns'] / row['model_ns'] - 100:+.1f} %",
            str(row["wrong_elements"]),
        )
        for row in part["rows"]
    ]
    what = f"n = {WORKERS}, {RATE_BPS // 10**9} Gb/s, {DELAY_NS // 10**6} ms per link, virtual time"
    decision = part["scheduler"]["decision_ns"]
    return [
        *table_kit.columns((what, "size (B)", "time (ms)", "model (ms)", "off", "#wrong"), cells),
        f"a decision of the scheduler: {decision['median'] / 1e3:.2f} us ({decision['p25'] / 1e3:.2f} … "
        f"{decision['p75'] / 1e3:.2f}), of {part['scheduler']['transfers']} transfers in an iteration",
        *sharding_times.lines(part.get("sharded", [])),
    ]
