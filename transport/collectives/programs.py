"""A plan compiled by C to a dataflow: which parts of an array are sent, received, added, and what waits for what.

Ranges are cut into segments, and each segment of an operation, a node, gets the earlier ones it must wait for (a value
is read after it was written, written after it was read and its message is out, and written in the plan's order). So
results never depend on timing. tests/oracles/execution.py compiles the same, readable.
"""

import ctypes
import itertools
from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from switchagg.native import headers
from switchagg.native.library import load
from transport.collectives.collective_plan import CollectivePlan

SEGMENT_BYTES = 45 * 1448 - 48
"""Most data of one message: with its head it fills 45 TCP segments of MTU 1500. It is a multiple of 8."""

CACHED_NODES = 400_000
"""Nodes of compiled plans that are kept: about 60 bytes each, and 300 more once their lists were asked for."""

NOBODY = (1 << 32) - 1
NativeProgram = headers.struct("sa_program")


class ProgramLists(NamedTuple):
    """A program's nodes as lists, an entry per node."""

    kinds: list[int]  # SA_NODE_…
    lows: list[int]  # in elements
    highs: list[int]
    sources: list[int]  # of SA_NODE_LOCAL, else 0
    labels: list[tuple[int, ...]]  # of SA_NODE_SEND (to, step, segment), else (NOBODY, 0, 0)
    waits: list[int]  # nodes that must be complete before
    after: list[tuple[int, ...]]  # nodes that wait for this one
    arrivals: dict[tuple[int, ...], int]  # (sender, step, segment) -> node
    expected: dict[int, int]  # sender -> messages


class CompiledProgram:
    """A plan cut into segments of at most segment_bytes (at least an element). Raises MemoryError."""

    _address: int | None = None  # what __del__ finds if __init__ has failed
    _first: "CompiledProgram"  # whose memory a turned one uses

    def __init__(self, plan: CollectivePlan, itemsize: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.scratch = plan.scratch  # elements of memory beyond the array
        operations = plan.operations
        fields = np.fromiter(map(len, operations), np.uint8, len(operations))
        values = np.fromiter(itertools.chain.from_iterable(operations), np.int64, int(fields.sum()))
        shape = headers.struct("sa_operations")(
            fields.ctypes.data, values.ctypes.data, len(operations), plan.members, plan.elements
        )
        self._library = load()
        self._address = self._library.sa_program_compile(ctypes.byref(shape), itemsize, segment_bytes)
        if self._address is None:
            raise MemoryError("no memory for a plan")
        self.nodes = self.native.nodes
        self.combines = any(len(operation) == 3 or (len(operation) == 5 and operation[4]) for operation in operations)

    @classmethod
    def turned(cls, first: "CompiledProgram", turn: int) -> "CompiledProgram":
        """The program of a plan that is member 0's, `first`, turned by so many members and pieces of the array.

        Every piece has elements, and all have as many segments. It has no `lists`. Raises MemoryError.
        """
        program = cls.__new__(cls)
        program.scratch, program.combines, program._library = first.scratch, first.combines, first._library
        program._first, program.nodes = first, 1  # all others are that one's
        program._address = first._library.sa_program_turned(first.address, turn)
        if program._address is None:
            raise MemoryError("no memory for a plan")
        return program

    def __del__(self) -> None:
        if self._address is not None:
            self._library.sa_program_free(self._address)

    @property
    def address(self) -> int:
        """The `struct sa_program`'s address, valid as long as this object."""
        assert self._address is not None
        return self._address

    @property
    def native(self) -> Any:
        """The program as C sees it."""
        return NativeProgram.from_address(self.address)

    @cached_property
    def lists(self) -> ProgramLists:
        """The nodes, copied."""
        program = self.native

        def read(name: str, kind: Any, count: int) -> list[int]:
            return list((kind * count).from_address(getattr(program, name)))

        def read_labels(name: str, count: int) -> list[tuple[int, ...]]:
            numbers = iter(read(name, ctypes.c_uint32, 3 * count))
            return list(zip(numbers, numbers, numbers, strict=True))

        nodes, arriving = program.nodes, program.arriving
        first = read("after_first", ctypes.c_uint32, nodes + 1)
        after = read("after", ctypes.c_uint32, first[-1])
        places = zip(read_labels("arrivals", arriving), read("arrival_nodes", ctypes.c_uint32, arriving), strict=True)
        expected = enumerate(read("expected", ctypes.c_uint32, program.members))
        return ProgramLists(
            read("kinds", ctypes.c_uint8, nodes),
            read("lows", ctypes.c_int64, nodes),
            read("highs", ctypes.c_int64, nodes),
            read("sources", ctypes.c_int64, nodes),
            read_labels("labels", nodes),
            read("waits", ctypes.c_int32, nodes),
            [tuple(after[low:high]) for low, high in itertools.pairwise(first)],
            dict(places),
            {sender: messages for sender, messages in expected if messages},
        )


class ProgramCache:
    """The most recently used programs, by any key; together at most nodes_max nodes, and always the last one."""

    def __init__(self, nodes_max: int = CACHED_NODES) -> None:
        self.nodes = 0
        self._nodes_max = nodes_max
        self._programs: OrderedDict[Any, CompiledProgram] = OrderedDict()

    def get(self, key: Any) -> CompiledProgram | None:
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
        return program

    def put(self, key: Any, program: CompiledProgram) -> None:
        self._programs[key] = program
        self.nodes += program.nodes
        while self.nodes > self._nodes_max and len(self._programs) > 1:
            _, oldest = self._programs.popitem(last=False)
            self.nodes -= oldest.nodes
