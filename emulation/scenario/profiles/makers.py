"""Graphs of a model profile: data parallel (DDP, FSDP), tensor and pipeline parallel, alone or together, with replicas.

Durations are of the profile's batch. With `degree` ranks that share a model, ranks 0 … degree-1 are the first replica;
where tensors and stages are both shared, ranks are numbered as by Megatron-LM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from emulation.scenario.profiles.graph import COMPUTE, RECEIVE, SEND, WORLD, GraphOperation, WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelLayer, ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError

REPLICAS, MODEL = "replicas", "model"
"""Groups: ranks with the same part of the model; ranks that have a model together."""
COLUMN, ROW = "column", "row"
"""Ways to cut a layer between ranks: its outputs (their gradients' inputs are summed), its inputs (its outputs are)."""


class ProgramDraft:
    """A program to which operations are added."""

    def __init__(self) -> None:
        self.operations: list[GraphOperation] = []

    def add(self, kind: str, name: str, *needs: int | None, **what: int | str) -> int:
        """Add an operation; returns its place. needs: places; None is left out."""
        wanted = tuple(sorted({place for place in needs if place is not None}))
        self.operations.append(GraphOperation(kind, name, wanted, **what))  # type: ignore[arg-type]
        return len(self.operations) - 1

    def compute(self, name: str, duration_ns: int, *needs: int | None) -> int:
        return self.add(COMPUTE, name, *needs, duration_ns=duration_ns)


def ddp(model: ModelProfile, workers: int, bucket_bytes: int = 25 << 20) -> WorkloadGraph:
    """Buckets are allreduced while the backward pass goes on."""
    draft = ProgramDraft()
    last: int | None = None
    for layer in model.layers:
        last = draft.compute(f"forward {layer.name}", layer.forward_ns, last)
    behind, _ = _backward(draft, model, None, model.layers, "backward", 1, False, True, last)
    _sum_gradients(draft, model.layers, behind, bucket_bytes, WORLD)
    return WorkloadGraph(model.name, (tuple(draft.operations),), (0,) * workers, source=_source(model))


def _sum_gradients(
    draft: ProgramDraft, layers: Sequence[ModelLayer], behind: Sequence[int], bucket_bytes: int, group: str
) -> None:
    """Allreduces of buckets, each behind the backward pass of the layer whose gradients are in it last."""
    elements = 0
    for layer, place in reversed(list(zip(layers, behind, strict=True))):
        for size in reversed(layer.tensors.values()):
            elements += size
            if 4 * elements >= bucket_bytes:
                draft.add("allreduce", f"gradients to {layer.name}", place, elements=elements, group=group)
                elements = 0
    if elements:
        draft.add("allreduce", f"gradients to {layers[0].name}", behind[0], elements=elements, group=group)


def fsdp(model: ModelProfile, workers: int, bucket_bytes: int = 25 << 20) -> WorkloadGraph:
    """Parameters are all-gathered unit by unit, for the forward and again for the backward pass, the next unit's while
    this one computes; its gradients are reduce-scattered behind its backward pass. A unit: layers one after the other,
    until they have bucket_bytes. Arrays are as long as all ranks' equal shards."""
    units: list[list[ModelLayer]] = [[]]
    for layer in model.layers:
        if 4 * sum(layer.elements for layer in units[-1]) >= bucket_bytes:
            units.append([])
        units[-1].append(layer)
    sizes = [-(-sum(layer.elements for layer in unit) // workers) * workers for unit in units]
    draft = ProgramDraft()

    def gathered(
        order: Sequence[int], last: int | None, duration: Callable[[ModelLayer], int], name: str
    ) -> int | None:
        before = last
        for number in order:
            needs = [last, before]
            if sizes[number]:
                unit = f"{name} {units[number][0].name}"
                needs.append(draft.add("all_gather", f"gather {unit}", before, elements=sizes[number]))
            before, last = (
                last,
                draft.compute(f"{name} {units[number][0].name}", sum(map(duration, units[number])), *needs),
            )
            if name == "backward" and sizes[number]:
                draft.add("reduce_scatter", f"gradients {units[number][0].name}", last, elements=sizes[number])
        return last

    last = gathered(range(len(units)), None, lambda layer: layer.forward_ns, "forward")
    gathered(range(len(units))[::-1], last, lambda layer: layer.backward_ns, "backward")
    return WorkloadGraph(model.name, (tuple(draft.operations),), (0,) * workers, source=_source(model))


def tensor_parallel(model: ModelProfile, workers: int, degree: int = 0, bucket_bytes: int = 25 << 20) -> WorkloadGraph:
    """As Megatron-LM: outputs of layers cut by rows are allreduced in the forward pass, gradients of the inputs of
    layers cut by columns in the backward pass. degree: ranks that share a model; 0: all. Replicas sum their gradients.
    """
    return three_d(model, workers, _degree(model, workers, degree), 1, 1, bucket_bytes)


def pipeline_parallel(
    model: ModelProfile, workers: int, degree: int = 0, micro_batches: int = 4, bucket_bytes: int = 25 << 20
) -> WorkloadGraph:
    """Stages of layers, about equally long, one forward and one backward pass of a micro-batch in turn (1F1B); outputs
    of a stage's last layer go to the next stage, their gradients back. degree: stages; 0: as many as workers. Replicas
    sum their gradients in the end."""
    stages = _degree(model, workers, degree)
    return _shared(model, 1, [rank % stages for rank in range(workers)], micro_batches, bucket_bytes)


def three_d(
    model: ModelProfile,
    workers: int,
    degree: int = 0,
    stages: int = 1,
    micro_batches: int = 4,
    bucket_bytes: int = 25 << 20,
) -> WorkloadGraph:
    """Tensors shared by `degree` neighbours, layers by stages, the rest replicas: a rank is
    (stage x replicas + replica) x degree + its place, as by Megatron-LM. degree: 0: all of a stage. Every rank of a
    stage sends all outputs to the same place in the next stage."""
    degree = degree or max(1, workers // stages)
    if workers % (degree * stages):
        raise ProfileError(f"{model.name}: {workers} workers are no whole number of groups of {degree} x {stages}")
    if degree > 1 and not any(layer.cut == ROW for layer in model.layers):
        raise ProfileError(
            f"{model.name}: no layer has cut = 'row'; tensor parallelism needs to know which are cut, and how"
        )
    away = workers // stages
    return _shared(model, degree, [rank // away for rank in range(workers)], micro_batches, bucket_bytes)


def _shared(
    model: ModelProfile, degree: int, stage_of: Sequence[int], micro_batches: int, bucket_bytes: int
) -> WorkloadGraph:
    """degree: neighbours that share tensors. stage_of: by rank."""
    if not 1 <= micro_batches <= model.batch:
        raise ProfileError(f"{model.name}: {micro_batches} micro-batches of a batch of {model.batch}")
    count, workers = max(stage_of) + 1, len(stage_of)
    away = stage_of.index(1) if count > 1 else 0
    stages = [tuple(_cut(layer, degree) for layer in stage) for stage in _stages(model, count, degree > 1)]
    least_bytes = bucket_bytes if workers > degree * count else 0
    programs = tuple(
        tuple(_stage(model, stages, number, micro_batches, degree > 1, away, least_bytes).operations)
        for number in range(count)
    )
    groups = {
        MODEL: _alike([rank // degree for rank in range(workers)]),
        REPLICAS: _alike([stage * degree + rank % degree for rank, stage in enumerate(stage_of)]),
    }
    return WorkloadGraph(model.name, programs, tuple(stage_of), groups, source=_source(model))


def _alike(keys: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks with the same key."""
    sets: dict[int, list[int]] = {}
    for rank, key in enumerate(keys):
        sets.setdefault(key, []).append(rank)
    return tuple(map(tuple, sets.values()))


def _cut(layer: ModelLayer, degree: int) -> ModelLayer:
    """A rank's part of a layer."""
    if not layer.cut:
        return layer
    return ModelLayer(
        layer.name,
        {name: max(1, -(-size // degree)) for name, size in layer.tensors.items()},
        forward_ns=layer.forward_ns // degree,
        backward_ns=layer.backward_ns // degree,
        output=layer.output,
        cut=layer.cut,
    )


def _stages(model: ModelProfile, count: int, uncut: bool) -> list[tuple[ModelLayer, ...]]:
    """Layers of each stage, cut where the time passes equal shares; at least a layer each. uncut: a stage ends only
    behind layers whose outputs are complete on each rank: layers that aren't cut by columns."""
    units: list[list[ModelLayer]] = []
    for layer in model.layers:
        if not units or not (uncut and units[-1][-1].cut == COLUMN):
            units.append([])
        units[-1].append(layer)
    if count > len(units):
        raise ProfileError(f"{model.name}: {count} stages of {len(units)} layers")
    times = [sum(layer.forward_ns + layer.backward_ns for layer in unit) for unit in units]
    passed, cuts = list(itertools.accumulate(times)), [0]
    for stage in range(1, count):
        want = model.compute_ns * stage / count
        near = min(range(len(times)), key=lambda place: abs(passed[place] - want)) + 1
        cuts.append(min(max(near, cuts[-1] + 1), len(times) - (count - stage)))
    return [tuple(itertools.chain(*units[low:high])) for low, high in itertools.pairwise([*cuts, len(times)])]


def _stage(
    model: ModelProfile,
    stages: Sequence[Sequence[ModelLayer]],
    number: int,
    micro: int,
    sums: bool,
    away: int,
    bucket_bytes: int,
) -> ProgramDraft:
    """The program of a stage. sums: whether cut layers are summed. bucket_bytes: 0 without replicas."""
    layers, draft = stages[number], ProgramDraft()
    before = stages[number - 1][-1] if number else None
    into = _output(model, before, micro) if before else 0
    out = _output(model, layers[-1], micro) if number + 1 < len(stages) else 0
    last: int | None = None
    behind: list[int] = []
    for step, batch in one_forward_one_backward(len(stages) - number, micro):
        name = f"{step} {batch}"
        if step == "forward":
            received = draft.add(RECEIVE, f"outputs {batch}", elements=into, peer=-away, tag=0) if into else None
            last = _forward(draft, model, layers, name, micro, sums, last, received)
            if out:
                draft.add(SEND, f"outputs {batch}", last, elements=out, peer=away, tag=0)
            continue
        received = draft.add(RECEIVE, f"gradients {batch}", elements=out, peer=away, tag=1) if out else None
        apart = batch + 1 == micro and bucket_bytes > 0  # gradients are complete layer by layer
        behind, last = _backward(draft, model, before, layers, name, micro, sums, apart, last, received)
        if into:
            draft.add(SEND, f"gradients {batch}", last, elements=into, peer=-away, tag=1)
    if bucket_bytes:
        _sum_gradients(draft, layers, behind, bucket_bytes, REPLICAS)
    return draft


def _forward(
    draft: ProgramDraft,
    model: ModelProfile,
    layers: Sequence[ModelLayer],
    name: str,
    micro: int,
    sums: bool,
    *needs: int | None,
) -> int:
    """Add a forward pass; returns the place of its end."""
    spent_ns = 0
    for layer in layers:
        spent_ns += layer.forward_ns
        if sums and layer.cut == ROW:
            last, spent_ns = draft.compute(name, spent_ns // micro, *needs), 0
            words = _output(model, layer, micro)
            needs = (draft.add("allreduce", f"outputs {layer.name}", last, elements=words, group=MODEL),)
    return draft.compute(name, spent_ns // micro, *needs)


def _backward(
    draft: ProgramDraft,
    model: ModelProfile,
    before: ModelLayer | None,
    layers: Sequence[ModelLayer],
    name: str,
    micro: int,
    sums: bool,
    apart: bool,
    *needs: int | None,
) -> tuple[list[int], int]:
    """The places of the layers' backward passes, if they are apart; and the place of the end of all. before: the layer
    before the first."""
    behind: list[int] = []
    spent_ns = last = 0
    for earlier, layer in reversed(list(zip([before, *layers], layers, strict=False))):
        spent_ns += layer.backward_ns
        summed = earlier if sums and layer.cut == COLUMN and earlier and earlier.cut != COLUMN else None
        if not (summed or apart or layer is layers[0]):
            continue
        last, spent_ns = draft.compute(f"{name} {layer.name}" if apart else name, spent_ns // micro, *needs), 0
        behind.append(last)
        if summed:
            words = _output(model, summed, micro)
            last = draft.add("allreduce", f"gradients of inputs {layer.name}", last, elements=words, group=MODEL)
        needs = (last,)
    return behind[::-1], last


def one_forward_one_backward(left: int, micro: int) -> Iterator[tuple[str, int]]:
    """The order of a stage's passes. left: stages from this one on."""
    ahead = min(left - 1, micro)
    yield from (("forward", batch) for batch in range(ahead))
    for batch in range(micro):
        if ahead + batch < micro:
            yield "forward", ahead + batch
        yield "backward", batch


def _output(model: ModelProfile, layer: ModelLayer, micro: int) -> int:
    """A micro-batch's elements behind a layer."""
    if not layer.output:
        raise ProfileError(f"{model.name}: layer {layer.name}: output isn't known, and ranks send it to each other")
    return -(-layer.output * model.batch // micro)


def _degree(model: ModelProfile, workers: int, degree: int) -> int:
    if workers % (degree or workers):
        raise ProfileError(f"{model.name}: {workers} workers are no whole number of groups of {degree}")
    return degree or workers


def _source(model: ModelProfile) -> str:
    return "; ".join(f"{what}: {text}" for what, text in model.source.items())
