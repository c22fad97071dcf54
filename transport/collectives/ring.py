"""Ring allreduce in segments: reduce-scatter, then all-gather, 2(n-1) steps (Patarasuk and Yuan, 2009).

The array is cut into n chunks of nearly equal length, a chunk into segments. In step s rank r sends chunk (r - s) mod n
to its right neighbour and takes chunk (r - s - 1) mod n from its left one: it adds in steps 0 … n-2, and overwrites in
steps n-1 … 2n-3. A segment that came in step s is what this rank sends in step s + 1, at once, so that all links are
busy as long as a chunk lasts longer than a segment and the latency. Each element is summed once, along the ring, and
then copied: the result is bit-identical on all ranks and doesn't depend on timing.
"""

from collections import deque
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Op = Literal["sum", "max"]
SEGMENT_BYTES = 45 * 1448  # 65,160: whole frames of MTU 1500, whole elements of 4 and 8 bytes


class Message(NamedTuple):
    """What the right neighbour shall get: the step it belongs to, the segment's number in its chunk, its bytes."""

    step: int
    segment: int
    data: bytes


class RingAllreduce:
    """One rank's part in one allreduce. Give it to `start`, carry `messages_to_send` to rank + 1, `receive` theirs.

    The loop: start or receive, then carry all of messages_to_send; done says that the array holds the result.
    """

    def __init__(self, rank: int, workers: int, op: Op = "sum", segment_bytes: int = SEGMENT_BYTES) -> None:
        assert 0 <= rank < workers
        assert segment_bytes >= 8
        self.done = False
        self._rank = rank
        self._workers = workers
        self._combine = np.add if op == "sum" else np.maximum
        self._segment_bytes = segment_bytes
        self._array: NDArray[Any] | None = None
        self._outbox: deque[Message] = deque()
        self._missing: set[tuple[int, int]] = set()  # (step, segment) still to come

    def start(self, array: NDArray[Any]) -> None:
        """Begin on a 1-D C-contiguous array of any number type; the result replaces it. The size is equal on all ranks.

        The array must not be touched until `done`.
        """
        assert self._array is None, "an allreduce starts once"
        assert array.ndim == 1
        assert array.flags.c_contiguous
        self._array = array
        steps = 2 * (self._workers - 1)
        for step in range(steps):
            segments = len(self._segments(self._chunk_received(step)))
            self._missing.update((step, segment) for segment in range(segments))
        if steps:
            for segment, (low, high) in enumerate(self._segments(self._rank)):
                self._outbox.append(Message(0, segment, array[low:high].tobytes()))
        self.done = not self._missing

    def receive(self, step: int, segment: int, data: bytes) -> None:
        """Take a message of the left neighbour, in any order, each once.

        ValueError for a message that this allreduce doesn't expect: the ranks disagree on what they reduce.
        """
        assert self._array is not None, "start first"
        if (step, segment) not in self._missing:
            raise ValueError(f"rank {self._rank}: step {step}, segment {segment} is not expected, or came twice")
        low, high = self._segments(self._chunk_received(step))[segment]
        mine = self._array[low:high]
        if len(data) != mine.nbytes:
            raise ValueError(
                f"rank {self._rank}: step {step}, segment {segment} has {len(data)} bytes, not {mine.nbytes}: "
                "the ranks reduce arrays of different sizes or types"
            )
        theirs: NDArray[Any] = np.frombuffer(data, mine.dtype)
        if step < self._workers - 1:
            self._combine(mine, theirs, out=mine)
            data = mine.tobytes()
        else:
            mine[:] = theirs
        self._missing.remove((step, segment))
        if step < 2 * (self._workers - 1) - 1:
            self._outbox.append(Message(step + 1, segment, data))
        self.done = not self._missing

    def messages_to_send(self) -> list[Message]:
        """Messages for the right neighbour, each handed out once; carry them even after `done`: it waits for them."""
        messages = list(self._outbox)
        self._outbox.clear()
        return messages

    def _chunk_received(self, step: int) -> int:
        return (self._rank - step - 1) % self._workers

    def _segments(self, chunk: int) -> list[tuple[int, int]]:
        """(first, end) of each segment of a chunk, in elements; none if the chunk is empty."""
        assert self._array is not None
        size = len(self._array)
        low, high = chunk * size // self._workers, (chunk + 1) * size // self._workers
        each = max(1, self._segment_bytes // self._array.itemsize)
        return [(first, min(first + each, high)) for first in range(low, high, each)]


def bytes_sent(rank: int, workers: int, elements: int, itemsize: int) -> int:
    """Bytes of data a rank sends in one allreduce: 2(n-1)/n of the array, exactly, up to rounding of the chunks."""
    sizes = [(chunk + 1) * elements // workers - chunk * elements // workers for chunk in range(workers)]
    return itemsize * sum(sizes[(rank - step) % workers] for step in range(2 * (workers - 1)))
