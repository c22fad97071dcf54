"""Compiles a plan to a dataflow, which `NativeExecution` runs: what has come and may be applied is applied, what is
final is sent.

A plan is compiled once per shape: ranges are cut into segments, and each segment of an operation gets the earlier ones
it must wait for (a value is read after it was written, written after it was read and its message is out, and written in
the plan's order). So results never depend on timing. This module is pure.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from switchagg.native.headers import SA_NODE_COMBINE, SA_NODE_LOCAL, SA_NODE_OVERWRITE, SA_NODE_SEND
from transport.collectives.collective_plan import CollectivePlan, LocalCombine, Receive, Send
from transport.collectives.programs import native_program
from transport.meshes.mesh import Buffer

Op = Literal["sum", "max"]
OPS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}

SEGMENT_BYTES = 45 * 1448 - 48
"""Most data of one message: with its head it fills 45 TCP segments of MTU 1500. It is a multiple of 8."""

CACHED_NODES = 400_000
"""Segments of compiled plans that are kept, about 300 bytes each."""

_SEND, _COMBINE, _OVERWRITE, _LOCAL = SA_NODE_SEND, SA_NODE_COMBINE, SA_NODE_OVERWRITE, SA_NODE_LOCAL


class Segment(NamedTuple):
    """A message: segment number `segment` of the range of the Send with this step. node: to be given to `on_sent`."""

    to: int
    step: int
    segment: int
    data: Buffer
    node: int


@dataclass(frozen=True)
class SegmentProgram:
    """A compiled plan: lists with an entry per node, a node being one segment of one operation."""

    plan: CollectivePlan
    itemsize: int
    segment_bytes: int
    kinds: list[int]
    lows: list[int]  # in elements
    highs: list[int]
    sources: list[int]  # of _LOCAL, else 0
    labels: list[tuple[int, int, int]]  # of _SEND (to, step, segment), else (-1, 0, 0)
    waits: list[int]  # nodes that must be complete before
    after: list[tuple[int, ...]]  # nodes that wait for this one
    arrivals: dict[tuple[int, int, int], int]  # (sender, step, segment) -> node
    expected: dict[int, int]  # sender -> messages

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.kinds)

    @cached_property
    def combines(self) -> bool:
        """Whether it adds anything."""
        return _COMBINE in self.kinds or _LOCAL in self.kinds

    @cached_property
    def native(self) -> Any:
        """The same for C."""
        nodes = {"kinds": self.kinds, "lows": self.lows, "highs": self.highs, "sources": self.sources}
        return native_program(
            {**nodes, "waits": self.waits},
            self.labels,
            self.after,
            self.arrivals,
            members=self.plan.members,
            elements=self.plan.elements,
            itemsize=self.itemsize,
        )


def compile_plan(plan: CollectivePlan, itemsize: int, segment_bytes: int = SEGMENT_BYTES) -> SegmentProgram:
    """Cut a plan's ranges into segments of at most segment_bytes (at least an element) and find what waits for what."""
    return _Compiler(plan, itemsize, segment_bytes).program


class _Compiler:
    """Memory is cut at all ends of segments into pieces; each knows its last writer and the readers since."""

    def __init__(self, plan: CollectivePlan, itemsize: int, segment_bytes: int) -> None:
        self._per_segment = max(1, segment_bytes // itemsize)
        self.program = SegmentProgram(plan, itemsize, segment_bytes, [], [], [], [], [], [], [], {}, {})
        cut = [
            (operation, number, low, high)
            for operation in plan.operations
            for number, (low, high) in enumerate(self._cut(operation.low, operation.high))
        ]
        ends = {end for _, _, low, high in cut for end in (low, high)}
        for operation, _, low, high in cut:
            if isinstance(operation, LocalCombine):
                shift = operation.source - operation.low
                ends.update((low + shift, high + shift))
        ordered = sorted(ends)
        self._piece = {end: index for index, end in enumerate(ordered)}
        # The second half is for empty ranges: each place has a piece of its own for them.
        self._writer = [-1] * (2 * len(ordered))
        self._readers: list[list[int]] = [[] for _ in range(2 * len(ordered))]
        self._after: list[list[int]] = []
        for operation, number, low, high in cut:
            self._add(operation, number, low, high)
        self.program.after.extend(map(tuple, self._after))

    def _cut(self, low: int, high: int) -> list[tuple[int, int]]:
        if low == high:
            return [(low, high)]
        return [(first, min(first + self._per_segment, high)) for first in range(low, high, self._per_segment)]

    def _pieces(self, low: int, high: int) -> range:
        if low == high:
            place = len(self._piece) + self._piece[low]
            return range(place, place + 1)
        return range(self._piece[low], self._piece[high])

    def _add(self, operation: Send | Receive | LocalCombine, number: int, low: int, high: int) -> None:
        program, node = self.program, len(self._after)
        self._after.append([])
        waits: set[int] = set()
        label, source = (-1, 0, 0), 0
        if isinstance(operation, Send):
            kind = _SEND
            label = (operation.to, operation.step, number)
            self._read(node, low, high, waits)
        elif isinstance(operation, Receive):
            kind = _COMBINE if operation.combine else _OVERWRITE
            arrival = (operation.sender, operation.step, number)
            assert arrival not in program.arrivals, f"step {operation.step} of {operation.sender} is listed twice"
            program.arrivals[arrival] = node
            program.expected[operation.sender] = program.expected.get(operation.sender, 0) + 1
            self._write(node, low, high, waits)
        else:
            kind = _LOCAL
            source = operation.source + low - operation.low
            self._read(node, source, source + high - low, waits)
            self._write(node, low, high, waits)
        waits.discard(node)  # an empty Local reads and writes the same place
        for earlier in waits:
            self._after[earlier].append(node)
        program.kinds.append(kind)
        program.lows.append(low)
        program.highs.append(high)
        program.sources.append(source)
        program.labels.append(label)
        program.waits.append(len(waits))

    def _read(self, node: int, low: int, high: int, waits: set[int]) -> None:
        for piece in self._pieces(low, high):
            if self._writer[piece] >= 0:
                waits.add(self._writer[piece])
            self._readers[piece].append(node)

    def _write(self, node: int, low: int, high: int, waits: set[int]) -> None:
        for piece in self._pieces(low, high):
            if readers := self._readers[piece]:  # which wait for the last writer themselves
                waits.update(readers)
                self._readers[piece] = []
            elif self._writer[piece] >= 0:
                waits.add(self._writer[piece])
            self._writer[piece] = node


class Compiled(Protocol):
    """A program of so many nodes."""

    @property
    def nodes(self) -> int: ...


AnyProgram = TypeVar("AnyProgram", bound=Compiled)


class ProgramCache(Generic[AnyProgram]):
    """The most recently used programs, by any key; together at most nodes_max nodes, and always the last one."""

    def __init__(self, nodes_max: int = CACHED_NODES) -> None:
        self.nodes = 0
        self._nodes_max = nodes_max
        self._programs: OrderedDict[Any, AnyProgram] = OrderedDict()

    def get(self, key: Any) -> AnyProgram | None:
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
        return program

    def put(self, key: Any, program: AnyProgram) -> None:
        self._programs[key] = program
        self.nodes += program.nodes
        while self.nodes > self._nodes_max and len(self._programs) > 1:
            _, oldest = self._programs.popitem(last=False)
            self.nodes -= oldest.nodes
