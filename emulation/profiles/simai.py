"""SimAI's workload text, as AICB writes it: a header, a count, and rows of twelve fields.

A row: name, dependency (unused), then time in ns, type and bytes for the forward pass, the gradient of inputs and the
gradient of weights, and the time of the update. SimAI waits for what the first two send, and for the third at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from emulation.profiles.errors import ProfileError
from emulation.profiles.graph import COMPUTE, NS_MOST, RANKS_MOST, Operation, WorkloadGraph

HEADER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
FIELDS = 12
KINDS = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
TP, DP, EP, DP_EP = "tp", "dp", "ep", "dp_ep"


def decode(text: str, file: str, workers: int = 0) -> WorkloadGraph:
    """The graph of all ranks, which are equal. workers: as many as the header must say; 0: any. Raises ProfileError."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1][0] != HEADER:
        raise ProfileError(f"{file}: line 1: no workload of SimAI; it begins with {HEADER}")
    sizes = _header(lines[0][1], f"{file}: line {lines[0][0]}")
    ranks = sizes["all_gpus"]
    if workers and ranks != workers:
        raise ProfileError(f"{file}: all_gpus: {ranks}, but the scenario has {workers} workers")
    if len(lines) < 2 or len(lines[1][1]) != 1 or not lines[1][1][0].isdecimal():
        raise ProfileError(f"{file}: line {lines[min(1, len(lines) - 1)][0]}: the number of rows is missing")
    rows, count = lines[2:], int(lines[1][1][0][:12])
    if len(rows) != count:
        raise ProfileError(f"{file}: line {lines[-1][0]}: {len(rows)} rows, but line {lines[1][0]} says {count}")
    operations: list[Operation] = []

    def add(kind: str, name: str, *needs: int | None, **what: int | str) -> int:
        wanted = tuple(sorted({each for each in needs if each is not None}))
        operations.append(Operation(kind, name, wanted, **what))  # type: ignore[arg-type]
        return len(operations) - 1

    parsed = [_row(fields, f"{file}: line {number}") for number, fields in rows]
    last: int | None = None
    skipped: Counter[str] = Counter()
    for name, passes, _ in parsed:
        last = _pass(add, f"forward {name}", last, passes[0], TP)[1]
    for name, passes, update_ns in reversed(parsed):
        computed, sent = _pass(add, f"gradients of weights {name}", last, passes[2], DP)
        if update_ns:
            add(COMPUTE, f"update {name}", sent, duration_ns=update_ns)
        last = _pass(add, f"gradients of inputs {name}", computed, passes[1], TP)[1]
    if sizes.get("checkpoints"):
        skipped["recomputed forward passes of checkpoints"] = sizes["checkpoints"]
    notes = tuple(f"{file}: left out: {many} {what}." for what, many in skipped.items())
    return WorkloadGraph(file, (tuple(operations),), (0,) * ranks, _groups(sizes), f"SimAI's workload {file}", notes)


def _header(words: list[str], where: str) -> dict[str, int]:
    """Numbers by name; all_gpus, tp and ep are there."""
    found = {}
    for name, value in re.findall(r"(\w+):\s+(\d{1,12})(?:\.0)?(?=\s|$)", " ".join(words)):
        found[name] = int(value)
    tp, ep = found.get("model_parallel_NPU_group", 0), found.setdefault("ep", 1)
    ranks = found.get("all_gpus", 0)
    if not 1 <= ranks <= RANKS_MOST:
        raise ProfileError(f"{where}: all_gpus: {ranks}; allowed: 1 … {RANKS_MOST}")
    if found.get("pp", 1) != 1:
        raise ProfileError(f"{where}: pp: {found['pp']}; rows describe one stage only; allowed: 1")
    if tp < 1 or ep < 1 or ranks % (tp * ep):
        raise ProfileError(f"{where}: {ranks} ranks are no whole number of groups of {tp} x {ep} (tensors x experts)")
    return found


def _row(fields: list[str], where: str) -> tuple[str, list[tuple[int, str, int]], int]:
    """Name; time, type and bytes of each pass; time of the update."""
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


def _pass(
    add: Callable[..., int], name: str, last: int | None, what: tuple[int, str, int], group: str
) -> tuple[int, int]:
    """Computing, then what is sent: the places of both, the same if nothing is."""
    duration_ns, kind, size = what
    computed = add(COMPUTE, name, last, duration_ns=duration_ns)
    if kind == "NONE" or not size:
        return computed, computed
    collective, _, suffix = kind.partition("_")
    elements, group = -(-size // 4), suffix.lower() or group
    return computed, add(KINDS[collective], name, computed, elements=elements, group=group)


def _groups(sizes: dict[str, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """As Megatron-LM numbers ranks: those of a tensor group are neighbours, then those of a group of experts."""
    ranks, tp, ep = sizes["all_gpus"], sizes["model_parallel_NPU_group"], sizes["ep"]
    blocks = [(offset, first) for first in range(0, ranks, tp * ep) for offset in range(tp)]
    return {
        TP: tuple(tuple(range(first, first + tp)) for first in range(0, ranks, tp)),
        DP: tuple(tuple(range(offset, ranks, tp)) for offset in range(tp)),
        EP: tuple(tuple(range(first + offset, first + tp * ep, tp)) for offset, first in blocks),
        DP_EP: tuple(tuple(range(offset, ranks, tp * ep)) for offset in range(tp * ep)),
    }
