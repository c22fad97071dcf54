"""A transfer: one shard of float32 values from one member to another, in blocks, a packet each; both its ends."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.rotated.rotation import rotation_of
from transport.bounded.bounded_packets import PROBES, ROTATED, BoundedHeader

Values = NDArray[np.float32]


@dataclass(frozen=True)
class SendPlan:
    """How a transfer's blocks are sent. reliable: of each block, whether it is sent until it arrives. order: of first
    sending. classes: priority class of each, or one for all. droppable: those that a full queue drops first. marked:
    how many, from the end of the order, bear a mark. repeats: a lost block that isn't reliable is sent again, after all
    others. probes: once all are sent the receiver is asked what is missing. rotated: the values are."""

    reliable: NDArray[np.bool_]
    order: NDArray[np.intp]
    classes: NDArray[np.intp] | int
    droppable: NDArray[np.bool_] | None = None
    marked: int = 0
    repeats: bool = False
    probes: bool = False
    rotated: bool = False


class OutgoingTransfer:
    """The sender's end. values are copied. sequence: orders transfers of the same priority."""

    def __init__(
        self, to: int, place: BoundedHeader, plan: SendPlan, values: Values, block_bytes: int, urgency: tuple[int, int]
    ):
        self.to, self.plan, self.urgency = to, plan, urgency
        style = ROTATED * plan.rotated | PROBES * plan.probes
        self.place = place._replace(blocks=len(plan.order), reliable=int(plan.reliable.sum()), style=style)
        self.closed = False  # the receiver wants no more
        self.probing = False  # it was asked what is missing
        self.sent_once = False
        self.first_sent = 0
        self.repeating = False  # the last that left had left before
        self.in_flight = 0  # blocks
        self._bytes = memoryview(values.tobytes())
        self._block_bytes = block_bytes
        self._first: deque[int] = deque(plan.order.tolist())
        self._again: deque[int] = deque()  # reliable ones that were lost
        self._later: deque[int] = deque()  # others
        marked = plan.order[len(plan.order) - plan.marked :]
        self._marked = frozenset(marked.tolist())

    @property
    def wants(self) -> bool:
        """Whether there is a block to send now."""
        return not self.closed and bool(self._again or self._first or self._later)

    @property
    def done(self) -> bool:
        """Whether nothing will follow, whatever becomes of what is in flight."""
        if self.closed:
            return True
        waits = self.plan.probes or bool(self.in_flight and (self.plan.repeats or self.place.reliable))
        return not self.wants and not waits

    def next_block(self) -> int:
        """The next block to send."""
        queue = self._again or self._first or self._later
        block = queue.popleft()
        self.repeating = queue is not self._first
        if not self.repeating:
            self.first_sent += 1
            self.sent_once = not self._first
        return block

    def payload(self, block: int) -> bytes:
        return bytes(self._bytes[block * self._block_bytes : (block + 1) * self._block_bytes])

    def marks(self, block: int) -> bool:
        return block in self._marked

    def may_drop(self, block: int) -> bool:
        """Whether a queue that fills may drop it before others, as it left last: not what its receiver waits for."""
        return self.plan.droppable is not None and not self.repeating and bool(self.plan.droppable[block])

    def class_of(self, block: int) -> int:
        classes = self.plan.classes
        return classes if isinstance(classes, int) else int(classes[block])

    @property
    def least_urgent(self) -> int:
        """The class of the last of its blocks to come, where queues have classes."""
        return int(np.max(self.plan.classes))

    def lost(self, block: int) -> bool:
        """A block has not arrived; whether it will be sent again."""
        if self.closed:
            return False
        if self.plan.reliable[block]:
            self._again.append(block)
        elif self.plan.repeats:
            self._later.append(block)
        else:
            return False
        return True

    def missing(self, first: int, bits: bytes) -> None:
        """The receiver's answer to a probe: the blocks that it hasn't, from `first` on."""
        wanted = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")) + first
        self._later.extend(block for block in wanted.tolist() if block < self.place.blocks)
        self.probing = False


class IncomingTransfer:
    """The receiver's end: packets that came until it was closed. Only the sender is known before the first."""

    def __init__(self, sender: int, elements: int, block_bytes: int) -> None:
        self.sender = sender
        self.elements = elements
        self.blocks = max(1, -(-elements * 4 // block_bytes))
        self.closed = False
        self.rotated = False
        self.begun_ns: int | None = None  # the first packet
        self.last_ns = 0
        self.arrived_blocks = 0
        self.marked = False
        self.timeout_us = 0
        self.bounded = False  # none of its blocks is reliable: known, as the next, from the first packet on
        self.reliable_left = 1
        self.here = np.zeros(self.blocks, np.bool_)
        self._bytes = np.zeros(elements * 4, np.uint8)
        self._block_bytes = block_bytes

    @property
    def full(self) -> bool:
        return self.arrived_blocks == self.blocks

    @property
    def missing_values(self) -> int:
        """How many of its values haven't come."""
        block_values = self._block_bytes // 4
        missing = (self.blocks - self.arrived_blocks) * block_values
        return missing if self.here[-1] else missing - (self.blocks * block_values - self.elements)

    @property
    def share(self) -> float:
        """The share of its blocks that came."""
        return self.arrived_blocks / self.blocks

    def take(self, place: BoundedHeader, reliable: bool, marked: bool, payload: bytes, now_ns: int) -> bool:
        """A block came; False if it fits none, or came before."""
        if place.blocks != self.blocks or place.block >= self.blocks or self.here[place.block]:
            return False
        low = place.block * self._block_bytes
        if len(payload) != min(self._block_bytes, self.elements * 4 - low):
            return False
        if self.begun_ns is None:
            self.begun_ns = now_ns
            self.reliable_left, self.bounded = place.reliable, not place.reliable
        self.last_ns = now_ns
        self.rotated = bool(place.style & ROTATED)
        self.timeout_us = place.timeout_us
        self.marked |= marked
        self.reliable_left -= reliable
        self.here[place.block] = True
        self.arrived_blocks += 1
        self._bytes[low : low + len(payload)] = np.frombuffer(payload, np.uint8)
        return True

    def missing_bits(self, first: int, most_bytes: int) -> bytes:
        """The blocks that are missing, from `first` on."""
        return np.packbits(~self.here[first : first + 8 * most_bytes], bitorder="little").tobytes()

    def values(self) -> tuple[Values, NDArray[np.bool_]]:
        """(values, of each whether it counts): zeros where nothing came. All values of a rotated transfer
        count, if any came: each is the best guess from the values that came, scaled up for the rest."""
        values = self._bytes.view(np.float32)
        here = np.repeat(self.here, self._block_bytes // 4)[: self.elements]
        if not self.rotated:
            return values, here
        received = int(here.sum())
        if not received:
            return values, here
        return turned(values, back=True) * np.float32(self.elements / received), np.ones(self.elements, np.bool_)


def turned(values: Values, back: bool) -> Values:
    """Rotated values (a Hadamard transform with random signs), or those that rotate to them: blocks of powers of two,
    the longest first, so that the length stays. A lost packet then costs all values of its block a little."""
    out, low, unit = np.empty_like(values), 0, np.ones((1, 1))
    while low < len(values):
        width = 1 << min(len(values) - low, ROTATED_VALUES).bit_length() - 1
        part, rotation = values[low : low + width].reshape(1, -1), rotation_of(width)
        out[low : low + width] = rotation.back(part.copy(), unit) if back else rotation.rotated(part, unit)
        low += width
    return out


ROTATED_VALUES = 1 << 16
"""Values of a block of the rotation: 184 packets of MTU 1500."""
