"""Several links of a switch on the way to one address: which of them a frame takes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from emulation.sim.network.simulated_link import NODE_MASK, SimulatedLink

Flow = tuple[int, int, int]
"""Addresses of sender and receiver, and the number of a TCP connection between them, else 0."""


class HashedPaths:
    """A flow takes a link by a hash of the flow and of the seed, as ECMP: so flows may collide while a link is idle.

    name: of who has an address, so that a flow keeps its link whatever addresses others have.
    """

    def __init__(self, links: Sequence[SimulatedLink], seed: int, name: Callable[[int], str]) -> None:
        self.links, self._seed, self._name = links, seed, name
        self._chosen: dict[Flow, int] = {}

    def place(self, flow: Flow) -> int:
        """The place of a flow's link among all links."""
        if flow not in self._chosen:
            sender, to, number = flow
            key = f"{self._seed} path {self._name(sender)} {self._name(to)} {number}"
            self._chosen[flow] = random.Random(key).randrange(len(self.links))
        return self._chosen[flow]

    def link(self, frame: Any, _ready_ns: int, sender: int, to: int) -> SimulatedLink:
        """The one that a frame takes."""
        return self.links[self.place((sender, to & NODE_MASK, getattr(frame, "flow", 0)))]

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """As of `SimulatedLink`."""
        return self.link(frame, ready_ns, sender, to).send(frame, size_bytes, ready_ns, sender, to)

    def send_ahead(self, frame: Any, size_bytes: int, ready_ns: int, sender: int, to: int) -> bool:
        """As of `SimulatedLink`."""
        return self.link(frame, ready_ns, sender, to).send_ahead(frame, size_bytes, ready_ns, sender, to)


class SprayedPaths(HashedPaths):
    """A frame takes the link with the shortest queue here, whatever its flow; equal links take turns."""

    _turn = 0

    def place(self, _flow: Flow) -> int:
        """The place of any of a flow's links: they are alike."""
        return 0

    def link(self, _frame: Any, ready_ns: int, _sender: int, _to: int) -> SimulatedLink:
        """The one that a frame takes."""
        links = (*self.links[self._turn :], *self.links[: self._turn])
        self._turn = (self._turn + 1) % len(links)
        return min(links, key=lambda link: link.backlog_bytes(ready_ns))
