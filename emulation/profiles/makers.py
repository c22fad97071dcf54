"""Graphs of a model profile: data parallel (DDP, FSDP), tensor parallel, pipeline parallel, each with replicas.

Durations are of the profile's batch. A maker's ranks are those of one kind of group after the other: with `degree`
ranks that share a model, ranks 0 … degree-1 are the first replica.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from emulation.profiles.errors import ProfileError
from emulation.profiles.graph import COMPUTE, RECEIVE, SEND, WORLD, Operation, WorkloadGraph
from emulation.profiles.model_profile import ModelLayer, ModelProfile

REPLICAS, MODEL = "replicas", "model"
"""Groups: ranks with the same part of the model; ranks that have a model together."""
COLUMN, ROW = "column", "row"
"""Ways to cut a layer between ranks: its outputs (their gradients' inputs are summed), its inputs (its outputs are)."""


class Draft:
    """A program in the making."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, kind: str, name: str, *needs: int | None, **what: int | str) -> int:
        """Its place. needs: places; None is left out."""
        wanted = tuple(sorted({each for each in needs if each is not None}))
        self.operations.append(Operation(kind, name, wanted, **what))  # type: ignore[arg-type]
        return len(self.operations) - 1

    def compute(self, name: str, duration_ns: int, *needs: int | None) -> int:
        return self.add(COMPUTE, name, *needs, duration_ns=duration_ns)


def ddp(model: ModelProfile, workers: int, bucket_bytes: int = 25 << 20) -> WorkloadGraph:
    """Buckets are allreduced while the backward pass goes on."""
    draft = Draft()
    last: int | None = None
    for layer in model.layers:
        last = draft.compute(f"forward {layer.name}", layer.forward_ns, last)
    behind = _backward(draft, model.layers, last)
    _sum_gradients(draft, model.layers, behind, bucket_bytes, WORLD)
    return WorkloadGraph(model.name, (tuple(draft.operations),), (0,) * workers, source=_source(model))


def _backward(draft: Draft, layers: Sequence[ModelLayer], last: int | None, name: str = "backward") -> list[int]:
    """By layer, the place of its backward pass."""
    behind = []
    for layer in reversed(layers):
        last = draft.compute(f"{name} {layer.name}", layer.backward_ns, last)
        behind.append(last)
    return behind[::-1]


def _sum_gradients(
    draft: Draft, layers: Sequence[ModelLayer], behind: Sequence[int], bucket_bytes: int, group: str
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
        if 4 * sum(each.elements for each in units[-1]) >= bucket_bytes:
            units.append([])
        units[-1].append(layer)
    sizes = [-(-sum(each.elements for each in unit) // workers) * workers for unit in units]
    draft = Draft()

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
    degree = _degree(model, workers, degree)
    if not any(layer.cut == ROW for layer in model.layers):
        raise ProfileError(
            f"{model.name}: no layer has cut = 'row'; tensor parallelism needs to know which are cut, and how"
        )
    layers = [_cut(layer, degree) for layer in model.layers]
    draft = Draft()
    last: int | None = None
    for layer in layers:
        last = draft.compute(f"forward {layer.name}", layer.forward_ns, last)
        if layer.cut == ROW:
            last = draft.add("allreduce", f"outputs {layer.name}", last, elements=_output(model, layer), group=MODEL)
    behind: list[int] = []
    for before, layer in reversed(list(zip([None, *layers], layers, strict=False))):
        last = draft.compute(f"backward {layer.name}", layer.backward_ns, last)
        behind.append(last)
        if layer.cut == COLUMN and before is not None and before.cut != COLUMN:
            words = _output(model, before)
            last = draft.add("allreduce", f"gradients of inputs {layer.name}", last, elements=words, group=MODEL)
    groups = _groups(workers, degree)
    if workers > degree:
        _sum_gradients(draft, layers, behind[::-1], bucket_bytes, REPLICAS)
    return WorkloadGraph(model.name, (tuple(draft.operations),), (0,) * workers, groups, source=_source(model))


def _cut(layer: ModelLayer, degree: int) -> ModelLayer:
    """A rank's part of it."""
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


def pipeline_parallel(
    model: ModelProfile, workers: int, degree: int = 0, micro_batches: int = 4, bucket_bytes: int = 25 << 20
) -> WorkloadGraph:
    """Stages of layers, about equally long, one forward and one backward pass of a micro-batch in turn (1F1B); what is
    behind a stage's last layer goes to the next one, its gradient back. degree: stages; 0: as many as workers. Replicas
    sum their gradients in the end."""
    degree = _degree(model, workers, degree)
    if not 1 <= micro_batches <= model.batch:
        raise ProfileError(f"{model.name}: {micro_batches} micro-batches of a batch of {model.batch}")
    stages = _stages(model, degree)
    programs = tuple(
        tuple(_stage(model, stages, number, micro_batches, bucket_bytes if workers > degree else 0).operations)
        for number in range(degree)
    )
    program_of = tuple(rank % degree for rank in range(workers))
    return WorkloadGraph(model.name, programs, program_of, _groups(workers, degree), source=_source(model))


def _stages(model: ModelProfile, count: int) -> list[tuple[ModelLayer, ...]]:
    """Cuts where the time passes each part of the whole; at least one layer each."""
    if count > len(model.layers):
        raise ProfileError(f"{model.name}: {count} stages of {len(model.layers)} layers")
    times = [layer.forward_ns + layer.backward_ns for layer in model.layers]
    passed, cuts = list(itertools.accumulate(times)), [0]
    for stage in range(1, count):
        want = model.compute_ns * stage / count
        near = min(range(len(times)), key=lambda place: abs(passed[place] - want)) + 1
        cuts.append(min(max(near, cuts[-1] + 1), len(times) - (count - stage)))
    return [tuple(model.layers[low:high]) for low, high in itertools.pairwise([*cuts, len(times)])]


def _stage(
    model: ModelProfile, stages: Sequence[Sequence[ModelLayer]], number: int, micro: int, bucket_bytes: int
) -> Draft:
    """The program of a stage. bucket_bytes: 0 without replicas."""
    layers, draft = stages[number], Draft()
    into = -(-_output(model, stages[number - 1][-1]) // micro) if number else 0
    out = -(-_output(model, layers[-1]) // micro) if number + 1 < len(stages) else 0
    forward_ns = sum(layer.forward_ns for layer in layers) // micro
    backward_ns = sum(layer.backward_ns for layer in layers) // micro
    last: int | None = None
    behind: list[int] = []
    for step, batch in _one_forward_one_backward(len(stages) - number, micro):
        if step == "forward":
            got = draft.add(RECEIVE, f"outputs {batch}", elements=into, peer=-1, tag=0) if into else None
            last = draft.compute(f"forward {batch}", forward_ns, last, got)
            if out:
                draft.add(SEND, f"outputs {batch}", last, elements=out, peer=1, tag=0)
            continue
        got = draft.add(RECEIVE, f"gradients {batch}", elements=out, peer=1, tag=1) if out else None
        if batch + 1 < micro or not bucket_bytes:
            last = draft.compute(f"backward {batch}", backward_ns, last, got)
        else:  # gradients are complete layer by layer
            last = draft.compute(f"backward {batch}", 0, last, got)
            parts = [ModelLayer(each.name, each.tensors, backward_ns=each.backward_ns // micro) for each in layers]
            behind = _backward(draft, parts, last, f"backward {batch}")
            last = behind[0]
        if into:
            draft.add(SEND, f"gradients {batch}", last, elements=into, peer=-1, tag=1)
    if behind:
        _sum_gradients(draft, layers, behind, bucket_bytes, REPLICAS)
    return draft


def _one_forward_one_backward(left: int, micro: int) -> Iterator[tuple[str, int]]:
    """The order of a stage's passes. left: stages from this one on."""
    ahead = min(left - 1, micro)
    yield from (("forward", batch) for batch in range(ahead))
    for batch in range(micro):
        if ahead + batch < micro:
            yield "forward", ahead + batch
        yield "backward", batch


def _output(model: ModelProfile, layer: ModelLayer) -> int:
    """Of a whole batch."""
    if not layer.output:
        raise ProfileError(f"{model.name}: layer {layer.name}: output isn't known; it is what ranks send each other")
    return layer.output * model.batch


def _degree(model: ModelProfile, workers: int, degree: int) -> int:
    if workers % (degree or workers):
        raise ProfileError(f"{model.name}: {workers} workers are no whole number of groups of {degree}")
    return degree or workers


def _groups(workers: int, degree: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {
        MODEL: tuple(tuple(range(first, first + degree)) for first in range(0, workers, degree)),
        REPLICAS: tuple(tuple(range(place, workers, degree)) for place in range(degree)),
    }


def _source(model: ModelProfile) -> str:
    return "; ".join(f"{what}: {text}" for what, text in model.source.items())
