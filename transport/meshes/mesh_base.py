"""MeshBase: the part of a mesh's end that is alike on every link; what supplies the bytes is the link's."""

from collections.abc import Sequence
from typing import Any

from transport.links.link import LinkClosed
from transport.meshes.hello import Hello
from transport.meshes.mesh import HEAD_BYTES_MAX, Buffer, Event, MemberLost, MessageReceived, MessageSent

GIVEN_UP = "it was given up here"
"""Why a member is lost after `Mesh.give_up`."""


class MeshBase:
    """Who the member is, its events that `receive` hands out next, what it has counted of messages, whether it is open.

    counted: names of further counters, which begin at 0.
    """

    link: str
    message_bytes_max: int

    def __init__(self, hello: Hello, classes: tuple[int, ...], counted: Sequence[str] = ()) -> None:
        self.member, self.members, self.classes = hello.member, hello.members, classes
        self.details: dict[str, Any] = {}
        self._hello = hello
        self._flow_count = len(classes) or 1
        self._events: list[Event] = []
        self._counted = dict.fromkeys(("tx_messages", "tx_bytes", "rx_messages", "rx_bytes", "lost", *counted), 0)
        self._closed = False

    def _check_send(self, to: int, head: bytes, size_bytes: int) -> None:
        """Raise ValueError for a message that no mesh can carry, as `Mesh.send` promises, and LinkClosed."""
        if len(head) > HEAD_BYTES_MAX or size_bytes > self.message_bytes_max:
            raise ValueError(
                f"a head of {len(head)} and data of {size_bytes} bytes: at most {HEAD_BYTES_MAX} and "
                f"{self.message_bytes_max}"
            )
        if to == self.member or not 0 <= to < self.members:
            raise ValueError(f"member {to}: another of 0 to {self.members - 1}")
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the {self.link} mesh of member {self.member}, job {self._hello.job}, is closed")

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _note_sent(self, ticket: int, size_bytes: int) -> None:
        """A message with so much data has left; its memory is the caller's again."""
        self._counted["tx_messages"] += 1
        self._counted["tx_bytes"] += size_bytes
        self._events.append(MessageSent(ticket))

    def _note_received(self, member: int, head: bytes, data: Buffer) -> None:
        self._counted["rx_messages"] += 1
        self._counted["rx_bytes"] += len(data)
        self._events.append(MessageReceived(member, head, data))

    def _note_lost(self, member: int, reason: str) -> None:
        self._counted["lost"] += 1
        self._events.append(MemberLost(member, reason))
