"""A run as `whatif` sees it: how far a rank has computed when it begins each collective, and when it needs the result.

Places are ns of computing from the start of an iteration; waiting has none. A method only changes how long ranks wait
at the places where they need a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

from emulation.scenario.profiles.graph import COMPUTE, RECEIVE, SEND, WORLD, ProgramOrder, WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.profile_formats import load
from emulation.scenario.profiles.torch_events import is_trace
from emulation.scenario.profiles.torch_trace import TraceSummary, model_profile, record, skew
from switchagg.description import COMBINING, COMPARED_KINDS, Kind
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer, fifo

BUCKET_BYTES = 25 << 20
"""DDP's default, where a run's own buckets aren't known."""
WORKERS = 8
SPREAD = 0.02
"""Standard deviation over mean of an iteration's computing, where nothing was measured."""


@dataclass(frozen=True)
class RecordedCollective:
    """A collective of an iteration. size_bytes: of the full array. ranks: in its group.

    issue_ns: where it begins; need_ns: where it must be done; from the iteration's length on, in the next iteration.
    priority: lower is more urgent. chained: a rank waits for it before it begins the next one at the same place.
    """

    kind: Kind
    size_bytes: int
    ranks: int
    issue_ns: int
    need_ns: int
    priority: int = 0
    chained: bool = False


@dataclass(frozen=True)
class RecordedRun:
    """collectives: of an iteration as it was recorded, in order of issue. skew: of computing, by rank; (): all alike.

    jitter: standard deviation of an iteration's computing over its mean; measured: that it is the run's own. profile:
    of runs whose gradients can be scheduled. sent_as: type of its values, where that isn't float32.
    """

    name: str
    workers: int
    compute_ns: int
    collectives: tuple[RecordedCollective, ...]
    jitter: float = SPREAD
    measured: bool = False
    skew: tuple[float, ...] = ()
    profile: Profile | None = None
    sent_as: str = ""
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(call.size_bytes for call in self.collectives)

    def scheduled(self, policy: Policy, cost: LinearCost) -> RecordedRun:
        """The same under a schedule: a layer's next forward pass begins when its own sums are there. ValueError where
        there are no gradients to schedule."""
        if self.profile is None:
            raise ValueError(f"{self.name} isn't data parallel: its collectives have a fixed order")
        transfers = policy.with_cost(lambda: cost).plan(self.profile, cost)
        return replace(self, collectives=_collectives(transfers, self.profile, self.workers, crossing=True))


def _collectives(
    transfers: Sequence[Transfer], profile: Profile, workers: int, *, crossing: bool
) -> tuple[RecordedCollective, ...]:
    """crossing: each is needed where its first layer is; else all at the start of the next iteration."""
    begins, forward_ns = [], 0
    for layer in profile.layers:
        begins.append(forward_ns)
        forward_ns += layer.forward_ns
    length = forward_ns + profile.backward_ns
    collectives = []
    for transfer in transfers:
        tensors = [profile.tensors[part.tensor] for part in transfer.parts]
        issue_ns = forward_ns + max(tensor.ready_ns for tensor in tensors)
        need_ns = length + (min(begins[tensor.layer] for tensor in tensors) if crossing else 0)
        collectives.append(
            RecordedCollective("allreduce", transfer.size_bytes, workers, issue_ns, need_ns, transfer.priority)
        )
    return tuple(sorted(collectives, key=lambda call: call.issue_ns))


def of_profile(model: ModelProfile, workers: int = 0) -> RecordedRun:
    """Data-parallel training of a model. workers: 0: as many as it has skews, else WORKERS. Raises ProfileError."""
    workers = workers or len(model.skew) or WORKERS
    notes = [f"{what}: {source}" for what, source in model.source.items()]
    if not model.compute_ns:
        raise ProfileError(f"{model.name}: its layers have no times")
    skewed = model.skew if len(model.skew) == workers else ()
    if model.skew and not skewed:
        notes.append(f"its skew is of {len(model.skew)} ranks, so all {workers} are taken to be alike")
    profile = model.schedule_profile()
    sizes = [tensor.size_bytes for tensor in profile.tensors]
    transfers = fifo(profile, _laid_out(sizes, model.sent_bytes))
    if not model.sent_bytes:
        notes.append(f"buckets of {BUCKET_BYTES >> 20} MiB, as DDP's by default")
    return RecordedRun(
        model.name,
        workers,
        model.compute_ns,
        _collectives(transfers, profile, workers, crossing=False),
        model.jitter or SPREAD,
        bool(model.jitter),
        skewed,
        profile,
        model.sent_as,
        tuple(notes),
    )


def _laid_out(sizes: Sequence[int], sent_bytes: Sequence[int]) -> list[list[int]]:
    """Tensors in order of arrival, cut where the run cut them, or as DDP does by default."""
    groups: list[list[int]] = [[]]
    filled, limits = 0, list(sent_bytes)
    for index, size in enumerate(sizes):
        limit = limits[min(len(groups), len(limits)) - 1] if limits else BUCKET_BYTES
        if filled >= limit and groups[-1]:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += size
    return groups


def of_recordings(recordings: Sequence[TraceSummary], workers: int = 0) -> RecordedRun:
    """The run of its ranks' traces. workers: 0: as many as it had; groups of all ranks grow. Raises ProfileError."""
    first = recordings[0]
    name = first.path.name.partition(".")[0]
    if first.data_parallel:
        model = model_profile(recordings, name)
        run = of_profile(model, workers or first.workers)
        return replace(run, notes=(f"{len(recordings)} trace(s): {model.source['notes']}",))
    every = workers or first.workers
    like = first.like
    sizes = [
        max(call.size_bytes for call in place) for place in zip(*(r.like.collectives for r in recordings), strict=True)
    ]
    collectives = [
        RecordedCollective(
            call.kind,
            4 * call.elements if call.kind in COMBINING else size,
            every if call.ranks == first.workers else call.ranks,
            round(1000 * issue),
            round(1000 * need),
        )
        for call, size, issue, need in zip(like.collectives, sizes, like.issues, like.needs, strict=True)
    ]
    sent_as = next((call.sent_as for call in like.collectives if call.sent_as), "")
    of_ranks = skew(recordings)
    return RecordedRun(
        name,
        every,
        round(1000 * like.compute),
        tuple(collectives),
        first.jitter or SPREAD,
        bool(first.jitter),
        of_ranks if every == first.workers else (),
        None,
        sent_as,
        (f"{len(recordings)} trace(s): " + "; ".join(first.notes),),
    )


def of_graph(graph: WorkloadGraph) -> RecordedRun:
    """The run of a graph in which all ranks do the same: a processor does one at a time. Raises ProfileError."""
    if len(set(graph.program_of)) > 1 or any(operation.kind in (SEND, RECEIVE) for operation in graph.program(0)):
        raise ProfileError(
            f"{graph.name}: its ranks do different things or send to each other; allowed here: collectives of equal "
            "ranks; `switchagg compare` replays the others, [workload] profile"
        )
    program, order = graph.program(0), ProgramOrder.of(graph.program(0))
    waits, begins, ends = list(order.waits), [0] * len(program), [0] * len(program)
    ready = [place for place, count in enumerate(waits) if not count]
    clocks, needed = Counter[int](), dict[int, int]()
    while ready:
        place = heappop(ready)
        operation = program[place]
        begins[place] = max((ends[other] for other in operation.needs), default=0)
        if operation.kind == COMPUTE:
            begins[place] = max(begins[place], clocks[operation.unit])
        for other in operation.needs:
            if program[other].collective:
                needed.setdefault(other, max(begins[place], ends[other]))
        ends[place] = begins[place] + operation.duration_ns
        if operation.kind == COMPUTE:
            clocks[operation.unit] = ends[place]
        for other in (*order.at_end[place], *order.at_begin[place]):
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, other)
    clock = max(ends, default=0)
    collectives = [
        RecordedCollective(
            next(kind for kind in COMPARED_KINDS if kind == operation.kind),
            4 * operation.elements,
            graph.ranks if operation.group == WORLD else len(graph.members(operation.group, 0)),
            begins[place],
            needed.get(place, clock),
            chained=any(program[other].collective for other in order.at_end[place]),
        )
        for place, operation in enumerate(program)
        if operation.collective
    ]
    collectives = sorted((call for call in collectives if call.ranks > 1), key=lambda call: call.issue_ns)
    if not collectives:
        raise ProfileError(f"{graph.name}: no collectives among ranks, so nothing that a method could change")
    notes = tuple(filter(None, (graph.source, *graph.notes)))
    return RecordedRun(graph.name, graph.ranks, clock, tuple(collectives), notes=notes)


def read(names: Sequence[str], workers: int = 0) -> RecordedRun:
    """The run of traces, a rank each, or of one profile or graph that `profile_formats` reads.
    Raises ProfileError."""
    if all(is_trace(Path(name)) for name in names):
        recordings = sorted((record(Path(name)) for name in names), key=lambda recording: recording.rank)
        ranks = [recording.rank for recording in recordings]
        if len(set(ranks)) < len(ranks):
            raise ProfileError(f"{', '.join(names)}: two traces of rank {max(ranks, key=ranks.count)}; give each once")
        other = next(
            (recording for recording in recordings if recording.like.signature != recordings[0].like.signature), None
        )
        if other is not None:
            raise ProfileError(f"{other.path}: other collectives than {recordings[0].path}: not of the same run")
        return of_recordings(recordings, workers)
    if len(names) > 1:
        raise ProfileError(f"{', '.join(names)}: several files must be traces of torch.profiler, a rank each")
    profile = load(names[0], workers=workers)
    return of_graph(profile) if isinstance(profile, WorkloadGraph) else of_profile(profile, workers)
