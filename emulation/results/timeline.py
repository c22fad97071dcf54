"""Timelines: what each rank did when, as a Chrome trace that Perfetto opens and as spans that a figure draws.

Backends keep the spans of a few iterations after the warm-up (`KEPT_ITERATIONS`), and of rank 0 those of the median
one: more would make files of hundreds of megabytes without new information.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from emulation.results.whole_file import write_text
from transport.group.method_name import MethodName

KEPT_ITERATIONS = 4
COMPUTE, NETWORK = "compute", "network"
WAITS = "waits for "  # begins the name of a span within a forward pass in which nothing is computed
_TRACK_NUMBERS = {COMPUTE: 0, NETWORK: 1}


Intervals = Sequence[tuple[int, int]]
"""(start, end), in ns."""


def union_ns(intervals: Intervals) -> int:
    """Time covered by at least one of the intervals (start, end)."""
    covered_ns = 0
    until_ns = 0
    for start_ns, end_ns in sorted(intervals):
        if end_ns > until_ns:
            covered_ns += end_ns - max(start_ns, until_ns)
            until_ns = end_ns
    return covered_ns


def communication_ns(ranks: Sequence[Intervals], late: int = 0) -> int:
    """Time in which an iteration's transfers are under way, from the last rank's start of each to the last rank's end.

    The k-th that a rank starts, and the k-th that ends, are compared. Waiting for a rank that computes longer doesn't
    count. Ranks don't end together: an iteration whose data moved partly before the last rank began may take less than
    the bound, and the one before took as much more.

    late: ranks that nobody waits for. Where ranks have unlike numbers of transfers: of the rank that waited least.
    """
    if len({len(intervals) for intervals in ranks}) > 1:
        return sorted(map(union_ns, ranks))[late]
    starts = zip(*(sorted(start_ns for start_ns, _ in intervals) for intervals in ranks), strict=True)
    ends = zip(*(sorted(end_ns for _, end_ns in intervals) for intervals in ranks), strict=True)
    return union_ns([tuple(sorted(times)[-1 - late] for times in kth) for kth in zip(starts, ends, strict=True)])


@dataclass(frozen=True)
class Span:
    """An action of a rank. Times count from the start of training; those of one track may overlap on `network` only.

    size_bytes, priority: of a transfer (lower is more urgent; None where the schedule knows none).
    """

    rank: int
    track: str  # COMPUTE | NETWORK
    name: str
    iteration: int
    start_ns: int
    end_ns: int
    size_bytes: int = 0
    priority: int | None = None


def is_recorded(iteration: int, warmup_iterations: int, rank: int) -> bool:
    """Whether an iteration's spans are kept while it runs: which of rank 0's is the median one is known in the end."""
    counted = iteration - warmup_iterations
    return counted >= 0 and (rank == 0 or counted < KEPT_ITERATIONS)


def with_median(spans: Iterable[Span], durations_ns: Mapping[int, int], warmup_iterations: int) -> list[Span]:
    """The spans of the first few iterations and of the median iteration. durations_ns: by iteration."""
    counted = {iteration: ns for iteration, ns in durations_ns.items() if iteration >= warmup_iterations}
    middle = nearest_median(counted, counted)
    return [span for span in spans if span.iteration in (middle, *range(warmup_iterations + KEPT_ITERATIONS))]


def nearest_median(durations_ns: Mapping[int, int], among: Iterable[int]) -> int | None:
    """The first iteration whose duration is nearest to the median of all; None if there are none. durations_ns: by
    iteration."""
    known = [iteration for iteration in sorted(among) if iteration in durations_ns]
    if not known:
        return None
    middle = median(durations_ns.values())
    return min(known, key=lambda iteration: abs(durations_ns[iteration] - middle))


def chrome_trace(timelines: Mapping[MethodName, Sequence[Span]]) -> dict[str, Any]:
    """Chrome's Trace Event format: a process per method (by name), threads per rank; times in µs.

    Transfers overlap, so they are async events; what a rank computes are complete events.
    """
    events: list[dict[str, Any]] = []
    transfers = 0
    for process, (method, spans) in enumerate(timelines.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": str(method)}})
        for rank in sorted({span.rank for span in spans}):
            for track, number in _TRACK_NUMBERS.items():
                name = {"name": f"rank {rank} {track}"}
                events.append(
                    {"ph": "M", "name": "thread_name", "pid": process, "tid": 2 * rank + number, "args": name}
                )
        for span in spans:
            place = {"pid": process, "tid": 2 * span.rank + _TRACK_NUMBERS[span.track], "cat": span.track}
            facts: dict[str, Any] = {"iteration": span.iteration}
            if span.track == COMPUTE:
                duration = (span.end_ns - span.start_ns) / 1e3
                events.append(
                    {**place, "ph": "X", "name": span.name, "ts": span.start_ns / 1e3, "dur": duration, "args": facts}
                )
                continue
            facts["size_bytes"] = span.size_bytes
            if span.priority is not None:
                facts["priority"] = span.priority
            transfers += 1
            named = {**place, "name": f"rank {span.rank}: {span.name}", "id": transfers}
            events.append({**named, "ph": "b", "ts": span.start_ns / 1e3, "args": facts})
            events.append({**named, "ph": "e", "ts": span.end_ns / 1e3})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, timelines: Mapping[MethodName, Sequence[Span]]) -> None:
    """Writes the Chrome trace; replaces the file at once."""
    write_text(path, json.dumps(chrome_trace(timelines), separators=(",", ":")) + "\n")


def of_one_iteration(spans: Iterable[Span], iteration: int, rank: int = 0) -> list[Span]:
    """A rank's spans of an iteration: times from the start of its forward pass.

    Spans that reach into the next iteration are kept entirely, and so is the beginning of that iteration's forward
    pass.
    """
    selected = [span for span in spans if (span.rank, span.iteration) == (rank, iteration)]
    begin_ns = min((span.start_ns for span in selected), default=0)
    return [replace(span, start_ns=span.start_ns - begin_ns, end_ns=span.end_ns - begin_ns) for span in selected]
