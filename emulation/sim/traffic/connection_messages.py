"""Messages on a connection whose segments are numbered: each begins with a segment of its own."""

from collections.abc import Callable
from typing import NamedTuple

from emulation.sim.traffic.segments import TransportSegment


class Content(NamedTuple):
    """A segment's part of a message. head_bytes: the bytes of the message's head, in its last segment; else -1. left:
    called when the last segment is on the link."""

    piece: memoryview
    head_bytes: int = -1
    left: Callable[[], None] | None = None


class Messages:
    """The messages of a connection, at both ends, in order. size: bytes of a segment."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._contents: dict[int, Content] = {}  # by segment: not yet acknowledged
        self._queued = self._departed = self._acknowledged = 0  # segments; those before _acknowledged are acknowledged
        self._there: dict[int, Content] = {}  # at the receiver, not yet taken
        self._delivered = 0
        self._pieces: list[memoryview] = []

    def add(self, head_bytes: int, data: bytes, left: Callable[[], None]) -> int:
        """A message (may be empty) after all those before: in how many segments. `left` is called once its last byte
        is on the link."""
        size, view = self._size, memoryview(data)
        last = max(0, len(data) - 1) // size
        for place in range(last):
            self._contents[self._queued + place] = Content(view[place * size : (place + 1) * size])
        self._contents[self._queued + last] = Content(view[last * size :], head_bytes, left)
        self._queued += last + 1
        return last + 1

    def fill(self, segment: TransportSegment) -> None:
        """A segment that leaves."""
        content = segment.content = self._contents[segment.number]
        segment.payload_bytes = len(content.piece)

    def on_departed(self, segment: TransportSegment) -> None:
        """It is on the link."""
        if segment.number == self._departed:
            self._departed += 1
            if segment.content.left is not None:
                segment.content.left()

    def on_received(self, segment: TransportSegment) -> None:
        """A segment of data is there."""
        if segment.number >= self._delivered:
            assert segment.content is not None
            self._there[segment.number] = segment.content

    def on_acknowledged(self, upto: int) -> None:
        """All before are there."""
        while self._acknowledged < upto:
            del self._contents[self._acknowledged]
            self._acknowledged += 1

    def complete_messages(self, upto: int) -> list[tuple[bytes, memoryview]]:
        """Messages that are whole since the last call, all segments before `upto` being there: head and data."""
        messages = []
        while self._delivered < upto:
            content = self._there.pop(self._delivered)
            self._delivered += 1
            self._pieces.append(content.piece)
            if content.head_bytes >= 0:
                data = b"".join(self._pieces)
                self._pieces = []
                messages.append((data[: content.head_bytes], memoryview(data)[content.head_bytes :]))
        return messages
