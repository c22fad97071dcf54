"""What a decision of the scheduler costs: per transfer, all of becoming ready, being started and completing."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from emulation.bench import arithmetic
from transport.schedule.scheduler import (
    LayerProfile,
    Profile,
    Scheduler,
    TensorProfile,
    Transfer,
    class_lanes,
    plan_transfers,
)

TRANSFERS = (10, 100, 1000)
SLICE_ELEMENTS = 40_000
SLICES_PER_TENSOR = 10
CLASSES = 8
TARGET_NS = 5_000
ITERATIONS = 200  # of the smallest plan; larger ones get fewer, for the same number of decisions


def decision_cost(iterations: int = ITERATIONS) -> dict[str, Any]:
    """Nanoseconds per transfer and decision: spread over iterations, for calls matched by key and in lanes.

    A decision is `ready` for its share of a tensor, `launches`, and `completed`. Slices of P3, ten to a tensor; each
    tensor's are started when it is ready, and completed in the order of their starts.
    """
    rows = []
    for count in TRANSFERS:
        transfers = _plan(count)
        for lanes in (None, class_lanes(transfers, CLASSES)):
            scheduler = Scheduler(transfers, lanes=lanes, credit_bytes=None)
            runs = max(min(iterations, 20), iterations * TRANSFERS[0] // count)
            _iteration(scheduler, transfers)  # not counted: memory and caches
            times = [_iteration(scheduler, transfers) / count for _ in range(runs)]
            rows.append(
                {
                    "transfers": count,
                    "matched_by": "key" if lanes is None else "order",
                    "decision_ns": dataclasses.asdict(arithmetic.spread(times)),
                }
            )
    return {"rows": rows, "target_ns": TARGET_NS}


def _plan(count: int) -> tuple[Transfer, ...]:
    tensors = max(1, count // SLICES_PER_TENSOR)
    elements = count // tensors * SLICE_ELEMENTS
    profile = Profile(
        tuple(TensorProfile(f"w{place}", elements, place, (tensors - place) * 1000) for place in range(tensors)),
        tuple(LayerProfile(f"l{place}", 1000) for place in range(tensors)),
        tensors * 1000,
    )
    return plan_transfers(f"p3:slice={SLICE_ELEMENTS}", profile)


def _iteration(scheduler: Scheduler, transfers: tuple[Transfer, ...]) -> int:
    """Nanoseconds of one iteration's decisions."""
    tensors = max(transfer.parts[0].tensor for transfer in transfers) + 1
    under_way: list[Transfer] = []
    begin_ns = time.perf_counter_ns()
    for tensor in reversed(range(tensors)):
        scheduler.ready(tensor, begin_ns)
        under_way += scheduler.launches(begin_ns)
    for transfer in under_way:
        scheduler.completed(transfer, begin_ns)
        scheduler.launches(begin_ns)
    return time.perf_counter_ns() - begin_ns
