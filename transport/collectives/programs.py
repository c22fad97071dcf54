"""Dataflow programs for the C core: which parts of an array are sent, received, added, and what waits for what."""

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from switchagg.native import headers
from switchagg.native.library import load

COMBINE_ELSEWHERE = headers.callback("sa_combine_elsewhere")
NativeProgram = headers.struct("sa_program")
_NOBODY = (1 << 32) - 1


def native_program(
    nodes: Mapping[str, Sequence[int]],
    labels: Sequence[tuple[int, int, int]],
    after: Sequence[Sequence[int]],
    arrivals: Mapping[tuple[int, int, int], int],
    *,
    members: int,
    elements: int,
    itemsize: int,
) -> Any:
    """A `NativeProgram` that keeps its arrays alive. nodes: kinds, lows, highs, sources and waits of each; the rest as
    of a `Program`."""
    places = sorted(arrivals)
    expected = np.bincount([sender for sender, _, _ in places], minlength=members)
    arrays: dict[str, Any] = {
        "kinds": np.array(nodes["kinds"], np.uint8),
        **{name: np.array(nodes[name], np.int64) for name in ("lows", "highs", "sources")},
        "labels": np.array([label if label[0] >= 0 else (_NOBODY, 0, 0) for label in labels], np.uint32),
        "waits": np.array(nodes["waits"], np.int32),
        "after_first": np.cumsum([0, *map(len, after)], dtype=np.uint32),
        "after": np.array([node for following in after for node in following], np.uint32),
        "arrivals": np.array(places, np.uint32),
        "arrival_nodes": np.array([arrivals[place] for place in places], np.uint32),
        "expected": expected.astype(np.uint32),
    }
    program = NativeProgram(len(labels), len(places), members, itemsize, elements)
    for name, array in arrays.items():
        setattr(program, name, array.ctypes.data)
    program.arrays = arrays
    return program


class CompiledProgram:
    """A plan compiled in C, in about 60 bytes per node: what `native_program` makes of a plan compiled in Python.

    operations: (step, to, low, high) of a Send, (step, sender, low, high, whether it combines) of a Receive,
    (low, high, source) of a Local. Raises MemoryError.
    """

    _address: int | None = None  # what __del__ finds if __init__ has failed
    _first: "CompiledProgram"  # whose memory a turned one uses

    def __init__(
        self,
        operations: Sequence[Sequence[int]],
        *,
        members: int,
        elements: int,
        scratch: int,
        itemsize: int,
        segment_bytes: int,
    ) -> None:
        self.scratch = scratch  # elements of memory beyond the array
        fields = np.fromiter(map(len, operations), np.uint8, len(operations))
        values = np.fromiter(itertools.chain.from_iterable(operations), np.int64, int(fields.sum()))
        shape = headers.struct("sa_operations")(
            fields.ctypes.data, values.ctypes.data, len(operations), members, elements
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

        Every piece has elements, and all have as many segments. Raises MemoryError.
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
