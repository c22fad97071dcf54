"""NativeExecution: runs one plan in C, where what has come and may be applied is applied, and what is final is sent.

A mesh in C takes its `handle` and goes on without Python: see `Runner`. tests/oracles/execution.py is the same,
readable.
"""

import ctypes
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from switchagg.native import headers
from switchagg.native.library import load
from switchagg.native.native_codec import DTYPES
from transport.collectives.programs import NOBODY, CompiledProgram
from transport.meshes.mesh import Buffer, address_of

Op = Literal["sum", "max"]
OPS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}

COMBINE_ELSEWHERE = headers.callback("sa_combine_elsewhere")
COMBINED = {"sum": (headers.SA_COMBINE_SUM, DTYPES[:4]), "max": (headers.SA_COMBINE_MAX, DTYPES[2:4])}
"""The ops that C combines: op -> its number, dtypes. NumPy keeps the maximum of floats: the sign of its zeros depends
on the length of the array."""

_Label = headers.struct("sa_label")


class Segment(NamedTuple):
    """A message: segment number `segment` of the range of the Send with this step. node: to be given to `on_sent`."""

    to: int
    step: int
    segment: int
    data: Buffer
    node: int


@runtime_checkable
class Runner(Protocol):
    """The mesh side that carries messages and runs executions with them, in one thread."""

    def run(self, execution: "NativeExecution", head: bytes, ticket: int) -> None:
        """Take over an execution that has not started: `head` and step and segment (u32) are the heads of its messages,
        `ticket` comes back as Sent when it is done. Referenced until then, and `carried`. Raises MemoryError."""

    def stop(self) -> None:
        """Stop all executions: nothing more is received into their arrays; the tickets don't come back."""


def combines_in_c(array: NDArray[Any], op: Op) -> bool:
    """Whether C can: it combines few types, and only aligned ones of this machine's byte order."""
    return array.flags.aligned and array.dtype.isnative and array.dtype in COMBINED[op][1]


def combine_at(op: Op, array: NDArray[Any], target: int, operand: int, count: int) -> None:
    """Combine, in place, so many values at these addresses, which C can't. array: of their type and class."""
    if count:
        kind = ctypes.c_uint8 * (count * array.itemsize)
        memory = (memoryview(kind.from_address(address)) for address in (target, operand))
        into, values = (np.frombuffer(buffer, array.dtype).view(type(array)) for buffer in memory)
        with np.errstate(all="ignore"):  # as C
            OPS[op](into, values, out=into)


class NativeExecution:
    """A call of one member. The array must not be touched until `done`; it then holds the result.

    array: 1-D, C-contiguous, writable, as long as the plan's, of the itemsize the plan was compiled for.
    The loop: start, receive or on_sent, then carry all of messages_to_send. carried: a mesh does. Raises MemoryError.
    """

    carried = False
    _handle: int | None = None  # what __del__ finds if __init__ has failed

    def __init__(self, program: CompiledProgram, array: NDArray[Any], op: Op = "sum") -> None:
        assert array.shape == (program.native.elements,)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.itemsize == program.native.itemsize
        self._library = load()
        self._program = program
        self._array = array
        self._scratch = np.empty(program.scratch, array.dtype)
        dtype, combine, self._elsewhere = 0, headers.SA_COMBINE_ELSEWHERE, COMBINE_ELSEWHERE()
        if combines_in_c(array, op):
            dtype, combine = DTYPES.index(array.dtype), COMBINED[op][0]
        elif program.combines:
            OPS[op](self._scratch[:0], self._scratch[:0], out=self._scratch[:0])  # raises where NumPy can't either
            self._elsewhere = COMBINE_ELSEWHERE(lambda _, *where: combine_at(op, array, *where))
        self._handle = self._library.sa_execution_new(
            program.address,
            array.ctypes.data,
            self._scratch.ctypes.data,
            dtype,
            combine,
            self._elsewhere,
        )
        if self._handle is None:
            raise MemoryError("no memory for a call")

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.sa_execution_free(self._handle)

    @property
    def handle(self) -> int:
        """Address of the `struct sa_execution`; lives as long as this object."""
        assert self._handle is not None
        return self._handle

    @property
    def done(self) -> bool:
        """Whether the array holds the result."""
        return not self._library.sa_execution_left(self._handle)

    @property
    def moves(self) -> int:
        """Messages that came or left."""
        moves: int = self._library.sa_execution_moves(self._handle)
        return moves

    def start(self) -> None:
        """Begin; what needs nothing of others becomes ready. Call it once, before anything else."""
        self._library.sa_execution_start(self._handle)

    def expects(self, sender: int) -> bool:
        """Whether a message of that member is still to come."""
        return bool(self._library.sa_execution_expects(self._handle, sender))

    def missing(self) -> list[int]:
        """Members of whom messages are still to come."""
        return [sender for sender in self._program.lists.expected if self.expects(sender)]

    def sends_left_to(self, member: int) -> bool:
        """Whether a message to that member has not been handed out."""
        return bool(self._library.sa_execution_sends_left_to(self._handle, member))

    def leaving_to(self) -> list[int]:
        """Members to whom messages have been handed out that have not left."""
        receivers = sorted({to for to, _, _ in self._program.lists.labels if to != NOBODY})
        return [to for to in receivers if self._library.sa_execution_leaving_to(self._handle, to)]

    def place(self, sender: int, step: int, segment: int, size_bytes: int) -> memoryview | None:
        """Memory of the array for a message that has begun to arrive, if it overwrites and may do so now; or None."""
        if not size_bytes:
            return None
        label = ctypes.byref(_Label(sender, step, segment))
        if not self._library.sa_execution_place(self._handle, label, size_bytes):
            return None
        return self._memory(self._program.lists.arrivals[sender, step, segment])

    def receive(self, sender: int, step: int, segment: int, data: Buffer) -> None:
        """Take a message, in any order, each once; `data` may change from then on.

        ValueError, saying what is wrong, for one that this call doesn't expect.
        """
        label = ctypes.byref(_Label(sender, step, segment))
        address = address_of(data) if len(data) else None
        result = self._library.sa_execution_receive(self._handle, label, address, len(data))
        if not result:
            return
        if result < 0:
            raise MemoryError("no memory for a message that came early")
        words = "is not expected"
        if result == headers.SA_UNFIT_TWICE:
            words = "came twice"
        elif result == headers.SA_UNFIT_SIZE:
            wanted = self._memory(self._program.lists.arrivals[sender, step, segment])
            words = f"has {len(data)} bytes, not {len(wanted)}"
        raise ValueError(f"step {step}, segment {segment} {words}")

    def on_sent(self, node: int) -> None:
        """The memory of a message may be used again."""
        self._library.sa_execution_sent(self._handle, node)

    def messages_to_send(self) -> list[Segment]:
        """Messages that may be sent, each handed out once, none of a call that is carried. `data` is the array's own
        memory until `on_sent`."""
        messages = []
        node: int
        while (node := self._library.sa_execution_next(self._handle)) >= 0:
            to, step, segment = self._program.lists.labels[node]
            messages.append(Segment(to, step, segment, self._memory(node), node))
        return messages

    def _memory(self, node: int) -> memoryview:
        lists, elements = self._program.lists, len(self._array)
        low, high = lists.lows[node], lists.highs[node]
        values = self._array[low:high] if high <= elements else self._scratch[low - elements : high - elements]
        return values.view(np.uint8).data
