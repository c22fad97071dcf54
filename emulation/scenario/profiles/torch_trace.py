"""PyTorch profiler traces as profiles: the computing of each iteration, and the begins of its collectives.

Iterations are spans that `profiler.step()` marked, else spans between optimizer steps, else periods of the collectives.
Times are medians over the iterations whose collectives are those of most; waiting is left out (`ComputeProgress`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean, median, median_high, stdev

from emulation.scenario.profiles.graph import WORLD, GraphOperation, WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelLayer, ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.torch_events import (
    BACKWARD,
    ComputeProgress,
    RankTrace,
    TraceCollective,
    TraceEvent,
    elements_in,
    numbers,
    read_trace,
)
from switchagg.description import COMBINING

STEP = re.compile(r"ProfilerStep#\d+")
OPTIMIZER = "Optimizer.step#"
COPY_OUT = "FSDP::all_gather_copy_out"
LAYER = "layer: "
"""Marks of `transport.torch.recording`, and the module's name."""
GRADIENT = "torch::autograd::AccumulateGrad"
NESTED = 8
"""At most this many operators call each other before one makes a node."""
FORWARD_SHARE = 1 / 3
"""The forward pass's share of an iteration, where a trace doesn't show its backward pass."""
ALIKE = 0.9
"""In a trace without marks, this share of the collectives must repeat."""


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient within an iteration. ready, forward (the layer's forward pass begins): µs of computing."""

    elements: int
    ready: float
    forward: float
    name: str


@dataclass(frozen=True)
class TraceIteration:
    """An iteration of a trace; times are µs of computing from its start. backward: begin and end of the pass. needs:
    times at which each collective had to be done."""

    compute: float
    backward: tuple[float, float]
    collectives: tuple[TraceCollective, ...]
    issues: tuple[float, ...]
    needs: tuple[float, ...]
    gradients: tuple[Gradient, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        return tuple(call.signature for call in self.collectives)


@dataclass(frozen=True)
class TraceSummary:
    """The summary of a rank's trace. like: an iteration of which all times are medians. compute: of each, in µs.

    notes: sentences on assumptions and omissions. groups: of `RankTrace`.
    """

    path: Path
    rank: int
    workers: int
    like: TraceIteration
    compute: tuple[float, ...]
    notes: tuple[str, ...] = field(default=())
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def jitter(self) -> float:
        """Standard deviation of an iteration's computing over its mean; 0 of a single one."""
        return stdev(self.compute) / fmean(self.compute) if len(self.compute) > 1 else 0.0

    @property
    def buckets(self) -> list[int]:
        """Places of sums of gradients: of all ranks, begun in the backward pass, as DDP does."""
        first, last = self.like.backward
        return [
            place
            for place, (call, issue) in enumerate(zip(self.like.collectives, self.like.issues, strict=True))
            if call.kind == "allreduce" and call.ranks == self.workers and first <= issue <= last
        ]

    @property
    def data_parallel(self) -> bool:
        """Whether buckets are 99 % of the bytes that ranks exchange, beside losses, counts, buffers."""
        sizes = [call.size_bytes for call in self.like.collectives]
        buckets = self.buckets
        return bool(buckets) and sum(sizes[place] for place in buckets) >= 0.99 * sum(sizes)


def record(path: Path) -> TraceSummary:
    """The summary of a trace. Raises ProfileError."""
    trace = read_trace(path)
    spans, how = _spans(trace)
    progress, operators = ComputeProgress(trace), _Operators(trace)
    every = [_iteration(trace, progress, operators, *span) for span in spans]
    every = [iteration for iteration in every if iteration.collectives]
    if not every:
        raise ProfileError(f"{path}: no collective lies within an iteration; record whole ones")
    usual, most = Counter(iteration.signature for iteration in every).most_common(1)[0]
    iterations = [iteration for iteration in every if iteration.signature == usual]
    notes = [f"{most} iterations by {how}" + (" of a GPU" if trace.device else "")]
    if most < len(every):
        notes.append(f"with other collectives, so left out: {len(every) - most} iterations")
    if any(
        len({call.size_bytes for call in place}) > 1
        for place in zip(*(iteration.collectives for iteration in iterations), strict=True)
    ):
        notes.append("all-to-alls differ between iterations: medians of their sizes")
    notes += [f"left out: {number} of {what}" for what, number in sorted(trace.skipped.items())]
    if not operators.backward:
        notes.append(f"no backward pass in the trace: a share of {FORWARD_SHARE:.2f} is taken for the forward pass")
    compute = tuple(iteration.compute for iteration in iterations)
    return TraceSummary(path, trace.rank, trace.workers, _medians(iterations), compute, tuple(notes), trace.groups)


# ---- iterations are found by these


def _spans(trace: RankTrace) -> tuple[list[tuple[float, float]], str]:
    """Begins and ends of iterations, on the host's clock, and how they were recognised."""
    marks = [event for event in trace.events if event.cat == "user_annotation" and STEP.fullmatch(event.name)]
    if marks:
        return [(event.ts, event.end) for event in marks], "the profiler's steps"
    ends = [event.end for event in trace.events if event.cat != "gpu_user_annotation" and event.name[:15] == OPTIMIZER]
    if len(ends) > 1:
        return list(pairwise(ends)), "the optimizer's steps"
    seen = [call.signature for call in trace.collectives]
    for period in range(1, len(seen) // 2 + 1):
        if sum(signature == other for signature, other in zip(seen, seen[period:], strict=False)) >= ALIKE * (
            len(seen) - period
        ):
            return list(pairwise(call.at for call in trace.collectives[::period])), "what repeats in its collectives"
    raise ProfileError(f"{trace.path}: no iterations in {len(seen)} collectives; call profiler.step() after each one")


class _Operators:
    """Operators that show where passes begin, sorted by time."""

    def __init__(self, trace: RankTrace) -> None:
        self.backward = [event for event in trace.events if event.name.startswith(BACKWARD)]
        self.gradients = [event for event in trace.events if event.name == GRADIENT]
        marks = [event for event in trace.events if event.cat == "user_annotation"]
        self.copies = [event for event in marks if event.name.startswith(COPY_OUT)]
        self.layers = [event for event in marks if event.name.startswith(LAYER)]
        self.forward = [
            event
            for event in trace.events
            if event.cat == "cpu_op" and event.name[:6] == "aten::" and b'"Sequence number"' in bytes(event.args)
        ]


def _within(events: Sequence[TraceEvent], begin: float, end: float) -> Sequence[TraceEvent]:
    low, high = (bisect_left(events, at, key=lambda event: event.ts) for at in (begin, end))
    return events[low:high]


def _iteration(
    trace: RankTrace, progress: ComputeProgress, operators: _Operators, begin: float, end: float
) -> TraceIteration:
    origin = progress.of(begin)
    compute = progress.of(end) - origin
    backward = _within(operators.backward, begin, end)
    split, last = FORWARD_SHARE * compute, compute
    if backward:
        split, last = progress.of(backward[0].ts) - origin, progress.of(max(event.end for event in backward)) - origin
    collectives = tuple(call for call in trace.collectives if begin <= call.at < end)
    issues = tuple(progress.of(call.at) - origin for call in collectives)
    copies = [progress.of(event.ts) - origin for event in _within(operators.copies, begin, end)]
    gathers = [index for index, call in enumerate(collectives) if call.kind == "all_gather"]
    of_gather = dict(zip(gathers, copies, strict=True)) if len(copies) == len(gathers) else {}
    needs = tuple(
        compute
        if call.kind == "reduce_scatter" or (call.kind == "allreduce" and issue >= split)
        else max(issue, of_gather.get(index, issue))
        for index, (call, issue) in enumerate(zip(collectives, issues, strict=True))
    )
    gradients = _gradients(progress, operators, (begin, end), backward, origin) if backward and not trace.device else ()
    return TraceIteration(compute, (split, last), collectives, issues, needs, gradients)


def _gradients(
    progress: ComputeProgress,
    operators: _Operators,
    span: tuple[float, float],
    backward: Sequence[TraceEvent],
    origin: float,
) -> tuple[Gradient, ...]:
    """The gradients in the order in which they came. The operator of the backward node before one made the layer."""
    forward = _within(operators.forward, span[0], backward[0].ts)
    makers = {numbers(event).sequence: event for event in forward}  # the last of a number: those before only read it
    nodes = [event for event in backward if GRADIENT not in event.name]
    gradients = []
    for event in _within(operators.gradients, *span):
        place = bisect_left(nodes, event.ts, key=lambda node: node.ts)
        maker = makers.get(numbers(nodes[place - 1]).sequence) if place else None
        elements = sum(map(elements_in, numbers(event).dims))
        if maker is None or not elements:
            return ()
        layer = _around(operators.layers, maker) or _around(forward, maker) or maker
        ready, start = progress.of(event.end) - origin, progress.of(layer.ts) - origin
        gradients.append(Gradient(elements, ready, start, layer.name.removeprefix("aten::")))
    return tuple(gradients)


def _around(events: Sequence[TraceEvent], inner: TraceEvent) -> TraceEvent | None:
    """The outermost of the few earlier events around one; marks span single layers, so there is at most one."""
    before = bisect_left(events, inner.ts, key=lambda event: event.ts)
    return next((event for event in events[max(0, before - NESTED) : before] if event.end >= inner.end), None)


def _medians(iterations: Sequence[TraceIteration]) -> TraceIteration:
    shapes = [tuple(gradient.elements for gradient in iteration.gradients) for iteration in iterations]
    gradients: tuple[Gradient, ...] = ()
    if all(shape == shapes[0] for shape in shapes):
        gradients = tuple(
            Gradient(
                place[0].elements,
                median(gradient.ready for gradient in place),
                median(gradient.forward for gradient in place),
                place[0].name,
            )
            for place in zip(*(iteration.gradients for iteration in iterations), strict=True)
        )
    return TraceIteration(
        median(iteration.compute for iteration in iterations),
        (
            median(iteration.backward[0] for iteration in iterations),
            median(iteration.backward[1] for iteration in iterations),
        ),
        tuple(
            replace(place[0], size_bytes=median_high(call.size_bytes for call in place))
            for place in zip(*(iteration.collectives for iteration in iterations), strict=True)
        ),
        tuple(map(median, zip(*(iteration.issues for iteration in iterations), strict=True))),
        tuple(map(median, zip(*(iteration.needs for iteration in iterations), strict=True))),
        gradients,
    )


# ---- profiles and graphs are made by these


def model_profile(recordings: Sequence[TraceSummary], name: str) -> ModelProfile:
    """The model of a data-parallel run: a layer for each gradient, or for each bucket where gradients aren't shown.

    The times are the first trace's; other ranks' traces give the skew, if there is one of each rank. Time outside of
    both passes (data, the optimizer) is in the first layer's forward pass.
    """
    first = recordings[0]
    like = first.like
    buckets = first.buckets
    sizes = [like.collectives[place].elements for place in buckets]
    backward_start = like.backward[0]
    gradients = like.gradients
    if sum(gradient.elements for gradient in gradients) != sum(sizes):
        gradients = tuple(
            Gradient(size, ready, -1.0, "bucket")
            for size, ready in zip(sizes, (like.issues[place] for place in buckets), strict=True)
        )
    ready = [backward_start]
    for gradient in gradients:
        ready.append(max(ready[-1], min(gradient.ready, like.compute)))
    backward = [round(1000 * (until - start)) for start, until in pairwise(ready)]
    begins = [backward_start]
    for gradient in gradients:
        begins.append(max(0.0, min(begins[-1], gradient.forward)))
    if gradients[-1].forward < 0:  # the trace has none: take it in proportion to the backward pass
        length = max(1e-9, ready[-1] - backward_start)
        begins = [backward_start * (1 - (until - backward_start) / length) for until in ready]
    begins[-1] = 0.0
    forward = [round(1000 * (until - start)) for until, start in pairwise(begins)]
    forward[-1] += round(1000 * max(0.0, like.compute - ready[-1]))
    layers: list[ModelLayer] = []
    for index, gradient in enumerate(gradients):
        last = layers[-1] if layers else None
        if last is not None and gradient.name == f"{LAYER}{last.name}":  # it is another parameter of the same module
            layers[-1] = ModelLayer(
                last.name,
                dict(zip(map(str, count()), (gradient.elements, *last.tensors.values()), strict=False)),
                last.forward_ns + forward[index],
                last.backward_ns + backward[index],
            )
            continue
        place = len(gradients) - 1 - index
        named = gradient.name.startswith(LAYER)
        label = gradient.name.removeprefix(LAYER) if named else f"{place} {gradient.name}"
        if any(label == layer.name for layer in layers):  # a module that is called several times
            label = f"{label} ({place})"
        layers.append(ModelLayer(label, {"0": gradient.elements}, forward[index], backward[index]))
    other_count = len(like.collectives) - len(buckets)
    left_out = [f"left out: {other_count} small collectives outside of the backward pass"] if other_count else []
    source = {
        "trace": ", ".join(recording.path.name for recording in recordings),
        "notes": "; ".join([*first.notes, *left_out]),
    }
    return ModelProfile(
        name,
        tuple(reversed(layers)),
        source,
        skew=skew(recordings),
        jitter=round(first.jitter, 4),
        sent_bytes=tuple(4 * size for size in sizes),
        sent_as=next((call.sent_as for call in like.collectives if call.sent_as), ""),
    )


def graph(recording: TraceSummary) -> WorkloadGraph:
    """The graph of any run: a rank's computing between its collectives. Other groups are taken to be like the rank's
    own. Raises ProfileError for groups whose ranks a trace doesn't tell, or that have no regular steps."""
    like = recording.like
    groups = {call.group: _regular(recording, call) for call in like.collectives if call.ranks != recording.workers}
    steps = sorted(  # a need at a collective's begin comes behind it
        [(need, 2 * (need <= like.issues[place]), place) for place, need in enumerate(like.needs)]
        + [(issue, 1, place) for place, issue in enumerate(like.issues)]
    )
    program: list[GraphOperation] = []
    placed: dict[int, int] = {}
    at, wanted = 0.0, list[int]()  # places that the next computing needs
    for until, issues, place in [*steps, (like.compute, 3, -1)]:
        if round(1000 * (until - at)) > 0:
            program.append(GraphOperation("compute", needs=tuple(wanted), duration_ns=round(1000 * (until - at))))
            at, wanted = until, [len(program) - 1]
        if issues == 1:
            call = like.collectives[place]
            elements = call.elements if call.kind in COMBINING else -(-call.size_bytes // 4)
            placed[place] = len(program)
            group = call.group if call.group in groups else WORLD
            program.append(GraphOperation(call.kind, needs=tuple(wanted), elements=elements, group=group))
        elif place in placed:
            wanted = sorted({*wanted, placed[place]})
    name, ranks = recording.path.name.partition(".")[0], (0,) * recording.workers
    source = f"trace of rank {recording.rank}"
    return WorkloadGraph(name, (tuple(program),), ranks, groups, source, recording.notes)


def _regular(recording: TraceSummary, call: TraceCollective) -> tuple[tuple[int, ...], ...]:
    """All groups like a collective's: with as many ranks, as far apart."""
    members = recording.groups.get(call.group, ())
    where = f"{recording.path}: collectives of {call.ranks} of {recording.workers} ranks"
    if len(members) != call.ranks:
        raise ProfileError(f"{where}: whose, it can't say")
    step = members[1] - members[0] if len(members) > 1 else 1
    block = step * len(members)
    groups = (
        tuple(
            tuple(range(first + offset, first + block, step))
            for first in range(0, recording.workers, block)
            for offset in range(step)
        )
        if step > 0
        else ()
    )
    if members not in groups or recording.workers % block:
        raise ProfileError(f"{where}, {', '.join(map(str, members))[:60]}: who is with whom else, it can't say")
    return groups


def load(path: Path, workers: int = 0) -> ModelProfile | WorkloadGraph:
    """The profile of a trace: a model where it is data parallel, else a graph. workers: of the trace; 0: any."""
    recording = record(path)
    if workers not in (0, recording.workers) and not recording.data_parallel:
        raise ProfileError(f"{path}: of {recording.workers} ranks, not {workers}")
    return model_profile([recording], path.name.partition(".")[0]) if recording.data_parallel else graph(recording)


def skew(recordings: Sequence[TraceSummary]) -> tuple[float, ...]:
    """Each rank's compute time over the first trace's; () without a trace of every rank."""
    by_rank = {recording.rank: recording.like.compute for recording in recordings}
    workers = recordings[0].workers
    if len(by_rank) < workers:
        return ()
    return tuple(round(by_rank[rank] / recordings[0].like.compute, 4) for rank in range(workers))
