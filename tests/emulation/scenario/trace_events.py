"""Traces as torch.profiler writes them, of events given by hand; times in µs."""

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def span(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: object) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write(
    path: Path, events: list[Event], *, backend: str = "gloo", rank: int = 0, world: int = 2, groups: Any = ()
) -> Path:
    """groups: ranks by name."""
    told = [{"pg_name": name, "ranks": ranks, "pg_size": len(ranks)} for name, ranks in dict(groups).items()]
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": told},
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}, *events],
    }
    text = json.dumps(document, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ddp_step(at: float, number: int = 0, *, slow: float = 1.0, steps: bool = True) -> list[Event]:
    """200 µs, of which 40 are spent waiting for the second of two buckets (1,000 and 4,000 float32); `slow` stretches
    what is computed in the forward pass, 50 µs, and so what follows."""
    late = at + 50 * (slow - 1)
    backward = "autograd::engine::evaluate_function: "
    gradient = "torch::autograd::AccumulateGrad"
    dims = {"Input Dims": [[[1000]], []], "Input type": ["TensorList", ""]}
    events = [
        span("aten::linear", at + 0, 30 * slow, **{"Sequence number": 10, "Fwd thread id": 0}),
        span("aten::addmm", at + 30 * slow, 20 * slow, **{"Sequence number": 11, "Fwd thread id": 0}),
        span(f"{backward}AddmmBackward0", late + 50, 10, **{"Sequence number": 11, "Fwd thread id": 1}),
        span(backward + gradient, late + 60, 10),
        span(gradient, late + 61, 8, **{"Input Dims": [[1000]]}),
        span("c10d::allreduce_", late + 70, 2, **dims),
        span(
            "gloo:all_reduce", late + 72, 18, "user_annotation", 2, **{"Input type": ["float"], "Input Dims": [[1000]]}
        ),
        span(f"{backward}LinearBackward0", late + 75, 45, **{"Sequence number": 10, "Fwd thread id": 1}),
        span(backward + gradient, late + 120, 10),
        span(gradient, late + 121, 8, **{"Input Dims": [[80, 50]]}),
        span("c10d::allreduce_", late + 130, 2, **{**dims, "Input Dims": [[[4000]], []]}),
        span(
            "gloo:all_reduce", late + 140, 40, "user_annotation", 2, **{"Input type": ["float"], "Input Dims": [[4000]]}
        ),
        span("aten::copy_", late + 185, 5),
        span("Optimizer.step#SGD.step", late + 190, 10, "user_annotation"),
        span("aten::add_", late + 190, 10),
    ]
    if steps:
        events.append(span(f"ProfilerStep#{number}", at, late + 200 - at, "user_annotation"))
    return events
