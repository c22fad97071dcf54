"""What a plan's execution does, readable: `transport.collectives.execution` in C must give the same bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.native.headers import SA_NODE_COMBINE, SA_NODE_LOCAL, SA_NODE_OVERWRITE, SA_NODE_SEND
from transport.collectives.execution import OPS, Op, Segment
from transport.collectives.programs import CompiledProgram
from transport.meshes.mesh import Buffer

_SEND, _COMBINE, _OVERWRITE, _LOCAL = SA_NODE_SEND, SA_NODE_COMBINE, SA_NODE_OVERWRITE, SA_NODE_LOCAL
_LEFT = -1
"""In the place of what a message waits for: it has left."""


class Execution:
    """A call of one member. The array must not be touched until `done`; it then holds the result.

    array: 1-D, C-contiguous, writable, as long as the plan's, of the itemsize the plan was compiled for.
    The loop: start, receive or on_sent, then carry all of messages_to_send.
    """

    carried = False

    def __init__(self, program: CompiledProgram, array: NDArray[Any], op: Op = "sum") -> None:
        shape = program.native
        assert array.shape == (shape.elements,), f"an array of {array.shape}, a plan for {shape.elements}"
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.itemsize == shape.itemsize
        self.done = False
        self.moves = 0  # messages that came or left
        self._program, self._scratch_elements = program.lists, program.scratch
        self._array = array
        self._bytes = array.view(np.uint8).data
        self._elements = shape.elements
        self._itemsize = shape.itemsize
        self._combine = OPS[op]
        self._waits = self._program.waits.copy()
        self._left = program.nodes  # nodes not complete
        self._expected = self._program.expected.copy()
        self._arrived: set[int] = set()
        self._placed: set[int] = set()
        self._held: dict[int, Buffer] = {}  # came before it could be applied
        self._outbox: list[int] = []
        self._scratch: NDArray[Any] | None = None
        self._scratch_bytes = memoryview(b"")

    def start(self) -> None:
        """Begin; what needs nothing of others becomes ready. Call it once, before anything else."""
        if self._scratch_elements:
            self._scratch = np.empty(self._scratch_elements, self._array.dtype)
            self._scratch_bytes = self._scratch.view(np.uint8).data
        kinds = self._program.kinds
        for node, waits in enumerate(self._program.waits):
            if not waits:
                if kinds[node] == _SEND:
                    self._outbox.append(node)
                elif kinds[node] == _LOCAL:
                    self._apply_local(node)
                    self._complete(node)
        labels = self._program.labels
        self._outbox.sort(key=lambda node: labels[node][2])  # the first segments to all, so that all can begin
        self.done = not self._left

    def expects(self, sender: int) -> bool:
        """Whether a message of that member is still to come."""
        return self._expected.get(sender, 0) > 0

    def missing(self) -> list[int]:
        """Members of whom messages are still to come."""
        return sorted(sender for sender, count in self._expected.items() if count)

    def sends_left_to(self, member: int) -> bool:
        """Whether a message to that member has not been handed out."""
        sends = [node for node, label in enumerate(self._program.labels) if label[0] == member]
        ready = set(self._outbox)
        return any(self._waits[node] > 0 or node in ready for node in sends)

    def leaving_to(self) -> list[int]:
        """Members to whom messages have been handed out that have not left."""
        labels, waiting = self._program.labels, set(self._outbox)
        kinds = self._program.kinds
        out = (node for node, waits in enumerate(self._waits) if kinds[node] == _SEND and not waits)
        return sorted({labels[node][0] for node in out if node not in waiting})

    def place(self, sender: int, step: int, segment: int, size_bytes: int) -> memoryview | None:
        """Memory of the array for a message that has begun to arrive, if it overwrites and may do so now; or None."""
        node = self._program.arrivals.get((sender, step, segment))
        if node is None or self._waits[node] or self._program.kinds[node] != _OVERWRITE:
            return None
        if node in self._arrived or node in self._placed:
            return None
        memory = self._memory(self._program.lows[node], self._program.highs[node])
        if len(memory) != size_bytes:
            return None
        self._placed.add(node)
        return memory

    def receive(self, sender: int, step: int, segment: int, data: Buffer) -> None:
        """Take a message, in any order, each once. `data` is kept until it can be applied and must not change.

        ValueError, saying what is wrong, for one that this call doesn't expect.
        """
        node = self._program.arrivals.get((sender, step, segment))
        if node is None:
            raise ValueError(f"step {step}, segment {segment} is not expected")
        if node in self._arrived:
            raise ValueError(f"step {step}, segment {segment} came twice")
        size_bytes = (self._program.highs[node] - self._program.lows[node]) * self._itemsize
        if len(data) != size_bytes:
            raise ValueError(f"step {step}, segment {segment} has {len(data)} bytes, not {size_bytes}")
        self._arrived.add(node)
        self.moves += 1
        self._expected[sender] -= 1
        if self._waits[node]:
            self._held[node] = data
            return
        self._apply(node, data)
        self._complete(node)
        self.done = not self._left

    def on_sent(self, node: int) -> None:
        """The memory of a message may be used again."""
        self._waits[node] = _LEFT
        self.moves += 1
        self._complete(node)
        self.done = not self._left

    def messages_to_send(self) -> list[Segment]:
        """Messages that may be sent, each handed out once; `data` is the array's own memory until `on_sent`."""
        if not self._outbox:
            return []
        program = self._program
        labels, lows, highs = program.labels, program.lows, program.highs
        memory = self._memory
        messages = [Segment(*labels[node], memory(lows[node], highs[node]), node) for node in self._outbox]
        self._outbox.clear()
        return messages

    def _memory(self, low: int, high: int) -> memoryview:
        item = self._itemsize
        if high <= self._elements:
            return self._bytes[low * item : high * item]
        return self._scratch_bytes[(low - self._elements) * item : (high - self._elements) * item]

    def _values(self, low: int, high: int) -> NDArray[Any]:
        if high <= self._elements:
            return self._array[low:high]
        assert self._scratch is not None
        return self._scratch[low - self._elements : high - self._elements]

    def _apply(self, node: int, data: Buffer) -> None:
        low, high = self._program.lows[node], self._program.highs[node]
        if self._program.kinds[node] == _COMBINE:
            values = self._values(low, high)
            self._combine(values, np.frombuffer(data, values.dtype) if data else values, out=values)
        elif node in self._placed:
            self._placed.remove(node)
        else:
            self._memory(low, high)[:] = data

    def _apply_local(self, node: int) -> None:
        low, high, source = self._program.lows[node], self._program.highs[node], self._program.sources[node]
        values = self._values(low, high)
        self._combine(values, self._values(source, source + high - low), out=values)

    def _complete(self, node: int) -> None:
        """A node is applied or sent: what waited for it alone goes on."""
        self._left -= 1
        after, kinds, waits = self._program.after, self._program.kinds, self._waits
        if len(after[node]) == 1 and kinds[after[node][0]] == _SEND:  # most nodes take this path
            next_node = after[node][0]
            waits[next_node] -= 1
            if not waits[next_node]:
                self._outbox.append(next_node)
            return
        complete = [node]
        while complete:
            for next_node in after[complete.pop()]:
                waits[next_node] -= 1
                if waits[next_node]:
                    continue
                kind = kinds[next_node]
                if kind == _SEND:
                    self._outbox.append(next_node)
                    continue
                if kind == _LOCAL:
                    self._apply_local(next_node)
                elif (data := self._held.pop(next_node, None)) is not None:
                    self._apply(next_node, data)
                else:
                    continue
                self._left -= 1
                complete.append(next_node)
