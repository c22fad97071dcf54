"""NativeExecution: runs one plan in C, with the verbs of `execution.Execution`, and the same bits.

A mesh in C takes its `handle` and goes on without Python: see `Runner`.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.native.native_codec import DTYPES
from switchagg.native.programs import MAX, SIZE, SUM, TWICE, NativeLabel, declared
from transport.collectives.execution import Op, Segment, SegmentProgram
from transport.meshes.mesh import Buffer

COMBINED = {"sum": (SUM, DTYPES[:4]), "max": (MAX, DTYPES[2:4])}
"""The ops that C combines: op -> its number, dtypes. NumPy keeps the maximum of floats: the sign of its zeros depends
on the length of the array."""


class Runner(Protocol):
    """The mesh side that carries messages and runs executions with them, in one thread."""

    def run(self, execution: "NativeExecution", head: bytes, ticket: int) -> None:
        """Take over an execution that has not started: `head` and step and segment (u32) are the heads of its messages,
        `ticket` comes back as Sent when it is done. Referenced until then, and `carried`. Raises MemoryError."""

    def stop(self) -> None:
        """Stop all executions: nothing more is received into their arrays; the tickets don't come back."""


class NativeExecution:
    """See `Execution`. carried: a mesh sends its messages. Raises MemoryError."""

    carried = False
    _handle: int | None = None  # what __del__ finds if __init__ has failed

    def __init__(self, program: SegmentProgram, array: NDArray[Any], op: Op = "sum") -> None:
        assert array.shape == (program.plan.elements,)
        assert array.flags.carray
        assert array.itemsize == program.itemsize
        self._library = declared()
        self._program = program
        self._array = array
        self._scratch = np.empty(program.plan.scratch, array.dtype)
        dtype = DTYPES.index(array.dtype) if array.dtype in DTYPES else 0  # other dtypes combine nothing
        self._handle = self._library.sa_execution_new(
            program.native, array.ctypes.data, self._scratch.ctypes.data, dtype, COMBINED[op][0]
        )
        if self._handle is None:
            raise MemoryError("no memory for a call")

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.sa_execution_free(self._handle)

    @staticmethod
    def can(program: SegmentProgram, array: NDArray[Any], op: Op) -> bool:
        """Whether C can: it combines few types, and only aligned ones of this machine's byte order."""
        if not array.flags.carray or not array.dtype.isnative:
            return False
        return array.dtype in COMBINED[op][1] or not program.combines

    @property
    def handle(self) -> int:
        """Address of the `struct sa_execution`; lives as long as this object."""
        assert self._handle is not None
        return self._handle

    @property
    def done(self) -> bool:
        """See `Execution`."""
        return not self._library.sa_execution_left(self._handle)

    @property
    def moves(self) -> int:
        """See `Execution`."""
        moves: int = self._library.sa_execution_moves(self._handle)
        return moves

    def start(self) -> None:
        """See `Execution`."""
        self._library.sa_execution_start(self._handle)

    def expects(self, sender: int) -> bool:
        """See `Execution`."""
        return bool(self._library.sa_execution_expects(self._handle, sender))

    def missing(self) -> list[int]:
        """See `Execution`."""
        return [sender for sender in sorted(self._program.expected) if self.expects(sender)]

    def sends_left_to(self, member: int) -> bool:
        """See `Execution`."""
        return bool(self._library.sa_execution_sends_left_to(self._handle, member))

    def leaving_to(self) -> list[int]:
        """See `Execution`."""
        receivers = sorted({to for to, _, _ in self._program.labels if to >= 0})
        return [to for to in receivers if self._library.sa_execution_leaving_to(self._handle, to)]

    def place(self, sender: int, step: int, segment: int, size_bytes: int) -> memoryview | None:
        """See `Execution`."""
        if not size_bytes:
            return None
        address = self._library.sa_execution_place(self._handle, NativeLabel(sender, step, segment), size_bytes)
        if address is None:
            return None
        node = self._program.arrivals[sender, step, segment]
        return self._memory(self._program.lows[node], self._program.highs[node])

    def receive(self, sender: int, step: int, segment: int, data: Buffer) -> None:
        """See `Execution`; `data` is copied."""
        label = NativeLabel(sender, step, segment)
        address = np.frombuffer(data, np.uint8).ctypes.data if len(data) else None
        result = self._library.sa_execution_receive(self._handle, label, address, len(data))
        if not result:
            return
        if result < 0:
            raise MemoryError("no memory for a message that came early")
        words = "is not expected"
        if result == TWICE:
            words = "came twice"
        elif result == SIZE:
            node = self._program.arrivals[sender, step, segment]
            wanted = (self._program.highs[node] - self._program.lows[node]) * self._program.itemsize
            words = f"has {len(data)} bytes, not {wanted}"
        raise ValueError(f"step {step}, segment {segment} {words}")

    def on_sent(self, node: int) -> None:
        """See `Execution`."""
        self._library.sa_execution_sent(self._handle, node)

    def messages_to_send(self) -> list[Segment]:
        """See `Execution`; not of one that is carried."""
        program, messages = self._program, []
        node: int
        while (node := self._library.sa_execution_next(self._handle)) >= 0:
            to, step, segment = program.labels[node]
            messages.append(Segment(to, step, segment, self._memory(program.lows[node], program.highs[node]), node))
        return messages

    def _memory(self, low: int, high: int) -> memoryview:
        elements = len(self._array)
        values = self._array[low:high] if high <= elements else self._scratch[low - elements : high - elements]
        return values.view(np.uint8).data
