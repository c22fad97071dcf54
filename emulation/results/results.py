"""Results: what a run of one method measured, and the numbers derived from it.

`MethodResult` is what every backend's `run_method` returns. `document` turns the results of all methods into the
plain dict that is written to `results.json` (schema: `results_schema.md`); `write_json` is deterministic.
Nothing here reads a clock or the host: those facts live in `host.json`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from emulation.results.speedups import TIMES, between, finding, ratio, verdict, worst
from emulation.results.timeline import Span
from emulation.results.whole_file import write_text
from emulation.scenario.bounds import bound, bound_together, elements_of, wire_bytes_per_server
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, canonical
from switchagg.codecs import FIXED_POINT, ArrayCodec
from switchagg.codecs.spec import parse_codec
from switchagg.description import Kind
from transport.group.method_name import METHODS, MethodName

SCHEMA = "switchagg-results-2"


@dataclass(frozen=True)
class IterationRecord:
    """A training iteration, over all ranks."""

    iteration: int  # 0 …
    start_ns: int  # since the start of training
    duration_ns: int  # slowest rank; evaluation excluded
    compute_ns: int  # forward + backward + optimiser, slowest rank
    communication_ns: int  # while buckets are under way, from the last rank's start to the last rank's end of each
    loss: float  # training loss, mean over ranks; no number where nothing is trained
    first_layer_ns: int | None = None  # from its gradient's being ready until its sum was back; slowest rank


@dataclass(frozen=True)
class Evaluation:
    """Test set, after `iteration`."""

    iteration: int
    time_ns: int  # since the start of training; time spent evaluating excluded
    accuracy: float  # 0 … 1
    loss: float


@dataclass(frozen=True)
class Certificate:
    """Verdict on one run. `measures` and `bounds` hold plain numbers, units last in their names."""

    valid: bool
    reasons: list[str]  # why not; empty if valid
    valid_rate_bps: int | None  # at which this machine would have been valid; None: valid, unknown, or busy with others
    measures: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodResult:
    """The measurements of a method in a run. Lists per rank have `workers` entries."""

    method: MethodName
    backend: str  # "mininet" | "sim"
    workers: int
    iterations: list[IterationRecord]
    evaluations: list[Evaluation]
    parameters: int
    gradient_bytes: int  # float32 bytes summed over ranks in one iteration
    wire_tx_bytes_per_rank: list[int]  # Ethernet frames without FCS, counted at the worker's interface …
    wire_rx_bytes_per_rank: list[int]
    wire_iterations: int  # … over this many iterations
    retransmissions: int  # all ranks
    switch_counters: dict[str, int]  # empty for host methods
    parameter_hash_per_rank: list[str]  # sha256 of the final parameters: all equal, or the run failed; []: no values
    certificate: Certificate | None  # None in virtual time: exact by construction
    notes: list[str] = field(default_factory=list)  # one sentence each; shown in the report
    environment: dict[str, Any] = field(default_factory=dict)  # read back: links, offloads, congestion control
    first_layer_bytes: int = 0  # of the transfer (bucket, slice) that holds the first layer's gradient
    call_bytes: tuple[int, ...] = ()  # of each allreduce of an iteration, where that is known; not in results
    timeline: list[Span] = field(default_factory=list)  # a few iterations; goes into timeline.json alone
    wire_tx_bytes_per_server: list[int] = field(default_factory=list)  # of parameter servers with links of their own …
    wire_rx_bytes_per_server: list[int] = field(default_factory=list)  # … over the same iterations
    # Bytes of the arrays of each kind of collective in an iteration; empty: allreduces of the gradients
    collective_bytes: Mapping[Kind, int] = field(default_factory=dict)
    # The paths of PyTorch's calls on rank 0, over the whole run: kind -> path -> "calls" and "bytes"; in Mininet
    call_paths: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    flows: list[dict[str, Any]] = field(default_factory=list)  # beside the job, and the links that they share with it
    shared_links: list[dict[str, Any]] = field(default_factory=list)
    tenants: dict[str, Any] = field(default_factory=dict)  # jobs of one network, and the load of its links
    link_loads: dict[str, Any] = field(default_factory=dict)
    pauses: dict[str, Any] = field(default_factory=dict)  # of links that can be paused
    # Of a method that may lose gradients for good: shares of values lost on their way "up" to who sums and of sums on
    # their way "down", "late_packets", "stopped_transfers"; whole run; empty: nothing may be lost
    gradient_loss: Mapping[str, float] = field(default_factory=dict)
    # Counters of sums that may lack some ranks: "ranks_mean", "ranks_least", "chunks"; rank 0's, whole run; empty: no
    # sum may
    partial_sums: Mapping[str, float] = field(default_factory=dict)
    # [first, end) of the counted iterations of each block, where methods took turns; and with which others
    blocks: list[tuple[int, int]] = field(default_factory=list)
    in_turn_with: list[MethodName] = field(default_factory=list)
    # What the same ranks, between the blocks, computed for in an iteration without exchange, slowest rank; in Mininet
    compute_alone_ns: list[int] = field(default_factory=list)


_ONLY_IF_ANY = (
    "collective_bytes", "call_paths", "flows", "shared_links", "tenants", "link_loads", "pauses",
    "gradient_loss", "partial_sums", "blocks", "in_turn_with", "compute_alone_ns",
)  # fmt: skip


def gradient_delays(counters: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Over the slices of all workers' gradients, from counters of `transport.ps.ps_worker.PsWorker`; {} without."""
    pushed = sum(counter.get("pushed", 0) for counter in counters)
    if not pushed:
        return {}
    return {
        "gradient_delay_mean": sum(counter["delays"] for counter in counters) / pushed,
        "gradient_delay_most": max(counter["delay_most"] for counter in counters),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Value below which `share` (0 … 1) of the values lie, interpolated linearly. `values` must not be empty."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    return {"median": percentile(values, 0.5), "p10": percentile(values, 0.1), "p90": percentile(values, 0.9)}


def rounds(records: Sequence[IterationRecord], of_iterations: int) -> list[IterationRecord]:
    """The mean iteration of each round of a training method, whole ones if there are any."""
    if of_iterations == 1:
        return list(records)
    starts = range(0, len(records) - of_iterations + 1, of_iterations) or (0,)
    return [
        dataclasses.replace(
            part[0],
            duration_ns=round(fmean(record.duration_ns for record in part)),
            compute_ns=round(fmean(record.compute_ns for record in part)),
            communication_ns=round(fmean(record.communication_ns for record in part)),
        )
        for part in (records[start : start + of_iterations] for start in starts)
    ]


def summary(scenario: Scenario, result: MethodResult) -> dict[str, Any]:
    """Numbers of the report's table: warm-up iterations are left out, times are nanoseconds."""
    blocks = [
        [record for record in result.iterations if first <= record.iteration < end]
        for first, end in result.blocks or [(scenario.workload.warmup_iterations, sys.maxsize)]
    ]
    iterations = sum(map(len, blocks))
    together = [rounds(block, result.environment.get("round_iterations", 1)) for block in filter(None, blocks)]
    counted = [record for block in together for record in block]
    if not counted:
        raise RunFailed(f"{result.method}: no iteration was measured after the warm-up; raise [workload] iterations")
    communication = _times(counted)["communication_ns"]
    moved = result.collective_bytes
    if moved:
        least = bound_together(result.method, moved, result.gradient_bytes, scenario.network)
    else:
        least = bound(result.method, result.gradient_bytes, scenario.network, result.call_bytes)
    per_iteration = max(1, result.wire_iterations)
    last = result.evaluations[-1] if result.evaluations else None
    first_layer = [record.first_layer_ns for record in counted if record.first_layer_ns is not None]
    alone_ns = bound(result.method, result.first_layer_bytes, scenario.network).communication_ns
    return {
        "counted_iterations": iterations,
        **_times(counted),
        **({"blocks": list(map(_medians, together))} if result.blocks else {}),
        **_of_computing(result, counted),
        "first_layer_ns": spread(first_layer) if first_layer else None,
        "first_layer_wait_ns": spread([max(0.0, ns - alone_ns) for ns in first_layer]) if first_layer else None,
        "algbw_bytes_per_s": ratio((sum(moved.values()) or result.gradient_bytes) * 1e9, communication["median"]),
        "wire_tx_bytes_per_rank_iteration": max(result.wire_tx_bytes_per_rank) / per_iteration,
        "wire_rx_bytes_per_rank_iteration": max(result.wire_rx_bytes_per_rank) / per_iteration,
        "training_ns": max(record.start_ns + record.duration_ns for record in result.iterations),
        "final_training_loss": result.iterations[-1].loss,
        "final_accuracy": last.accuracy if last else None,
        "final_loss": last.loss if last else None,
        "parameters_identical": len(set(hashes)) == 1 if (hashes := result.parameter_hash_per_rank) else None,
        "bound": {key: value for key, value in dataclasses.asdict(least).items() if value is not None},
        "share_of_bound": ratio(least.communication_ns, communication["median"]),
        **_of_servers(scenario, result),
        **_of_codec(scenario, result.method),
    }


def _times(records: Sequence[IterationRecord]) -> dict[str, dict[str, float]]:
    """The spread of each of TIMES."""
    exposed = [max(0, record.duration_ns - record.compute_ns) for record in records]
    measured = [[getattr(record, name) for record in records] for name in ("duration_ns", *TIMES[1:3])]
    return dict(zip(TIMES, map(spread, (*measured, exposed)), strict=True))


def _medians(records: Sequence[IterationRecord]) -> dict[str, float]:
    return {name: times["median"] for name, times in _times(records).items()}


def _of_computing(result: MethodResult, counted: Sequence[IterationRecord]) -> dict[str, Any]:
    """What the exchange takes from computing; {} where nothing was computed without it."""
    if not result.compute_alone_ns:
        return {}
    alone = spread(result.compute_alone_ns)
    return {
        "compute_alone_ns": alone,
        "compute_slowdown": ratio(_times(counted)["compute_ns"]["median"], alone["median"]),
    }


def _of_codec(scenario: Scenario, method: MethodName) -> dict[str, Any]:
    """How gradients travel; nothing without a codec."""
    if not method.codec:
        return {}
    spec, workers = method.spec, scenario.topology.workers
    if spec is None:  # of PyTorch, for Gloo
        facts = {"name": method.codec, "bits_per_value": 16.0, "adds": True, "feedback": "", "lossy": True}
        return {"codec": facts}
    pushed = scenario.asynchronous(method)  # by one worker, whatever others do
    codec = spec.for_workers(1 if pushed else workers).codec
    bits = codec.bits(workers) if isinstance(codec, ArrayCodec) else codec.bits(np.dtype(np.float32))
    facts = {
        "name": spec.name,
        "bits_per_value": bits,
        "adds": codec.adds,
        **({"bits_per_weight": 32.0} if pushed else {}),
    }
    return {"codec": {**facts, "feedback": spec.feedback, "lossy": spec.lossy}}


def codec_notes(scenario: Scenario, method: MethodName) -> list[str]:
    """The sums that a codec doesn't code, in a sentence."""
    spec = method.spec
    if spec is None:
        hook = f"PyTorch's {method.codec} hook codes what DDP sums, and divides before it sums; nothing else."
        return [hook] if method.codec else []
    if spec.exact:
        return [f"Codec {method.codec}: sums of floats travel by it, whatever their size; all else as without it."]
    least = f"fewer than {spec.least} values, " if spec.least and spec.lossy else ""
    notes = [f"Codec {method.codec}: float32 travels by it; sums of {least}float64 and integers as without it."]
    if scenario.asynchronous(method):
        least = f"; those of fewer than {spec.least} values as without it" if spec.least else ""
        notes = [f"Codec {method.codec}: gradients travel by it to the servers{least}. Weights come back as they are."]
    return [*notes, f"C{spec.warning[1:]}."] if spec.warning else notes


def same_bits(scenario: Scenario, method: MethodName, environment: Mapping[str, Any]) -> tuple[str, int] | None:
    """Methods with the same answer must end with the same parameters: one codec, whose sums depend on nothing but the
    values, in the same packets. The result is None where nothing is promised.

    Exceptions are sums below the codec's least size, which methods add as floats; sums of codecs without feedback,
    which may round at random; codecs that leave sums of floats to the method; schedules, which cut gradients their own
    way.
    """
    spec = method.spec if method.codec or not method.in_packets else parse_codec(FIXED_POINT.name)
    codec = spec and spec.row_codec
    if spec is not None and spec.exact and not scenario.asynchronous(method):
        return str(spec), 0  # whatever the packets, the schedule and the buckets
    alone = method.schedule or scenario.workload.synchronisation or scenario.asynchronous(method)
    if spec is None or codec is None or alone:
        return None
    smallest = min(environment.get("bucket_elements", [0]))
    if codec.lossy and (spec.warmup or not spec.feedback or smallest < spec.least):
        return None
    return str(spec), elements_of(method, scenario.switch.elements, scenario.topology.mtu_bytes)


def unequal_ranks(entry: Mapping[str, Any]) -> bool:
    """Whether the ranks of a method of a document ended with different parameters, which it doesn't allow."""
    return entry["summary"]["parameters_identical"] is False and not METHODS[entry["method"].method].differ


def differing(built: dict[str, Any]) -> list[tuple[MethodName, MethodName]]:
    """Methods of a document that should have ended with the same parameters (`same_bits`), and haven't."""
    first: dict[tuple[str, int], dict[str, Any]] = {}
    pairs = []
    for entry in built["methods"]:
        promised = same_bits(built["scenario"], entry["method"], entry["environment"])
        if promised is not None:
            other = first.setdefault(promised, entry)
            if other["parameter_hash_per_rank"] != entry["parameter_hash_per_rank"]:
                pairs.append((other["method"], entry["method"]))
    return pairs


def _of_servers(scenario: Scenario, result: MethodResult) -> dict[str, Any]:
    """The bytes on the links of parameter servers; {} where servers have no own links."""
    if not result.wire_tx_bytes_per_server:
        return {}
    per_iteration = max(1, result.wire_iterations)
    sent_bytes, received = wire_bytes_per_server(result.method, result.gradient_bytes, scenario.network)
    return {
        "wire_tx_bytes_per_server_iteration": max(result.wire_tx_bytes_per_server) / per_iteration,
        "wire_rx_bytes_per_server_iteration": max(result.wire_rx_bytes_per_server) / per_iteration,
        "bound_wire_bytes_per_server": sent_bytes,
        **({"bound_wire_rx_bytes_per_server": received} if received != sent_bytes else {}),
    }


def document(scenario: Scenario, backend: str, results: Sequence[MethodResult]) -> dict[str, Any]:
    """The content of `results.json` (schema: `results_schema.md`). Pure: same results, same document.

    The scenario and methods are values, which `write_json` writes as their keys and as words.
    """
    return assembled(scenario, backend, entries(scenario, backend, results))


def entries(scenario: Scenario, backend: str, results: Sequence[MethodResult]) -> list[dict[str, Any]]:
    """A document's `methods`, not yet compared with each other."""
    methods = [
        {
            **plain(dataclasses.replace(result, timeline=[], call_bytes=())),
            "method": result.method,
            "summary": summary(scenario, result),
        }
        for result in results
    ]
    for entry in methods:
        del entry["timeline"], entry["call_bytes"]
        if backend == "sim" and "dataplane" in entry["environment"]:
            entry["environment"]["dataplane"] = scenario.switch.dataplane  # `auto` differs by machine; results don't
        if not entry["wire_tx_bytes_per_server"]:
            del entry["wire_tx_bytes_per_server"], entry["wire_rx_bytes_per_server"]
        for key in _ONLY_IF_ANY:
            if not entry[key]:
                del entry[key]
    return methods


def assembled(scenario: Scenario, backend: str, methods: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of such entries; their `comparison` is set."""
    baseline = scenario.baseline_for(backend)
    first = next((entry for entry in methods if entry["method"] == baseline), None)
    for entry in methods:
        entry["comparison"] = None
        if first is not None and entry is not first:
            entry["comparison"] = between(scenario, first, entry)
        entry["verdict"] = verdict(entry, pace_ns(scenario))
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "backend": backend,
        "baseline": baseline,
        "finding": finding(scenario, first, methods),
        "methods": methods,
        "verdict": worst(entry["verdict"] for entry in methods),
    }


def pace_ns(scenario: Scenario) -> int | None:
    """No rank of a real run computes for longer in an iteration; None: ranks compute as fast as they can."""
    return ComputeTimes(scenario).most_ns() if scenario.paced else None


def write_json(path: Path, value: Any) -> None:
    """Writes sorted keys, floats by repr, one newline at the end: same value, same bytes. Replaces the file at once."""
    text = json.dumps(plain(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def plain(value: Any) -> Any:
    """JSON values only. A number that isn't finite becomes null: JSON has no NaN, and a loss may diverge."""
    if isinstance(value, MethodName):
        return str(value)
    if isinstance(value, Scenario):
        return plain(canonical(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
