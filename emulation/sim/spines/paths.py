"""Several links of a switch on the way to one address: which of them a frame takes."""

import random
from collections.abc import Callable, Sequence

from emulation.sim.engine.links import SimulatedLink

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


class SprayedPaths(HashedPaths):
    """A frame takes the link with the shortest queue, whatever its flow; equal links take turns."""

    def place(self, _flow: Flow) -> int:
        """The place of any of a flow's links: they are alike."""
        return 0
