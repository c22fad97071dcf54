"""The contract every link keeps: it carries bundles of datagrams between endpoints and a switch.

A link guarantees as little as the network below it: datagrams get lost, duplicated or reordered, never resized. On a
quiet path, within its buffers, all datagrams arrive in order. It never blocks except in `wait`, and a peer that is dead
or unreachable is loss, not an exception. `tests/transport/contracts/test_link_contract.py` holds all implementations to
this.

A single thread uses a link (send, receive, wait, close); any thread may call `wake` at any time.
"""

from collections.abc import Mapping
from typing import Protocol

from switchagg.errors import SwitchaggError
from switchagg.wire import Bundle

Address = tuple[str, int]
"""(host, port): where a link is reached. `Link.resolve` gives the form that compares equal to a sender's."""

Arrival = tuple[Bundle, Address, int]
"""A bundle, its sender, and the TOS byte that all of it came with; 0 where the link has none."""


class LinkClosed(SwitchaggError):
    """A link was used after its `close`: a mistake of the caller, not of the network."""


class Link(Protocol):
    """Carries bundles: uint8 (m, size), m datagrams of equal size, C-contiguous (`switchagg.wire.Bundle`)."""

    @property
    def address(self) -> Address:
        """Our own bound address."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts of packets and errors so far; names are the link's own."""

    @property
    def tos(self) -> int | None:
        """TOS byte (IPv6: traffic class) of its packets; None: it has none, and `send` ignores its `tos`."""

    @property
    def credit_bytes(self) -> int:
        """Most that may lie below the link before `has_room` says no; 0: nothing bounds it."""

    @property
    def segments_max(self) -> int:
        """Rows that leave together, at most: what to hand over at a time where there is a credit."""

    def resolve(self, address: Address) -> Address:
        """The address as `receive` will report it for that peer. Raises JobError if the link can't reach such a one."""

    def send(self, bundle: Bundle, to: Address, tos: int | None = None) -> int:
        """Hand over rows from the first on; returns how many were accepted: 0 to m. tos: of these; None: the link's.

        Fewer than m means the link is full: keep the rest, `wait(writable=True)`, send again. Rows the network refuses
        (no such host, interface down) count as accepted and are lost. The caller may reuse the bundle at once.
        Raises LinkClosed; ValueError for rows larger than a datagram.
        """

    def has_room(self) -> bool:
        """Whether less than credit_bytes lies below: `wait(writable=True)` ends when there is room again."""

    def slowness(self) -> str:
        """The reason why this link is slower than it could be, with the remedy, in one line; "" if there is none."""

    def set_tos(self, tos: int) -> None:
        """Set the TOS byte, 0 to 255, of all later packets that get no other; only links with a TOS byte have it."""

    def receive(self) -> list[Arrival]:
        """Arrivals, at most a bounded amount per call; [] if there are none. It never blocks.

        The bundles are the caller's: no later call changes them. Rows may have any size from 0 bytes on.
        Raises LinkClosed.
        """

    def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
        """Sleep until there is something to receive, room to send (if `writable`), a `wake`, or the timeout.

        It returns False after a timeout; True means only: try again. timeout_s: None waits for ever. Raises LinkClosed.
        """

    def wake(self) -> None:
        """End the present or else the next `wait`. Any thread may call it; after `close` it does nothing."""

    def fileno(self) -> int:
        """A descriptor that polls readable when something has arrived."""

    def close(self) -> None:
        """Free everything the link holds; a second call does nothing."""
