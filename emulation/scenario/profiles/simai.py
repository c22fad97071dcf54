"""SimAI's workload text, as AICB writes it: a header, a count, and rows of twelve fields.

A row: name, dependency (unused), then time in ns, type and bytes for the forward pass, the gradient of inputs and the
gradient of weights, and the time of the update. SimAI waits for what the first two send, and for the third at the end.
With a pipeline (`pp`) the rows are those of one stage for all its micro-batches (`ga`), and all stages are alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from emulation.scenario.profiles.graph import NS_MOST, RANKS_MOST, RECEIVE, SEND, WorkloadGraph
from emulation.scenario.profiles.makers import ProgramDraft, one_forward_one_backward
from emulation.scenario.profiles.profile_errors import ProfileError

HEADER, MICRO = "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "MICRO"
"""First words of models' files, and of files with single collectives of all ranks."""
FIELDS = 12
KINDS = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}
TP, DP, EP, DP_EP = "tp", "dp", "ep", "dp_ep"
FIRST, LAST = "embedding_layer", ("cross_entropy", "optimizer")
"""With a pipeline: the row that each micro-batch begins with; what rows behind all micro-batches begin with."""

Pass = tuple[int, str, int]
Row = tuple[str, list[Pass], int]
"""Name; time, type and bytes of each pass; time of the update."""


def decode(text: str, file: str, workers: int = 0) -> WorkloadGraph:
    """The graph of all ranks. workers: as many as the header must say; where it doesn't, as many as there are; 0: any.
    Raises ProfileError."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1][0] not in (HEADER, MICRO):
        raise ProfileError(f"{file}: line 1: no workload of SimAI; it begins with {HEADER} or {MICRO}")
    sizes = _header(lines[0][1], f"{file}: line {lines[0][0]}", workers)
    ranks, stages = sizes["all_gpus"], sizes["pp"]
    if workers and ranks != workers:
        raise ProfileError(f"{file}: all_gpus: {ranks}, but the scenario has {workers} workers")
    if len(lines) < 2 or len(lines[1][1]) != 1 or not lines[1][1][0].isdecimal():
        raise ProfileError(f"{file}: line {lines[min(1, len(lines) - 1)][0]}: the number of rows is missing")
    rows, count = lines[2:], int(lines[1][1][0][:12])
    if len(rows) != count:
        raise ProfileError(f"{file}: line {lines[-1][0]}: {len(rows)} rows, but line {lines[1][0]} says {count}")
    parsed = [_row(fields, f"{file}: line {number}") for number, fields in rows]
    blocks = _micro_batches(parsed, sizes["ga"], file) if stages > 1 else ([], [parsed], [])
    programs = tuple(tuple(_stage(*blocks, number, sizes).operations) for number in range(stages))
    notes = []
    if sizes.get("checkpoints"):
        notes.append(f"{file}: left out: {sizes['checkpoints']} recomputed forward passes of checkpoints.")
    if stages > 1:
        notes.append(f"{file}: {stages} equal stages, 1F1B; interleaved parts of stages (vpp) are taken together.")
    program_of = tuple(rank * stages // ranks for rank in range(ranks))
    return WorkloadGraph(file, programs, program_of, _groups(sizes), f"SimAI's workload {file}", tuple(notes))


def _header(words: list[str], where: str, workers: int) -> dict[str, int]:
    """Numbers by name; all_gpus, the sizes of groups, ga and pp_comm are there."""
    sizes = {"ep": 1, "pp": 1, "ga": 1, "pp_comm": 0, "all_gpus": workers}
    if words[0] == MICRO:
        sizes["model_parallel_NPU_group"] = 1
    for name, value in re.findall(r"(\w+):?\s+(\d{1,12})(?:\.0)?(?=\s|$)", " ".join(words)):
        sizes[name] = int(value)
    tp, ep, pp = sizes.get("model_parallel_NPU_group", 0), sizes["ep"], sizes["pp"]
    ranks = sizes["all_gpus"]
    if not 1 <= ranks <= RANKS_MOST:
        missing = "" if "all_gpus:" in words else "; it isn't in the file: say how many workers there are"
        raise ProfileError(f"{where}: all_gpus: {ranks}; allowed: 1 … {RANKS_MOST}{missing}")
    if min(tp, ep, pp, sizes["ga"]) < 1 or ranks % (tp * ep * pp):
        raise ProfileError(
            f"{where}: {ranks} ranks are no whole number of groups of {tp} x {ep} x {pp} (tensors x experts x stages)"
        )
    if pp > 1 and not sizes["pp_comm"]:
        raise ProfileError(f"{where}: pp: {pp}, but no pp_comm, the bytes between stages")
    return sizes


def _micro_batches(rows: list[Row], count: int, file: str) -> tuple[list[Row], list[list[Row]], list[Row]]:
    """Rows before the micro-batches, rows of each of them, rows behind."""
    names = [name for name, _, _ in rows]
    first = next((place for place, name in enumerate(names) if name.startswith(FIRST)), len(rows))
    behind = next((place for place in range(first, len(rows)) if names[place].startswith(LAST)), len(rows))
    size, remainder = divmod(behind - first, count)
    if not size or remainder:
        raise ProfileError(
            f"{file}: {behind - first} rows from the first {FIRST} on are no whole number of micro-batches; ga: {count}"
        )
    return rows[:first], [rows[low : low + size] for low in range(first, behind, size)], rows[behind:]


def _stage(
    before: list[Row], batches: list[list[Row]], behind: list[Row], number: int, sizes: dict[str, int]
) -> ProgramDraft:
    """The program of a stage's rank."""
    stages, elements = sizes["pp"], -(-sizes["pp_comm"] // 4)
    away = sizes["all_gpus"] // stages
    draft = ProgramDraft()
    last = _forward(draft, before)
    for step, batch in one_forward_one_backward(stages - number, len(batches)):
        direction, tag = (1, 0) if step == "forward" else (-1, 1)
        received = None
        if 0 <= number - direction < stages:
            received = draft.add(RECEIVE, f"{step} {batch}", elements=elements, peer=-direction * away, tag=tag)
        passed = _forward if step == "forward" else _backward
        last = passed(draft, batches[batch], last, received)
        if 0 <= number + direction < stages:
            draft.add(SEND, f"{step} {batch}", last, elements=elements, peer=direction * away, tag=tag)
    last = _backward(draft, behind, _forward(draft, behind, last))
    _backward(draft, before, last)
    return draft


def _forward(draft: ProgramDraft, rows: Sequence[Row], *needs: int | None) -> int | None:
    """Add a forward pass; returns the place of its end, or without rows the first need."""
    for name, passes, _ in rows:
        needs = (_pass(draft, f"forward {name}", needs, passes[0], TP)[1],)
    return needs[0] if needs else None


def _backward(draft: ProgramDraft, rows: Sequence[Row], *needs: int | None) -> int | None:
    """Add a backward pass, and return as `_forward`."""
    for name, passes, update_ns in reversed(rows):
        computed, summed = _pass(draft, f"gradients of weights {name}", needs, passes[2], DP)
        if update_ns:
            draft.compute(f"update {name}", update_ns, summed)
        needs = (_pass(draft, f"gradients of inputs {name}", (computed,), passes[1], TP)[1],)
    return needs[0] if needs else None


def _row(fields: list[str], where: str) -> Row:
    if len(fields) != FIELDS:
        raise ProfileError(f"{where}: {len(fields)} fields; allowed: {FIELDS}")
    passes = []
    for first in (2, 5, 8):
        duration_ns, size = _number(fields[first], where), _number(fields[first + 2], where)
        kind = fields[first + 1].upper()
        if kind != "NONE" and kind.partition("_")[0] not in KINDS:
            raise ProfileError(
                f"{where}: {fields[0]}: type {fields[first + 1]!r} is unknown; allowed: NONE, {', '.join(KINDS)}"
            )
        if kind.partition("_")[2] not in ("", "EP", "DP_EP"):
            raise ProfileError(f"{where}: {fields[0]}: group of {fields[first + 1]!r} is unknown; allowed: _EP, _DP_EP")
        passes.append((duration_ns, kind, size))
    return fields[0], passes, _number(fields[11], where)


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,16}(\.\d{1,9})?", text) or (number := round(float(text))) > NS_MOST * 4:
        raise ProfileError(f"{where}: {text[:40]!r} is no time or size; allowed: whole numbers from 0 on")
    return number


def _pass(draft: ProgramDraft, name: str, needs: Sequence[int | None], what: Pass, group: str) -> tuple[int, int]:
    """Computing, then what is sent: the places of both, the same if nothing is."""
    duration_ns, kind, size = what
    computed = draft.compute(name, duration_ns, *needs)
    if kind == "NONE" or not size:
        return computed, computed
    collective, _, suffix = kind.partition("_")
    elements, group = -(-size // 4), suffix.lower() or group
    return computed, draft.add(KINDS[collective], name, computed, elements=elements, group=group)


def _groups(sizes: dict[str, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """As Megatron-LM numbers ranks: those of a tensor group are neighbours, then those of a group of experts, then
    those with the same part of the model, then stages."""
    ranks, tp, both = (
        sizes["all_gpus"],
        sizes["model_parallel_NPU_group"],
        sizes["model_parallel_NPU_group"] * sizes["ep"],
    )
    stage = ranks // sizes["pp"]
    return {
        TP: tuple(tuple(range(first, first + tp)) for first in range(0, ranks, tp)),
        DP: _strided(ranks, stage, tp),
        EP: _strided(ranks, both, tp),
        DP_EP: _strided(ranks, stage, both),
    }


def _strided(ranks: int, block: int, stride: int) -> tuple[tuple[int, ...], ...]:
    """In each block of ranks, the groups of every stride-th rank."""
    return tuple(
        tuple(range(first + offset, first + block, stride))
        for first in range(0, ranks, block)
        for offset in range(stride)
    )
