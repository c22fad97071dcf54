"""Chakra execution traces (MLCommons, schema 1.0): a file NAME.RANK.et for each rank, messages behind their lengths.

The first message is the metadata, all others are nodes. Groups of ranks, by pg_name, are in ASTRA-sim's
`comm_group.json` beside a trace, or in its nodes process_group:init, as PyTorch's converter writes them. As in
ASTRA-sim, a rank's GPU computes a single node at a time, and so does its CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from emulation.scenario.profiles import protobuf
from emulation.scenario.profiles.graph import COMPUTE, NS_MOST, RECEIVE, SEND, WORLD, GraphOperation, WorkloadGraph
from emulation.scenario.profiles.profile_errors import ProfileError, read_bytes, read_text

FILE = re.compile(r"(.+)\.(\d{1,6})\.et")
GROUPS_FILE = "comm_group.json"
METADATA, COMP, COMM_SEND, COMM_RECV, COMM_COLL = 1, 4, 5, 6, 7
NODE_TYPES = {
    METADATA: "metadata", 2: "memory load", 3: "memory store", COMP: COMPUTE, COMM_SEND: SEND, COMM_RECV: RECEIVE,
    COMM_COLL: "collective", 8: "storage", 9: "batch", 10: "checkpoint",
}  # fmt: skip
COLLECTIVES = {
    0: "allreduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    8: "reduce_scatter",
    9: "barrier",
}
UNSUPPORTED = {1: "reduce", 3: "gather", 4: "scatter"}
VERSIONS = ("", "0.0.4", "1.0", "1.0.0", "schema-1.0.0")
WANTED = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name", "num_ops", "is_cpu_op")

Values = dict[str, int | str]
Groups = Mapping[str, tuple[tuple[int, ...], ...]]


class ChakraNode:
    """The fields of a trace's node that a graph needs."""

    def __init__(self, data: bytes, begin: int, end: int, where: str) -> None:
        self.number, self.name, self.type, self.micros, self.inputs = 0, "", 0, 0, ""
        self.needs: list[int] = []
        self.calls: list[int] = []  # the nodes that called it: control dependencies
        self.values: Values = {}
        for field, kind, value, low, high in protobuf.fields(data, begin, end):
            if field == 1:
                self.number = value
            elif field == 2:
                self.name = data[low:high].decode(errors="replace")[:200]
            elif field == 3:
                self.type = value
            elif field in (4, 5):
                (self.calls if field == 4 else self.needs).extend(protobuf.numbers(data, kind, value, low, high))
            elif field == 7:
                self.micros = value
            elif field == 10 and kind == protobuf.BYTES:
                self._attribute(data, low, high)
            elif field == 8 and kind == protobuf.BYTES and self.type == METADATA:
                texts = (data[a:b] for number, *_, a, b in protobuf.fields(data, low, high) if number == 1)
                self.inputs = next(texts, b"").decode(errors="replace")
        name = " ".join(self.name.split())
        self.where = f"{where}: node {self.number}" + f" ({name})" * bool(name)

    def _attribute(self, data: bytes, begin: int, end: int) -> None:
        name, number = "", 0
        text = ""
        for field, kind, value, low, high in protobuf.fields(data, begin, end):
            if field == 1:
                name = data[low:high].decode(errors="replace")
            elif kind == protobuf.VARINT:
                number = protobuf.signed(value)
            elif field == 29:
                text = data[low:high].decode(errors="replace")[:200]
        if name in WANTED:
            self.values[name] = text or number

    def value(self, name: str, *, least: int, needed: bool = True) -> int:
        """The number of an attribute."""
        number = self.values.get(name, None if needed else 0)
        if not isinstance(number, int) or not least <= number < 1 << 44:
            raise ProfileError(f"{self.where}: {name}: {number}; allowed: numbers from {least} on")
        return number


def load(path: Path, workers: int = 0) -> WorkloadGraph:
    """path: a folder of one trace, or any of its files. workers: as many as there must be files; 0: any.

    comm_size is taken for the bytes of a rank's input, as converters of PyTorch's traces write it. Raises ProfileError.
    """
    files, name = _files(path)
    if workers and len(files) != workers:
        raise ProfileError(f"{path}: traces of {len(files)} ranks, but the scenario has {workers} workers")
    groups = {WORLD: (tuple(range(len(files))),), **_groups(path if path.is_dir() else path.parent)}
    ranks = [decode(read_bytes(files[rank]), files[rank].name) for rank in range(len(files))]
    groups = {**_declared_groups(ranks), **groups}
    skipped: Counter[str] = Counter()
    places: dict[tuple[GraphOperation, ...], int] = {}
    program_of = tuple(
        places.setdefault(program(nodes, rank, groups, skipped), len(places)) for rank, nodes in enumerate(ranks)
    )
    notes = tuple(f"{name}: left out: {count} {what}." for what, count in sorted(skipped.items()))
    return WorkloadGraph(name, tuple(places), program_of, groups, f"Chakra traces {name}", notes)


def _files(path: Path) -> tuple[dict[int, Path], str]:
    """The files by rank, and the trace's name."""
    traces: dict[str, dict[int, Path]] = {}
    wanted = FILE.fullmatch(path.name)
    for file in sorted(path.iterdir() if path.is_dir() else path.parent.glob("*.et")):
        match = FILE.fullmatch(file.name)
        if match and (path.is_dir() or (wanted and match[1] == wanted[1])):
            traces.setdefault(match[1], {})[int(match[2])] = file
    if len(traces) != 1:
        what = f"traces {', '.join(traces)}: name one of their files" if traces else "no files NAME.RANK.et"
        raise ProfileError(f"{path}: {what}")
    ((name, files),) = traces.items()
    if missing := sorted(set(range(len(files))) - files.keys()):
        raise ProfileError(f"{path}: rank {missing[0]} has no file; there are {len(files)}")
    return files, name


def _groups(folder: Path) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The groups of comm_group.json: {"0": [0, 1], …}."""
    path = folder / GROUPS_FILE
    if not path.exists():
        return {}
    try:
        read = json.loads(read_text(path, 1 << 26))
        groups = {str(name): tuple(int(rank) for rank in members) for name, members in read.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ProfileError(f'{path.name}: no groups of ranks, like {{"1": [0, 1]}}: {str(error)[:100]}') from error
    return {name: (members,) for name, members in groups.items() if name != WORLD}


def _declared_groups(ranks: list[list[ChakraNode]]) -> Groups:
    """The groups of nodes process_group:init, whose input is [{"pg_name": "1", "ranks": [0, 1]}]; no ranks mean all."""
    groups: dict[str, dict[tuple[int, ...], None]] = {}
    for node in itertools.chain(*ranks):
        if node.type == METADATA and "process_group:init" in node.name:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):  # said where a group is missing
                for entry in json.loads(node.inputs[2:-2]):
                    members = tuple(map(int, entry["ranks"])) or tuple(range(len(ranks)))
                    groups.setdefault(str(entry["pg_name"]), {})[members] = None
    return {name: tuple(sets) for name, sets in groups.items() if name != WORLD}


def decode(data: bytes, file: str) -> list[ChakraNode]:
    """The nodes of a rank. Raises ProfileError."""
    try:
        spans = list(protobuf.messages(data))
        if not spans:
            raise ProfileError(f"{file}: empty: no metadata")
        _check_version(data, *spans[0], file)
        nodes = [ChakraNode(data, begin, end, file) for begin, end in spans[1:]]
    except protobuf.Truncated as error:
        raise ProfileError(f"{file}: {error}") from error
    return nodes


def program(nodes: list[ChakraNode], rank: int, groups: Groups, skipped: Counter[str]) -> tuple[GraphOperation, ...]:
    """A rank's program. groups: that pg_name may name. skipped: counts of omitted nodes. Raises ProfileError."""
    place_of: dict[int, int] = {}
    for place, node in enumerate(nodes):
        if node.number in place_of:
            raise ProfileError(f"{node.where}: its number is there twice")
        if node.type not in NODE_TYPES:
            raise ProfileError(f"{node.where}: type {node.type} is unknown; allowed: 1 … {max(NODE_TYPES)}")
        place_of[node.number] = place
    program = []
    for node in nodes:
        if absent := [number for number in node.needs if number not in place_of]:
            raise ProfileError(f"{node.where}: depends on node {absent[0]}, which there isn't")
        calls = [number for number in node.calls if number in place_of]  # converters remove callers that do nothing
        if len(calls) < len(node.calls):
            skipped["calls of nodes that there aren't"] += len(node.calls) - len(calls)
        needs = tuple(sorted({place_of[number] for number in node.needs + calls}))
        program.append(_operation(node, needs, rank, groups, skipped))
    return tuple(program)


def _check_version(data: bytes, begin: int, end: int, file: str) -> None:
    version = ""
    for field, kind, _, low, high in protobuf.fields(data, begin, end):
        if field == 1 and kind == protobuf.BYTES:
            version = data[low:high].decode(errors="replace")
    if version not in VERSIONS:
        raise ProfileError(f"{file}: schema {version[:40]!r}; allowed: {', '.join(filter(None, VERSIONS))}")


def _operation(
    node: ChakraNode, needs: tuple[int, ...], rank: int, groups: Groups, skipped: Counter[str]
) -> GraphOperation:
    """The node's operation; an omitted node takes no time, so that dependencies stay."""
    if node.micros * 1000 > NS_MOST:
        raise ProfileError(f"{node.where}: {node.micros} µs; allowed: 0 … {NS_MOST // 1000}")
    on_cpu = int(bool(node.values.get("is_cpu_op")))
    if node.type == COMP or (node.type == COMM_COLL and on_cpu and "comm_type" not in node.values):  # begins one
        if not node.micros and node.values.get("num_ops"):
            skipped["computing nodes with num_ops but no duration"] += 1
        return GraphOperation(COMPUTE, node.name, needs, duration_ns=1000 * node.micros, unit=on_cpu)
    if node.type in (COMM_SEND, COMM_RECV):
        sends = node.type == COMM_SEND
        other = node.value("comm_dst" if sends else "comm_src", least=0)
        elements = -(-node.value("comm_size", least=1) // 4)
        tag = node.value("comm_tag", least=0, needed=False)
        return GraphOperation(SEND if sends else RECEIVE, node.name, needs, 0, elements, peer=other - rank, tag=tag)
    if node.type == COMM_COLL:
        return _collective(node, needs, rank, groups, skipped)
    skipped[f"nodes of type {NODE_TYPES[node.type]}"] += 1
    return GraphOperation(COMPUTE, node.name, needs)


def _collective(
    node: ChakraNode, needs: tuple[int, ...], rank: int, groups: Groups, skipped: Counter[str]
) -> GraphOperation:
    number, group = node.value("comm_type", least=0), str(node.values.get("pg_name") or WORLD)
    if group not in groups:
        if group != "0" or len(groups) > 1:
            raise ProfileError(f"{node.where}: group {group!r} is not in {GROUPS_FILE} beside the trace")
        group = WORLD
    members = next((members for members in groups[group] if rank in members), ())
    if number in UNSUPPORTED:
        skipped[f"collectives {UNSUPPORTED[number]}"] += 1
        return GraphOperation(COMPUTE, node.name, needs)
    if number not in COLLECTIVES:
        raise ProfileError(f"{node.where}: comm_type {number} is unknown; allowed: 0 … 9")
    kind = COLLECTIVES[number]
    if kind == "barrier":
        return GraphOperation("allreduce", node.name, needs, 0, 1, group)
    elements = -(-node.value("comm_size", least=1) // 4)
    if kind == "all_gather":
        elements *= max(1, len(members))
    return GraphOperation(kind, node.name, needs, 0, elements, group)
